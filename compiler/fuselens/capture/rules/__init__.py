"""Calls that capture knows: a table of functions and what a call of each becomes."""
