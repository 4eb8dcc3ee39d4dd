"""Virtual time: the real core with simulated machines, trainers and clock."""
