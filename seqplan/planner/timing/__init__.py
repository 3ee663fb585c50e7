"""Seconds of the parts of a step."""
