"""What tools are asked with: dataclasses, from which the schemas are made and by which arguments are checked."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")
LONGEST = 3600.0
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number"}


class ToolError(Exception):
    """What was asked for cannot be done; the message says what, why and what to do."""


def _(text: str, **more: Any) -> dict[str, Any]:
    return {"schema": {"description": text, **more}}


_FILE = "FILE.py::function, or a file that compiles one function alone; absolute, or relative to the first root"
_SECONDS = field(
    default=60.0, metadata=_("time limit of each experiment", exclusiveMinimum=0, maximum=LONGEST)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckArguments:
    target: str = field(metadata=_("a file, a folder, or FILE.py::function; absolute, or relative to the first root"))
    try_fixes: bool = field(default=True, metadata=_("compile each proposed fix and compare it with eager"))
    seconds: float = _SECONDS


@dataclass(frozen=True, slots=True)
class ExplainArguments:
    target: str = field(metadata=_(_FILE))
    section: Literal["overview", "guards", "decisions", "kernels", "shapes", "memory", "stage"] = field(
        default="overview", metadata=_("what to list in full; the overview has the beginning of each list")
    )
    stage: str = field(
        default="", metadata=_("for the section stage: a name from the graph's stages, such as lower or cpp")
    )
    graph: int = field(default=0, metadata=_("for the sections stage and memory", minimum=0))
    offset: int = field(default=0, metadata=_("where to go on in the list, or in the text (characters)", minimum=0))
    seconds: float = _SECONDS


@dataclass(frozen=True, slots=True)
class RunArguments:
    target: str = field(metadata=_(_FILE))
    gradients: bool = field(default=True, metadata=_("compare gradients, too"))
    seconds: float = _SECONDS


@dataclass(frozen=True, slots=True)
class VerifyArguments:
    target: str = field(metadata=_(_FILE))
    gradients: bool = field(default=True, metadata=_("compare gradients, too"))
    seconds: float = _SECONDS


@dataclass(frozen=True, slots=True)
class Replacement:
    """A part of the file that occurs once, and what stands there instead."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class WhatIfArguments:
    target: str = field(metadata=_(_FILE))
    budget: float = field(
        default=60.0,
        metadata=_(
            "where no change is named: seconds of processor time to find changes and measure them",
            exclusiveMinimum=0,
            maximum=LONGEST,
        ),
    )
    mode: Literal["", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = field(
        default="", metadata=_("compile in this mode")
    )
    dynamic: bool | None = field(default=None, metadata=_("compile with dynamic=true or false"))
    compile_target: str = field(
        default="", metadata=_("compile for cuda, cuda:sm_90 or cpu, which is not run: its kernels are told")
    )
    no_grad: bool = field(default=False, metadata=_("with the body inside of torch.no_grad()"))
    autocast: Literal["", "bfloat16", "float16"] = field(
        default="", metadata=_("with the body inside of torch.autocast with this dtype")
    )
    replacements: tuple[Replacement, ...] = field(
        default=(), metadata=_("edits of the file's text, for whatever else is to be tried, such as channels_last")
    )
    together: bool = field(default=False, metadata=_("all changes at once, as one variant; otherwise one variant each"))
    rounds: int = field(default=1, metadata=_("processes for each variant", minimum=1, maximum=10))
    gradients: bool = field(default=True, metadata=_("compare gradients, too"))
    seconds: float = _SECONDS


@dataclass(frozen=True, slots=True)
class ApplyFixArguments:
    target: str = field(metadata=_(_FILE))
    fix: str = field(metadata=_("the id of a fix that check answered"))
    write: bool = field(default=False, metadata=_("write the file; otherwise the difference is shown only"))
    unverified: bool = field(default=False, metadata=_("also a fix that its trial did not verify"))
    seconds: float = _SECONDS


@dataclass(frozen=True, slots=True)
class CodesArguments:
    code: str = field(default="", metadata=_("such as FL101; empty: all codes"))


def schema(cls: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    return {
        "type": "object",
        "properties": {f.name: _property(f, hints[f.name]) for f in fields},
        "required": [f.name for f in fields if f.default is dataclasses.MISSING],
        "additionalProperties": False,
    }


def _property(about: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    default = {} if about.default in (dataclasses.MISSING, None, ()) else {"default": about.default}
    return {**_kind(hint), **about.metadata.get("schema", {}), **default}


def _kind(hint: Any) -> dict[str, Any]:
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (typing.Union, types.UnionType):
        return _kind(inner[0])
    if origin is tuple:
        return {"type": "array", "items": _kind(inner[0])}
    return schema(hint)


def read(cls: type[T], given: Any, where: str = "") -> T:
    """``given``, JSON, as the arguments of a tool. Raises ToolError for what the schema does not allow."""
    if not isinstance(given, dict):
        raise ToolError(f"{where or 'the arguments'}: an object is needed, not {_shown(given)}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := [name for name in given if name not in fields]:
        raise ToolError(f"{where}{unknown[0]} is no argument; there are {', '.join(fields)}")
    for name, about in fields.items():
        if about.default is dataclasses.MISSING and name not in given:
            raise ToolError(
                f"{where}{name} is missing: {about.metadata.get('schema', {}).get('description', 'a string')}"
            )
    return cls(**{name: _value(fields[name], hints[name], value, f"{where}{name}") for name, value in given.items()})


def _value(about: dataclasses.Field[Any], hint: Any, value: Any, where: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(about, inner[0], value, where)
    if origin is Literal:
        if value not in inner:
            raise ToolError(f"{where} is {_shown(value)}: give one of {', '.join(repr(i) for i in inner if i)}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ToolError(f"{where} is {_shown(value)}: give a list")
        return tuple(read(inner[0], item, f"{where}[{number}].") for number, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ToolError(f"{where} is {_shown(value)}: give a {_NAMES[hint]}")
    limits = about.metadata.get("schema", {})
    if hint in (int, float):
        low, above, high = (limits.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
        within = (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high)
        if not within:  # NaN, too
            least = f"{low} or more" if low is not None else f"more than {above}"
            raise ToolError(f"{where} is {value}: give {least}{f', {high:g} at most' if high is not None else ''}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
