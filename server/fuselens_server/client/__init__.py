"""The editor at the other end: its protocol, abilities, settings, and what it is told."""
