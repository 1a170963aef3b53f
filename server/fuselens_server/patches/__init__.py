"""Patches of libraries that a project keeps: made of verified fixes, and removed."""
