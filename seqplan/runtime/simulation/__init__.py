"""The parts of simulate.py: a stage on fake tensors, what its storages are for, its whole step."""
