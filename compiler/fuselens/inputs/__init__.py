"""What compiled functions are called with, and how two runs of them compare."""
