"""Rules: one ATen operator each, as loops."""
