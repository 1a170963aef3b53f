"""Breaks inside of libraries: fixes of their text are proposed, and tried out as the compiler would trace them."""
