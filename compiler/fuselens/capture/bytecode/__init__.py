"""The bytecode of each version of CPython, read and written."""
