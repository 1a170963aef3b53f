"""What CPython and torch implement in C, as Python that can be traced."""
