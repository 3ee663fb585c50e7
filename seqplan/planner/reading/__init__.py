"""User files and numbers -> Python values, with every fault named."""
