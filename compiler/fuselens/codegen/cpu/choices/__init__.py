"""What the writer of C++ chooses before it writes."""
