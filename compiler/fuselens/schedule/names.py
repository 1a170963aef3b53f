"""Kernels are called by what they compute, as the program says it: ``layer_norm_gelu_0``, ``softmax_backward_1``."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

from fuselens.ir.loops import Graph, Kernel

LONGEST = 40
_BACKWARD = "_backward"
_MOVES = frozenset(
    "to to_copy type type_as float half double bfloat16 int long bool convert_element_type clone contiguous copy detach getitem"
    " setitem expand expand_as view view_as reshape unsqueeze squeeze flatten transpose permute t chunk split select slice alias"
    " unbind".split()
)
"""Say nothing about a kernel that does more."""
_PLAIN = frozenset("add sub mul div neg pos".split())
"""Say little about it."""
_ARITHMETIC = re.compile(r"^[ir]?(?:true)?(add|sub|mul|div)$")
_NUMBER = re.compile(r"_\d+$")


def named(graph: Graph) -> Graph:
    """``graph`` with the names of its kernels."""
    counts: Counter[str] = Counter()
    backward = graph.name.endswith(_BACKWARD)
    nodes = []
    for node in graph.nodes:
        if isinstance(node, Kernel):
            base = _base(graph, node, backward)
            node = dataclasses.replace(node, name=f"{base}_{counts[base]}")
            counts[base] += 1
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes))


def _base(graph: Graph, kernel: Kernel, backward: bool) -> str:
    words = [_word(graph.titles[name]) for name in kernel.loops if name in graph.titles]
    words = words or [_word(origin) for origin in kernel.origins]
    words = list(dict.fromkeys(filter(None, words))) or ["kernel"]
    words = [w for w in words if w not in _MOVES] or words
    suffix = _BACKWARD if backward else ""
    room = LONGEST - len(suffix) - len("_000")
    if len("_".join(words)) > room:
        words = [w for w in words if w not in _PLAIN] or words
    while len(words) > 1 and len("_".join(words)) > room:
        words.pop()
    return words[0][:room] + "".join(f"_{w}" for w in words[1:]) + suffix


def _word(title: str) -> str:
    """``layer_norm`` of the captured node ``layer_norm_2``, ``var_mean`` of the operator ``aten.var_mean.correction``."""
    parts = title.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return _ARITHMETIC.sub(r"\1", re.sub(r"\W", "", _NUMBER.sub("", name)).strip("_").lower())
