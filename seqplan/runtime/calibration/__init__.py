"""The parts of calibrate.py: what is measured, and how ranks measure at once."""
