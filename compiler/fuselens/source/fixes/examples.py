"""Inputs that a check assumed, written down: as ``fuselens.example`` above a function, or as ``example_inputs=``.

They are made by a lambda, so that the program's own run neither allocates them nor draws random numbers for them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ...record.report import Edit, Fix, Inputs, Span
from ..discovery import Definition, Target
from .source import Source

_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]")
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u8": "uint8", "bool": "bool", "c64": "complex64", "c128": "complex128",
}  # fmt: skip
_CALLED = "the check called it with such inputs"

Spell = Callable[[str], str]


def example_fixes(source: Source, qualname: str, inputs: Inputs) -> Iterator[Fix]:
    """States ``inputs`` of the function ``qualname``. Nothing where one of them cannot be written, or there is no place."""
    targets = [t for t in source.targets if t.annotated.qualname == qualname]
    if len(targets) != 1:
        return
    target, imports = targets[0], dict[str, Edit]()

    def spell(name: str) -> str:
        text, needed = source.spelled(name, target.function or source.tree)
        imports.update((edit.replacement, edit) for edit in needed)
        return text

    made = _made(inputs, spell)
    call = _compiling(source, target)
    if made is None:
        return
    if call is not None:
        yield Fix(
            "Write the assumed inputs: example_inputs=",
            (*imports.values(), _extended(source, call, made)),
            True,
            _CALLED,
        )
    elif isinstance(function := target.function, Definition) and _is_made(source, target):
        name = spell("fuselens.example")
        line = f"{source.indentation(function)}@{name}({made})\n"
        edit = Edit(Span(source.filename, function.lineno, 0, function.lineno, 0), line)
        yield Fix(f"Write the assumed inputs: @{name}", (*imports.values(), edit), True, _CALLED)


def _compiling(source: Source, target: Target) -> ast.Call | None:
    """A call of ``fuselens.compile``, which takes inputs, that is no decorator."""
    function = source.at(target.annotated.decorator_span, ast.expr)
    call = source.parents.get(function) if function is not None else None
    decorates = target.annotated.decorator_span.line < target.annotated.span.line
    if decorates or not isinstance(call, ast.Call) or source.dotted(call.func) != "fuselens.compile":
        return None
    return None if any(k.arg in ("example_inputs", None) for k in call.keywords) or not call.args else call


def _extended(source: Source, call: ast.Call, made: str) -> Edit:
    last = max(map(source.span, [*call.args, *(k.value for k in call.keywords)]))
    end = Span(last.file, last.end_line, last.end_column, last.end_line, last.end_column)
    return Edit(end, f", example_inputs={made}")


def _is_made(source: Source, target: Target) -> bool:
    """Whether a check finds what a function hangs on: for a decorated method it makes an instance, without arguments."""
    if target.annotated.kind != "method" or target.owner is None:
        return True
    constructor = source.method(target.owner, "__init__")
    given = constructor[0].args if constructor is not None else None
    return given is None or len(given.posonlyargs) + len(given.args) - 1 <= len(given.defaults)


def _made(inputs: Inputs, spell: Spell) -> str | None:
    """``lambda: (torch.randn(16, 8), 2.0)``; with a second, a dict, where some are given by name."""
    texts = [(value, _value(value.type, spell)) for value in inputs.values]
    if any(text is None for _, text in texts):
        return None
    args = _tuple(text for value, text in texts if text is not None and not value.by_name)
    named = ", ".join(f'"{value.parameter}": {text}' for value, text in texts if value.by_name)
    return f"lambda: ({args}, {{{named}}})" if named else f"lambda: {args}"


def _tuple(texts: Iterator[str]) -> str:
    every = list(texts)
    return f"({every[0]},)" if len(every) == 1 else f"({', '.join(every)})"


def _value(described: str, spell: Spell) -> str | None:
    """An expression for what a report describes; None where that does not say enough."""
    if tensor := _TENSOR.fullmatch(described):
        return _tensor(tensor[1], tensor[2], spell)
    if described.startswith("(") and (parts := _parts(described[1:-1])):
        texts = [_value(part, spell) for part in parts]
        return None if None in texts else _tuple(text for text in texts if text is not None)
    try:
        ast.literal_eval(described)
    except (ValueError, SyntaxError):
        return None
    return described


def _tensor(dtype: str, sizes: str, spell: Spell) -> str | None:
    """Random numbers, or zeros, which are valid positions and classes."""
    if dtype not in _DTYPES:
        return None
    shape = sizes or "()"
    if dtype == "f32":
        return f"{spell('torch.randn')}({shape})"
    made = "torch.randn" if dtype in ("f64", "f16", "bf16", "c64", "c128") else "torch.zeros"
    return f"{spell(made)}({shape}, dtype={spell(f'torch.{_DTYPES[dtype]}')})"


def _parts(text: str) -> list[str]:
    """``f32[2, 3], (1, 2)`` cut at its outer commas."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
