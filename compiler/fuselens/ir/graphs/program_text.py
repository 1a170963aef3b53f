"""A captured graph as a Python program of its own: it makes inputs like those of the call, runs the graph compiled and eagerly,
and compares values and gradients. Whoever reports a wrong result or a crash sends this file; ``fuselens bisect`` cuts it down.
"""

from __future__ import annotations

import ast
import math
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
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
    graph: fx.Graph, inputs: Sequence[Any], *, about: str, options: Mapping[str, Any], mode: str = "default", values: str = ""
) -> str:  # fmt: skip
    """The program. ``inputs`` are the graph's, as it was called; of their values only the range of integers is told. With
    ``values`` they are in the file of that name beside the program.

    Where the graph holds something that cannot be written down (a function of the program, an object), the text says what,
    and ends when it is run.
    """
    try:
        body = _body(graph)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this text is lost
        why = f"this graph cannot be run on its own: {error}"
        body = f"raise SystemExit({why!r})\n\n\ndef graph(self, *inputs):\n    ...\n"
    made = _loaded(values) if values else _MAKING + _listed(map(_input, inputs))
    return _TEMPLATE.format(
        about=about.replace('"""', "'''"), body=body, inputs=made, mode=mode, options=dict(options), torch=torch.__version__
    )  # fmt: skip


def changed(source: str, graph: str, values: Sequence[Any], *, about: str, file: str) -> str:
    """A program with another ``graph`` in it, which is given ``values``: written out where they are small, or else in ``file``."""
    with_grad = [f"{_spelled(v)}.requires_grad_()" if _requires_grad(v) else _spelled(v) for v in values
                 if not isinstance(v, torch.Tensor) or _is_small(v)]  # fmt: skip
    made = _listed(f"{text}" for text in with_grad) if len(with_grad) == len(values) else _loaded(file)
    tree = ast.parse(source)
    body = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    lines = source.split("\n")
    replaced = [(tree.body[0], f'"""{about}"""'), (body["graph"], graph.rstrip()), (body["inputs"], made.strip())]
    if "tensor" in body:
        replaced.append((body["tensor"], ""))
    for node, text in sorted(replaced, key=lambda pair: -pair[0].lineno):
        lines[node.lineno - 1 : node.end_lineno] = [text]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines))


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_small(value: torch.Tensor) -> bool:
    plain = value.layout is torch.strided and type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and value.numel() <= _SMALL and value.is_contiguous()


def _listed(values: Iterable[str]) -> str:
    rows = "".join(f"        {value}{'' if ',  #' in value else ','}\n" for value in values)
    return f"def inputs():\n    torch.manual_seed(0)\n    return [\n{rows}    ]\n"


def _loaded(file: str) -> str:
    return f"def inputs():\n    return torch.load(Path(__file__).with_name({file!r}), weights_only=True)\n"


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


_MAKING = """def tensor(shape, stride, dtype, place, low=-4, high=4, grad=False):
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(size)
    elif dtype is torch.bool:
        made = torch.rand(size) < 0.5
    else:
        made = torch.randint(low, high + 1, (size,))
    return made.to(place, dtype).as_strided(shape, stride).requires_grad_(grad)


"""
_TEMPLATE = '''"""{about}

    python FILE              # compares the compiled graph with eager; status 1 where they differ
    fuselens bisect FILE     # the smallest part of it that still does

torch {torch}. Inputs that are not written out are random, with the sizes, strides and dtypes of the call.
"""

import sys
from math import inf, nan
from pathlib import Path

import torch
from torch import device

NoneType = type(None)
{body}

MODE = {mode!r}
OPTIONS = {options!r}
OWNER = Constants() if "Constants" in globals() else None


{inputs}

def called(*given):
    return graph(OWNER, *given)


if __name__ == "__main__":
    from fuselens.bisecting.probing import main

    sys.exit(main(__file__))
'''
