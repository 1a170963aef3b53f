"""A captured graph as a Python program of its own: it makes inputs like those of the call, runs the graph compiled and eagerly,
and compares values and gradients. Whoever reports a wrong result or a crash sends this file.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ... import torch_private
from .printable import graph_module

_GIVEN = {"inf", "nan", "device", "NoneType", "torch"}  # that every program has
_UNUSED = {"fx_pytree", "pytree"}
_SMALL = 64  # elements of a tensor that is written out
_ROOTS = ("torch", "builtins", "math", "operator", "_operator", "collections")


class _Unwritable(Exception):
    """Something of the graph has no name in a program; the message says what."""


def program(
    graph: fx.Graph, inputs: Sequence[Any], *, about: str, options: Mapping[str, Any], mode: str = "default"
) -> str:
    """The program. ``inputs`` are the graph's, as it was called; of their values only the range of integers is told.

    Where the graph holds something that cannot be written down (a function of the program, an object), the text says what,
    and ends when it is run.
    """
    try:
        body = _body(graph)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this text is lost
        why = f"this graph cannot be run on its own: {error}"
        body = f"raise SystemExit({why!r})\n\n\ndef graph(self, *inputs):\n    ...\n"
    made = "\n".join(f"        {_input(value)}," for value in inputs)
    return _TEMPLATE.format(
        about=about.replace('"""', "'''"),
        body=body,
        inputs=made,
        mode=mode,
        options=dict(options),
        torch=torch.__version__,
    )


def _body(graph: fx.Graph) -> str:
    """The graph as the function ``graph(self, …)``, after the names that it needs."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    module = graph_module(copied)
    code = module.graph.python_code("self")
    lines = []
    for name, value in code.globals.items():
        if name not in _GIVEN | _UNUSED:
            lines.append(
                f"import {value.__name__} as {name}"
                if isinstance(value, types.ModuleType)
                else f"{name} = {_spelled(value)}"
            )
    constants = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    written = [f"    {name} = staticmethod({_spelled(v)})" if callable(v) else f"    {name} = {_spelled(v)}"
               for name, v in ((name, getattr(module, name)) for name in sorted(constants))]  # fmt: skip
    lines += ["", "", "class Constants:", *written] if written else []
    source = code.src.strip().replace("def forward(", "def graph(", 1)
    return "\n".join([*lines, "", "", source, ""])


def _spelled(value: Any) -> str:
    """An expression for ``value``. Raises _Unwritable."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if value is None or isinstance(
        value, (bool, int, str, bytes, complex, torch.dtype, torch.layout, torch.memory_format, type(...))
    ):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.{value!r}"
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        inner = ", ".join(map(_spelled, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, torch.Tensor) and value.numel() <= _SMALL and value.layout is torch.strided:
        return f"torch.tensor({value.tolist()!r}, dtype={value.dtype}, device={str(value.device)!r})"
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    if module.split(".")[0] in _ROOTS and name and _found(module, name) is value:
        return f"__import__('importlib').import_module({module!r}).{name}"
    if torch_private.is_torch_operator(value):
        return f"torch.ops.{value}"
    raise _Unwritable(f"it holds {type(value).__qualname__} {getattr(value, '__qualname__', '')}".rstrip())


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _input(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, (bool, int, float)) else f"None,  # {type(value).__qualname__}"
    if value.layout is not torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"torch.empty({tuple(value.shape)}),  # was {type(value).__qualname__}, {value.layout}"
    span = ""
    counts = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool)
    if counts and value.numel() and value.device.type != "meta":
        with torch.no_grad():
            span = f", low={int(value.min())}, high={int(value.max())}"
    grad = ", grad=True" if value.requires_grad else ""
    return f"tensor({tuple(value.shape)}, {value.stride()}, {value.dtype}, {str(value.device)!r}{span}{grad})"


_TEMPLATE = '''"""{about}

    python repro.py         # compares the compiled graph with eager; status 1 where they differ

Inputs are random, with the sizes, strides and dtypes of the call. torch {torch}.
"""

import sys

import fuselens
import torch
from math import inf, nan
from torch import device

NoneType = type(None)
{body}

def tensor(shape, stride, dtype, place, low=-4, high=4, grad=False):
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(size)
    elif dtype is torch.bool:
        made = torch.rand(size) < 0.5
    else:
        made = torch.randint(low, high + 1, (size,))
    return made.to(place, dtype).as_strided(shape, stride).requires_grad_(grad)


def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]


OWNER = Constants() if "Constants" in globals() else None


def called(*given):
    return graph(OWNER, *given)


def run(function):
    """What the function returns, the gradients of its inputs, and its inputs afterwards."""
    given = inputs()
    leaves = [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad]
    results = function(*(v.clone() if v is not None and any(v is l for l in leaves) else v for v in given))
    floats = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    grads = torch.autograd.grad([r.sum() for r in floats], leaves, allow_unused=True) if floats and leaves else []
    return [*results, *grads, *given]


def main():
    compiled = fuselens.compile(called, mode={mode!r}, options={{**{options!r}, "fallback_random": True}})
    expected, found = run(called), run(compiled)
    status = 0
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        try:
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b, a, rtol=2e-2 if a.dtype.itemsize < 4 else 1e-3, atol=1e-3, equal_nan=True)
            else:
                assert a == b or (a != a and b != b), f"{{a}} and {{b}}"
        except AssertionError as error:
            status = 1
            print(f"value {{number}} differs: {{error}}")
    print("the compiled graph differs from eager" if status else "the compiled graph agrees with eager")
    return status


if __name__ == "__main__":
    sys.exit(main())
'''
