"""The fx graphs of one trace: the captured one, and those of transformed functions and branches inside it.

A graph inside may run any number of times, or in another mode. So it reads nothing of the graphs around it by itself:
what it reads becomes a placeholder of it (:meth:`Graphs.local`). Inputs are placeholders of the outermost graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ... import torch_private
from ...record.report import Span
from ..breaks import Break
from ..values.algebra import OpaqueValue, SymbolValue, TensorValue, serials
from .sources import GuardProgram, Source


class Scope:
    """A graph of its own inside the captured one: what a function transform, a branch or a loop's body runs.

    ``captured`` maps the nodes of the enclosing graph that it reads to the placeholders that stand for them.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.serial = next(serials)
        self.captured: dict[fx.Node, fx.Node] = {}
        self.transform = False  # torch.func runs it
        self.aside = False  # nothing runs it: what is traced in it is only looked at
        self.mapped: set[fx.Node] | None = None  # the parameters that vmap goes over, if it runs it
        self.standing: dict[fx.Node, fx.Node] = {}  # for which node around it a parameter stands
        self.grad_mode_known = True  # False in a backward, which may be differentiated itself
        self._last: fx.Node | None = None

    def placeholder(self, name: str, fake: Any, span: Span | None) -> fx.Node:
        last = self._last
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(_first(self.graph)):
            node = self.graph.placeholder(name)
        node.target = node.name  # the parameter's name in the generated code, which must not be another node's
        node.meta.update(val=fake, span=span)
        self._last = node
        return node


class Graphs:
    """The graphs that grow, and the inputs of the outermost one, which ``guards`` gathers in the same order."""

    def __init__(self, guards: GuardProgram) -> None:
        self.current = fx.Graph()  # the one that grows now; `scopes` has those around it
        self.scopes = [Scope(self.current)]
        self.inputs: list[tuple[Source, Any]] = []  # tensors and symbolic integers
        self.layouts: dict[int, tuple[Any, Any]] = {}  # by id of an input's fake: its sizes and strides at first
        self.generators: dict[int, fx.Node] = {}  # by id of the value of an existing generator of random numbers
        self.data: dict[fx.Node, fx.Node] = {}  # of inputs whose ``.data`` the program replaced: what has the new one
        self.operations = 0
        self.drawn: set[Source] = set()  # inputs that are random numbers, drawn before the graph runs
        self._guards = guards

    # --- inputs --------------------------------------------------------------------------------------------

    def placeholder(self, given: Any, source: Source, value: Any, span: Span | None) -> fx.Node:
        """A new graph input: ``given`` is what the frame has at ``source``, ``value`` what stands for it while tracing."""
        node = self.scopes[0].placeholder(_placeholder_name(source, len(self.inputs)), value, span)
        node.meta["source"] = source.text
        self.inputs.append((source, given))
        position = self._guards.gather(source)
        assert position == len(self.inputs) - 1, "graph inputs are gathered first"
        return node

    def given(self, source: Source) -> Any:
        """The object that the graph's input at ``source`` stands for."""
        return next(t for s, t in self.inputs if s == source)

    def now(self, value: TensorValue | SymbolValue | OpaqueValue) -> fx.Node:
        """The node that has what ``value`` is now."""
        return self.data.get(value.node, value.node)

    def real(self, value: TensorValue) -> torch.Tensor:
        """The tensor that an input of the graph stands for."""
        assert value.source is not None
        return self.given(value.source)

    def initial_fakes(self, fake_mode: Any) -> list[Any]:
        """What stands for the inputs as they are before the graph runs: tracing writes to fake tensors, too."""
        fakes = self._placeholders(self.current)
        for i, (fake, (_, given)) in enumerate(zip(fakes, self.inputs, strict=True)):
            if id(fake) in self.layouts and torch_private.differs(fake, given):
                fakes[i] = torch_private.fake_of_layout(fake_mode, given, *self.layouts[id(fake)])
        return fakes

    def writes(self) -> bool:
        """Whether the graph writes to its inputs."""
        return bool(self.written())

    def written(self) -> list[int]:
        """The inputs that the graph writes to, by their positions."""
        nodes = list(self.scopes[0].graph.nodes)
        norms = (n for n in nodes if getattr(n.target, "__name__", "") == "batch_norm" and _trains(n))
        # what these write to, fake tensors do not count; parameters they only read
        running = {
            a for n in norms for a in n.all_input_nodes[1:] if not getattr(a.meta["val"], "requires_grad", False)
        }
        placeholders = (n for n in nodes if n.op == "placeholder")
        return [
            i for i, n in enumerate(placeholders)
            if isinstance(fake := n.meta["val"], torch.Tensor) and (n in running or torch_private.times_written(fake))
        ]  # fmt: skip

    def restorable(self) -> bool:
        """Whether what the graph has written so far can be undone: the history of a gradient cannot."""
        placeholders = self._placeholders(self.scopes[0].graph)
        return not any(placeholders[i].requires_grad for i in self.written())

    def owns_storage(self, value: TensorValue) -> bool:
        """Whether the tensor's memory is no input's, whose offsets fake tensors do not know."""
        fakes = self._placeholders(self.scopes[0].graph)
        key = torch_private.storage_key
        return not self.nested and all(key(f) != key(value.fake) for f in fakes if isinstance(f, torch.Tensor))

    @staticmethod
    def _placeholders(graph: fx.Graph) -> list[Any]:
        return [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]

    # --- nodes ---------------------------------------------------------------------------------------------

    def add(self, kind: str, target: Any, args: Any, kwargs: Any, value: Any, span: Span | None) -> fx.Node:
        """A node of the current graph; ``value`` stands for its result while tracing."""
        node = self.current.create_node(kind, target, args, kwargs)
        node.meta.update(val=value, span=span)
        return node

    # --- graphs inside -------------------------------------------------------------------------------------

    @property
    def nested(self) -> bool:
        """Whether a graph inside the captured one grows now."""
        return len(self.scopes) > 1

    @property
    def repeats(self) -> bool:
        """Whether what is traced now may run any number of times, or never."""
        return any(not scope.aside for scope in self.scopes[1:])

    @property
    def transformed(self) -> bool:
        """Whether what grows now is run by a transform of ``torch.func``."""
        return any(scope.transform for scope in self.scopes)

    def mapped(self, node: fx.Node) -> bool | None:
        """Whether vmap goes over what a node of the innermost graph gives; None where there is no vmap around it. What another
        transform is given is its own tensor there, of which eager does not see that."""
        if all(scope.mapped is None for scope in self.scopes):
            return None
        found = {node}
        for scope in reversed(self.scopes):
            around = {inner: outer for outer, inner in scope.captured.items()}
            around |= scope.standing if scope.mapped is not None else {}
            waiting, outer = list(found), set[fx.Node]()
            while waiting:
                at = waiting.pop()
                if at in (scope.mapped or ()):
                    return True
                waiting += [n for n in at.all_input_nodes if n not in found]
                found.update(at.all_input_nodes)
                outer.update({around[at]} if at in around else ())
            found = outer
        return False

    @contextmanager
    def scope(self) -> Iterator[Scope]:
        """Inside, operations go into a graph of their own; what they read of the graphs around it is captured."""
        scope = Scope(fx.Graph())
        scope.grad_mode_known = self.scopes[-1].grad_mode_known
        self.scopes.append(scope)
        self.current = scope.graph
        try:
            yield scope
        finally:
            self.scopes.pop()
            self.current = self.scopes[-1].graph

    def local(self, node: fx.Node) -> fx.Node:
        """What stands for ``node`` in the graph that grows now."""
        return node if node.graph is self.current else self._captured(node, len(self.scopes) - 1)

    def _captured(self, node: fx.Node, depth: int) -> fx.Node:
        scope = self.scopes[depth]
        if node.graph is scope.graph:
            return node
        if depth == 0:
            raise Break("FL110", what="a tensor of a transformed function", why="it is used after that function ended")
        outer = self._captured(node, depth - 1)
        found = scope.captured.get(outer)
        if found is None:
            found = scope.captured[outer] = scope.placeholder(node.name, node.meta["val"], node.meta.get("span"))
        return found


def _first(graph: fx.Graph) -> fx.Node:
    return next(iter(graph.nodes), None) or graph._root


def _placeholder_name(source: Source, index: int) -> str:
    name = "".join(c if c.isalnum() else "_" for c in source.text).strip("_")
    return f"{name or 'input'}" if name and not name[0].isdigit() else f"input_{index}_{name}"


def _trains(norm: fx.Node) -> bool:
    """Whether a call of ``batch_norm`` changes the running statistics that it is given."""
    return bool(norm.args[5] if len(norm.args) > 5 else norm.kwargs.get("training", False))
