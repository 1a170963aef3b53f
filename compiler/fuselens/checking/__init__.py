"""A file looked at: compiled in a process of its own, its findings, and fixes tried out."""
