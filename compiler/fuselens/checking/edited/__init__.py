"""Edited kernels are tried out: what a child does to verify one, and another to measure it."""
