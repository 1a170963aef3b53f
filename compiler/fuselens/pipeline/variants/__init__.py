"""Callables of one graph that were compiled for different inputs: how they lie in memory, what they share, what frozen ones hold."""
