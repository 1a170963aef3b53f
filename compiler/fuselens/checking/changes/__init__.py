"""Changes of a function, found and measured on copies of its file."""
