"""The planner: formulas and search in plain Python and numpy. Never imports torch, typer or rich."""
