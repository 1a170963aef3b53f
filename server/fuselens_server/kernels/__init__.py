"""Kernels that the person edits: drafts, their verdicts, and pins."""
