"""Texts as they change, and reports that follow them."""
