"""Graphs of ATen operators: as text, as Python functions, and what is known of their values."""
