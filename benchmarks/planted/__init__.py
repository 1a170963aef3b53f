"""Faults planted in each stage of the compiler, and whether a proof finds them, at the right line."""
