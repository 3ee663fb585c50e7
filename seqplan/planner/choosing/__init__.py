"""Scoring grids of layouts and saying why the pick is the pick."""
