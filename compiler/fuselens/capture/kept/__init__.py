"""Captured frames as data: what another process makes the same entries of, without tracing."""
