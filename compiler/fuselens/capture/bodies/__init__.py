"""Operators that take functions: their bodies are captured as graphs of their own."""
