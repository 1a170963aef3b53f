"""The cache on disk: its place, its entries, its contents."""
