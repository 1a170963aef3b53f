"""The process, its files and its terminal."""
