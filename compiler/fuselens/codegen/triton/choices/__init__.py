"""What the writer of Triton chooses before it writes, and what is worth measuring."""
