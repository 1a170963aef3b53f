"""Captured graphs that are compiled in parts: where data decides, where buckets of gradients end, and where the same is computed again."""
