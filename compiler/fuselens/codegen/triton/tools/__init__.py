"""Triton's own compilers and interpreter, without a GPU."""
