"""What stages hand to each other, as plain data."""
