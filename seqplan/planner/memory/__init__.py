"""From a trainer's inventory of tensors to bytes of a stage."""
