"""From what was measured on a machine, or in finished runs, to a hardware profile."""
