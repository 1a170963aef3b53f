"""What a training step holds in memory, found out by a run that computes nothing."""
