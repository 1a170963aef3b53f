"""What would spare a recompilation: by the guard that failed, and what is found where it looks. Runs none of the program's code."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import torch_private
from ...config import Config
from ..hook import _hook, tensor_layout
from .mismatch import NOTHING, Search

ONCE = frozenset({"mode", "grad", "strides", "dtype", "device"})
"""Of what there are few kinds: said with the first recompilation. The rest is said when it comes again."""

_ADVICE = {
    "integer of a module": "Compile with options={'symbolic_module_integers': True}: it is an input then, once it has changed. Or keep "
    "it in a buffer, as a tensor.",
    "integer": "The program needs its value (a bound of a loop, an index, a comparison), so each value is compiled. Pass a tensor where "
    "it is only computed with.",
    "float": "The program compares it, or needs its value otherwise, so each value is compiled. Pass a tensor, and choose with "
    "torch.where; or compare before the call, and pass the answer.",
    "value": "Each value is compiled apart, which is right for a few. Pass what is computed with as a tensor or a number, and leave names "
    "and texts to the caller.",
    "global": "Pass it as an argument, or set it once.",
    "marked static": "mark_static asks for it: take the mark away, or mark the dimension with mark_dynamic.",
    "dynamic=False": "dynamic=False asks for it: leave that out, or mark the dimension with fuselens.mark_dynamic.",
    "dtype": "Cast to one dtype before the call.",
    "device": "Call it with tensors of one device, or compile a function for each.",
    "grad": "Each is compiled once. Where no gradient is needed, detach() before the call.",
    "strides": "Give it one layout: contiguous() before the call.",
    "function": "A function is made anew for each call: make it once, outside of what is repeated, and pass what differs as an argument.",
    "object": "Make the object once, and pass what differs in it as an argument.",
    "keys": "Pass the entries that the function reads, in place of the whole dictionary.",
    "length": "Pass one tensor in place of items whose number varies: torch.stack or torch.cat.",
    "mode": "Each mode is compiled once: call the function in each before times matter.",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a compilation does not serve a call: what differs (``subject``, a Python expression), and how."""

    subject: str
    kind: str

    @property
    def advice(self) -> str:
        return _ADVICE[self.kind]


def cause(
    guards: _hook.Guards, check: int, texts: Sequence[str], function: Any, arguments: tuple[Any, ...], config: Config
) -> Cause | None:
    """Why check number ``check`` fails for a call; None where no mark or small edit would spare it."""
    if check >= len(guards.checks):
        return None
    node, kind, *operands = guards.checks[check]
    if kind == _hook.GRAD_MODE:
        return Cause("torch.is_grad_enabled()", "mode")
    search = Search(guards.nodes, texts, function, arguments)
    if kind not in _OF_OBJECT:
        return None
    found = search.value(node)
    name = None if found is NOTHING else _OF_OBJECT[kind](search, node, found, operands, config)
    subject: str = texts[int(node)]
    return None if name is None else Cause(subject, name)


def _tensor(search: Search, node: int, found: Any, operands: Sequence[Any], config: Config) -> str | None:
    spec = operands[0]
    if not tensor_layout.is_tensor(found) or type(found) is not spec[0]:
        return None
    _, dtype, device_type, device_index, requires_grad, sizes, strides, _ = spec
    if tensor_layout.dtype_code(found.dtype) != dtype:
        return "dtype"
    if sizes is not None and len(sizes) != found.dim():
        return None
    changed = {d for d, size in enumerate(sizes or ()) if size is not None and size != found.shape[d]}
    if changed:
        marks = torch_private.size_marks(found)
        if marks is not None and changed & marks.static:
            return "marked static"
        return "dynamic=False" if config.dynamic is False else None
    if tensor_layout.device_codes(found.device) != (device_type, device_index if device_type else -1):
        return "device"
    if requires_grad >= 0 and bool(requires_grad) != found.requires_grad:
        return "grad"
    fits = strides is None or all(w is None or h == w for h, w in zip(found.stride(), strides, strict=True))
    return None if fits else "strides"


def _value(search: Search, node: int, found: Any, operands: Sequence[Any], config: Config) -> str | None:
    text = search.texts[node]
    of_module = search.hangs_on(node, torch.nn.Module)
    if type(found) is bool and of_module and text.endswith(".training"):
        return "mode"
    if type(found) in (int, float):
        if type(found) is float:
            return "float"
        return "integer of a module" if of_module and not config.symbolic_module_integers else "integer"
    return "global" if search.root(node) == _hook.ROOT_GLOBALS else "value"


def _identity(search: Search, node: int, found: Any, operands: Sequence[Any], config: Config) -> str | None:
    if type(found) in (types.CodeType, types.FunctionType):
        return "function"
    return "global" if search.root(node) == _hook.ROOT_GLOBALS else "object"


_OF_OBJECT = {
    _hook.TENSOR: _tensor, _hook.EQUALS: _value, _hook.IS: _identity, _hook.ID_IS: _identity,
    _hook.DICT_KEYS_ARE: lambda *_: "keys", _hook.LENGTH_IS: lambda *_: "length",
}  # fmt: skip
