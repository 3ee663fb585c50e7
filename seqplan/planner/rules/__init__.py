"""What makes a layout illegal, one rule a reason."""
