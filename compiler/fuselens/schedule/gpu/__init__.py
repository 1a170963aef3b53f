"""What is done with kernels for a GPU alone."""
