"""What ring attention and ring self-attention do with one block, and how blocks travel."""
