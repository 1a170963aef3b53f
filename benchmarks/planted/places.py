"""Where faults are put: the stages of the compiler, wrapped in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fuselens import api
from fuselens.capture.tracing.sources import GuardProgram
from fuselens.ir.loops import Graph, Kernel, Loop, Op
from fuselens.pipeline import phases, programs, stages

aten = torch.ops.aten
Body = tuple[Op, ...]


def captured(change: Callable[[fx.Graph], object]) -> None:
    """Changes graphs as they were captured."""
    real = api._graph_compiler

    def made(recorder: Any, backend: Any) -> Any:
        compile_graph = real(recorder, backend)

        def changed(captured: Any) -> Any:
            change(captured.module.graph)
            captured.module.recompile()
            return compile_graph(captured)

        return changed

    api._graph_compiler = made


def joint(change: Callable[[fx.Graph], object]) -> None:
    """Changes graphs of the forward with its backward."""
    real = phases.compile_joint

    def made(given: Any, *rest: Any, **how: Any) -> Any:
        change(given.graph)
        return real(given, *rest, **how)

    phases.compile_joint = made
    from fuselens.pipeline import graphs

    if hasattr(graphs, "compile_joint"):
        graphs.compile_joint = made


def simplified(change: Callable[[fx.Graph], object]) -> None:
    """Changes graphs of ATen operators when they are simplified."""
    real = stages.simplify

    def made(module: Any) -> Any:
        module = real(module)
        change(module.graph)
        module.recompile()
        return module

    stages.simplify = made


def bodies(change: Callable[[Loop], Body | None]) -> None:
    """Changes what loops compute, when they are made."""
    real = stages.lower

    def made(*args: Any, **how: Any) -> Graph:
        graph = real(*args, **how)

        def of(node: Any) -> Any:
            new = change(node) if isinstance(node, Loop) else None
            return node if new is None else replace(node, body=new)

        return graph.replace(nodes=tuple(map(of, graph.nodes)))

    stages.lower = made


def fused(change: Callable[[Kernel], Kernel], least: int = 2) -> None:
    """Changes kernels of at least so many loops."""
    real = stages.fuse

    def made(*args: Any, **how: Any) -> Graph:
        graph = real(*args, **how)
        wanted = lambda n: isinstance(n, Kernel) and len(n.loops) >= least  # noqa: E731
        return graph.replace(nodes=tuple(change(n) if wanted(n) else n for n in graph.nodes))

    stages.fuse = made


def ordered(change: Callable[[Graph], Graph]) -> None:
    """Changes the order of kernels, and their memory."""
    real = stages.order
    stages.order = lambda *args, **how: change(real(*args, **how))


def code(pattern: str, new: str, count: int = 0) -> None:
    """Replaces text in generated C++."""
    real = stages.generate

    def made(*args: Any, **how: Any) -> Any:
        generated = real(*args, **how)
        if generated.cpp is None:
            return generated
        return replace(
            generated, cpp=replace(generated.cpp, text=re.sub(pattern, new, generated.cpp.text, count=count))
        )

    stages.generate = made


def calls(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Changes what calls the programs of graphs."""
    real = programs.build

    def build(graph: Any, generated: Any, *rest: Any) -> Any:
        built = real(graph, generated, *rest)
        built.call = change(built.call)
        return built

    programs.build = build


def guards(lost: Callable[[str, str], bool]) -> None:
    """Loses the guards of which ``lost(name, text)``."""
    for method in ("check", "check_state"):
        real = getattr(GuardProgram, method)

        def made(self: Any, *args: Any, real: Any = real, name: str, text: str, span: Any) -> None:
            if not lost(name, text):
                real(self, *args, name=name, text=text, span=span)

        setattr(GuardProgram, method, made)


# --- changes of graphs, and of what loops compute --------------------------------------------------------------------


def each(graph: fx.Graph, targets: Any, change: Callable[[fx.Node], object]) -> None:
    """Changes the nodes that call one of ``targets``: objects, or names of methods."""
    wanted = targets if isinstance(targets, (tuple, list)) else (targets,)
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_method") and any(node.target is t or node.target == t for t in wanted):
            change(node)


def swapped(node: fx.Node) -> None:
    node.args = (node.args[1], node.args[0], *node.args[2:])


def dropped(node: fx.Node) -> None:
    node.replace_all_uses_with(node.args[0])


def with_argument(number: int, change: Callable[[Any], Any]) -> Callable[[fx.Node], None]:
    def made(node: fx.Node) -> None:
        if len(node.args) > number:
            node.update_arg(number, change(node.args[number]))

    return made


def instead(body: Body, old: str, new: str) -> Body | None:
    return (
        tuple(replace(op, op=new) if op.op == old else op for op in body) if any(op.op == old for op in body) else None
    )


def operands(body: Body, name: str, change: Callable[[Sequence[Any]], Sequence[Any]]) -> Body | None:
    if not any(op.op == name for op in body):
        return None
    return tuple(replace(op, args=tuple(change(op.args))) if op.op == name else op for op in body)


def expanded(body: Body, name: str, change: Callable[[Op], Sequence[Op]]) -> Body | None:
    """With what ``change`` gives in the place of each operation of this name."""
    if not any(op.op == name for op in body):
        return None
    return tuple(new for op in body for new in (change(op) if op.op == name else (op,)))
