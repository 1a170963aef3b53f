"""Artifacts: compiled functions in a file, which another process loads without tracing, and without a compiler."""
