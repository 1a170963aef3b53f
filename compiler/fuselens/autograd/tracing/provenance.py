"""Where the nodes of the joint graph come from: captured nodes, through the autograd nodes that they make.

Autograd runs a backward without saying for what. So each of its nodes gets a hook when it appears, which tells the recorder from
which captured node the operators derive that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..recorder import OperatorRecorder

_COPIED_META = ("span", "stack")


def copied_meta(node: fx.Node) -> dict[str, Any]:
    """What nodes that are made for ``node`` have of its meta."""
    return {k: node.meta[k] for k in _COPIED_META if k in node.meta}


class Provenance:
    """The meta of backward operators, by the autograd node that records them."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        self._recorder = recorder
        self._known: dict[Any, dict[str, Any]] = {}

    def label(self, value: Any, node: fx.Node, env: dict[fx.Node, Any]) -> None:
        """Autograd nodes that appeared with ``node``, which gave ``value``, stamp its span on the operators that they will run."""
        candidates = value if isinstance(value, (list, tuple)) else (value,)
        if value is None and node.args and isinstance(node.args[0], fx.Node):  # setitem and other pure writes
            candidates = (env[node.args[0]],)
        functions = [t.grad_fn for t in candidates if isinstance(t, torch.Tensor)]
        self.label_from(functions, copied_meta(node) | {"backward": True, "forward_node": node.name})

    def label_from(self, functions: list[Any], meta: dict[str, Any]) -> None:
        """The same for the autograd nodes ``functions``, and for those before them that are new."""
        stack = [fn for fn in functions if fn is not None]
        while stack:
            fn = stack.pop()
            if fn in self._known:
                continue
            self._known[fn] = meta
            fn.register_prehook(self._stamp(meta))
            stack += [g for g, _ in fn.next_functions if g is not None and g not in self._known]

    def _stamp(self, meta: dict[str, Any]) -> Callable[[Any], None]:
        recorder = self._recorder

        def enter(_: Any) -> None:
            recorder.meta = meta

        return enter
