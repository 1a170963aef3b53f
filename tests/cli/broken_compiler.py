"""The command line with a defect in the compiler, to be found: ``python broken_compiler.py DEFECT COMMAND …``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fuselens.cli import main
from fuselens.ir.loops import Graph, Kernel, Loop
from fuselens.pipeline import programs, stages


def _instead(body: tuple[Any, ...], old: str, new: str) -> tuple[Any, ...]:
    return tuple(replace(op, op=new) if op.op == old else op for op in body)


def lower() -> None:
    """tanh becomes loops that compute sinh."""
    real = stages.lower

    def wrong(*args: Any, **how: Any) -> Graph:
        made = real(*args, **how)
        nodes = [replace(n, body=_instead(n.body, "tanh", "sinh")) if isinstance(n, Loop) else n for n in made.nodes]
        return made.replace(nodes=tuple(nodes))

    stages.lower = wrong


def fuse() -> None:
    """A kernel in which tanh and an exponential meet computes another function."""
    real = stages.fuse

    def wrong(*args: Any, **how: Any) -> Graph:
        made = real(*args, **how)
        return made.replace(nodes=tuple(_fused(n) if isinstance(n, Kernel) else n for n in made.nodes))

    stages.fuse = wrong


def _fused(kernel: Kernel) -> Kernel:
    ops = {op.op for phase in kernel.phases for op in phase.body}
    if not {"tanh", "exp"} <= ops:
        return kernel
    return replace(kernel, phases=tuple(replace(p, body=_instead(p.body, "tanh", "atan")) for p in kernel.phases))


def simplify() -> None:
    """Products with a number are dropped."""
    real = stages.simplify

    def wrong(module: Any) -> Any:
        for node in list(module.graph.nodes):
            if node.target is torch.ops.aten.mul.Tensor and not isinstance(node.args[1], torch.fx.Node):
                node.replace_all_uses_with(node.args[0])
        return real(module)

    stages.simplify = wrong


def _in_code(change: Any) -> None:
    real = stages.generate

    def wrong(*args: Any, **how: Any) -> Any:
        made = real(*args, **how)
        if made.cpp is None or "tanh" not in made.cpp.text:
            return made
        return replace(made, cpp=replace(made.cpp, text=change(made.cpp.text)))

    stages.generate = wrong


def crash() -> None:
    """Kernels with tanh end the process."""
    _in_code(lambda text: re.sub(r"(extern \"C\"[^{;]*\{)", r"\1 __builtin_trap();", text))


def _around_calls(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Changes the calls of programs with tanh."""
    real = programs.build

    def build(graph: Any, generated: Any, *rest: Any) -> Any:
        built = real(graph, generated, *rest)
        if generated.cpp is not None and "tanh" in generated.cpp.text:
            built.call = change(built.call)
        return built

    programs.build = build


def slow() -> None:
    """They wait before they run."""

    def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
        def later(inputs: tuple[Any, ...]) -> Any:
            time.sleep(0.02)
            return call(inputs)

        return later

    _around_calls(waiting)


def again() -> None:
    """The second call adds to its results."""

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        calls: list[int] = []

        def counted(inputs: tuple[Any, ...]) -> Any:
            calls.append(1)
            results = call(inputs)
            return results if len(calls) < 2 else tuple(r + 1 if isinstance(r, torch.Tensor) else r for r in results)

        return counted

    _around_calls(counting)


if __name__ == "__main__":
    {f.__name__: f for f in (lower, fuse, simplify, crash, slow, again)}[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
