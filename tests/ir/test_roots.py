"""In whose memory a buffer lies."""

from __future__ import annotations

import pytest
import sympy

from fuselens.ir.loops import Buffer, Graph


def graph(storages: dict[str, str], reuse: dict[str, str]) -> Graph:
    one = (sympy.Integer(1),)
    buffers = {name: Buffer(name, "f32", one, one, storage=storage) for name, storage in storages.items()}
    return Graph("g", (), buffers, (), (), reuse=reuse)


@pytest.mark.parametrize(
    "reuse",
    [
        {},
        {"b": "a"},
        {"c": "b", "b": "a", "d": "c"},
        {"c": "v", "d": "c"},
        {"d": "a", "c": "a"},
        {"a": "b", "b": "a", "c": "a"},
        {"a": "b", "b": "c", "c": "b", "d": "a"},
    ],
)
def test_all_roots_are_each_ones_root(reuse):
    """``v`` is a view of ``a``; chains may run into circles."""
    made = graph({"a": "", "b": "", "c": "", "d": "", "v": "a"}, reuse)
    assert made.roots() == {name: made.root(name) for name in made.buffers}
