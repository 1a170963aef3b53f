"""What a program of loops computes, whoever compiled it and wherever: its :class:`..contracts.content.Content`.

Neither has paths, positions, names of the program's variables, example sizes or times in it. Kernels keep their names, because
whoever calls them uses these; so do size symbols, and what a kernel is given, in its order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from .. import text
from ..contracts.content import Content
from ..contracts.source import Source
from ..loops import Attention, Extern, Graph, Kernel, Loop, Op, Ref

_HINT = re.compile(r" hint -?\d+")
_SHOWN = 16  # characters of a hash


def content_of(graph: Graph, source: Source | None) -> Content:
    """Of an ordered graph and the kernels that were written for it; nothing where there are none."""
    if source is None:
        return Content()
    names = _names(graph)
    lines = text.lines(_renamed(graph, names))
    head = _HINT.sub("", lines[0].removeprefix(f"graph {graph.name}"))
    calls = [
        f"call {k.function} {k.name}({', '.join(names.get(a, a) for a in k.arguments)}; {', '.join(k.sizes)})"
        for k in source.kernels
    ]
    whole = "\n".join((head, *lines[1:], *calls))
    return Content(_hash(whole), (*_outline(graph, lines),))


def _hash(whole: str) -> str:
    return hashlib.sha256(whole.encode()).hexdigest()[:_SHOWN]


def _names(graph: Graph) -> dict[str, str]:
    """By buffer, or by an input that is a number, its name in any program that computes the same."""
    inputs = {name: f"in{k}" for k, name in enumerate(graph.inputs)}
    others = [name for name in graph.buffers if name not in inputs]
    return {**inputs, **{name: f"b{k}" for k, name in enumerate(others)}}


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    def name(old: str) -> str:
        return names.get(old, old)

    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(name(value.name))
        return tuple(map(argument, value)) if isinstance(value, tuple) else value

    def body(ops: Sequence[Op]) -> tuple[Op, ...]:
        return tuple(op.mapped(storage=name) for op in ops)

    def node(old: Any) -> Any:
        if isinstance(old, Kernel):
            phases = tuple(dataclasses.replace(p, body=body(p.body)) for p in old.phases)
            return dataclasses.replace(old, phases=phases, loops=(), origins=())
        if isinstance(old, Loop):
            return dataclasses.replace(old, name=name(old.name), body=body(old.body))
        assert isinstance(old, Extern)
        made = {
            "name": name(old.name), "args": argument(old.args), "kwargs": tuple((k, argument(v)) for k, v in old.kwargs),
            "outputs": tuple(map(name, old.outputs)), "mutates": tuple(map(name, old.mutates)), "reason": "", "origin": "",
        }  # fmt: skip
        if isinstance(old, Attention):
            made |= {"body": body(old.body), "product": name(old.product)}
        return dataclasses.replace(old, **made)

    def buffer(old: Any) -> Any:
        device = old.device.partition(":")[0]
        return dataclasses.replace(old, name=name(old.name), storage=name(old.storage), device=device)

    return graph.replace(
        inputs=tuple(map(name, graph.inputs)), buffers={name(n): buffer(b) for n, b in graph.buffers.items()},
        nodes=tuple(map(node, graph.nodes)), outputs=tuple(name(o) if isinstance(o, str) else o for o in graph.outputs),
        constants={name(n): c for n, c in graph.constants.items()},
        writes={name(a): name(b) for a, b in graph.writes.items()}, reuse={name(a): name(b) for a, b in graph.reuse.items()},
        donated=tuple(map(name, graph.donated)),
    )  # fmt: skip


def _outline(graph: Graph, lines: Sequence[str]) -> list[str]:
    """Inputs and results as they are; of each node its first line, and a hash of what is below it."""
    names = {f"in{k}": name for k, name in enumerate(graph.inputs)}
    found: list[str] = []
    below: list[str] = []

    def close() -> None:
        if below:
            found[-1] += f" does {_hash(chr(10).join(below))[:8]}"
            below.clear()

    for line in lines[1:]:
        if line.startswith("    "):
            below.append(line)
            continue
        close()
        kind, _, rest = line.strip().partition(" ")
        if kind == "input":
            name, colon, type_ = rest.partition(":")
            rest = f"{names.get(name, name)}{colon}{type_}"
        if kind in ("input", "kernel", "extern", "attention", "loop", "return"):
            found.append(f"{kind} {rest}")
    close()
    return found
