"""The runtime: trains a plan with torch. The plan file is all that it shares with the planner's search."""
