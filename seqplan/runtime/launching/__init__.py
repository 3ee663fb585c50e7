"""The parts of launch.py: nodes, ranks, how they meet, signals, who failed first, whether memory suffices."""
