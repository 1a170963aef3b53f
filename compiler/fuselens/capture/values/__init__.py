"""What traced code computes with: the kinds of values, and what each answers."""
