"""Guards in words: when a compiled function is compiled again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .report import Guard, Symbol

_SIZE = re.compile(r"\b([A-Za-z_][\w.]*)\.(?:shape\[0\]|size\(0\))")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
_REMAINDER = re.compile(r"(?:Python)?Mod\(((?:\w|\.|\[\d+\]|len\(\w+\))+), (\w+)\)")
_TENSOR = re.compile(r"(?P<tensor>[^\[]+\[.*?\]) on (?P<device>[^,]+)(?P<more>.*)", re.DOTALL)
_CALLED = re.compile(r"(Eq|Ne)\((.*), ([^,()]*)\)")
_OPPOSITE = {"==": "≠", "!=": "=", ">=": "<", "<=": ">", "<": "≥", ">": "≤"}
_COMPARED = re.compile(r"(?P<left>.*?) (?P<relation>==|!=|>=|<=|<|>) (?P<right>.*)", re.DOTALL)
_TURNED = (  # what holds, and what does not any more
    (" is not marked", " is marked"), (" are not marked", " are marked"), (" is not ", " is "), (" not in ", " in "),
    (" in ", " not in "),
    (" does not define ", " defines "), (" has no attribute ", " has an attribute "), (" has no ", " has "), (" is ", " is not "),
)  # fmt: skip


def recompiled_when(guard: Guard, symbols: Iterable[Symbol] = ()) -> str:
    """The condition of ``guard`` the other way round, in the words of the program: ``len(b) ≠ len(a)`` where it asks for
    ``b.shape[0] == n``. Names of ``symbols`` become what they measure."""
    text = guard.expression
    if guard.kind == "TENSOR" and text.startswith(f"{guard.source}: "):
        return _tensor(guard.source, text[len(guard.source) + 2 :])
    if text.startswith("no "):  # "no global is named x", "no hooks in x"
        return f"a {text[3:]}" if text.startswith("no global") else f"there are {text[3:]}"
    if guard.kind == "SHAPE":
        text = _lengths(text, _measured(guard, symbols))
    if called := _CALLED.fullmatch(text):
        return f"{called[2]} {'≠' if called[1] == 'Eq' else '='} {called[3]}"
    if not re.match(r"(And|Or|Not)\(", text) and (compared := _COMPARED.fullmatch(text)):
        opposite = "is not" if compared["right"] in ("True", "False", "None") else _OPPOSITE[compared["relation"]]
        return f"{compared['left']} {opposite} {compared['right']}"
    for holds, does_not in _TURNED:
        before, found, after = text.rpartition(holds)
        if found:
            return f"{before}{does_not}{after}"
    return f"this holds no longer: {text}"


def _measured(guard: Guard, symbols: Iterable[Symbol]) -> dict[str, str]:
    """What each symbol measures. Each frame of a function has its own: the one that ``guard`` is about counts."""
    found: dict[str, str] = {}
    for symbol in symbols:
        root = re.match(r"\w*", symbol.source)
        own = root is not None and root[0] in guard.roots and not guard.expression.startswith(f"{symbol.source} ")
        if own or symbol.name not in found:
            found[symbol.name] = symbol.source
    return found


def _lengths(text: str, sources: Mapping[str, str]) -> str:
    """Sizes named by their symbols, as the program asks for them."""
    named = _WORD.sub(lambda word: sources.get(word[0], word[0]), text)
    return _REMAINDER.sub(r"\1 % \2", _SIZE.sub(r"len(\1)", named))


def _tensor(source: str, text: str) -> str:
    """``float32[*, 3] on cpu, requires grad``."""
    found = _TENSOR.fullmatch(text)
    if found is None:
        return f"{source} is not {text}"
    more = found["more"].removeprefix(", ")
    strides = re.match(r"strides \(.*?\)", more)
    needs_gradient = "requires grad" in more
    parts = [f"{source} is no {found['tensor']} on {found['device']}"]
    parts += [f"has other strides than {strides[0][8:]}"] if strides else []
    parts.append(f"requires {'no' if needs_gradient else 'a'} gradient")
    return ", or ".join(parts)
