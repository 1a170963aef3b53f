"""Functions that programs under test call."""

from __future__ import annotations


def prints_and_adds(x, i):
    print("adds", i)
    return x + i
