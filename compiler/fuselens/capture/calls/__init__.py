"""Calls of traced code: who is called with what, and what becomes of it."""
