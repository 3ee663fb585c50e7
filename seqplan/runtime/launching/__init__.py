"""The parts of launch.py: nodes, ranks, who failed first, whether the host has the memory."""
