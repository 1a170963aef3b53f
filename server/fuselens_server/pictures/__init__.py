"""What pictures of a compilation are drawn from."""
