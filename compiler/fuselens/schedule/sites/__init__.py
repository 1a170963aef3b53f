"""Places of a graph where a kernel of ours could replace a call of a library."""
