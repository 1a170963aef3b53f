"""Triton kernels of the program inside of compiled functions: each call is one node."""
