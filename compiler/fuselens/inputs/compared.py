"""Two values that should be alike, element by element: how far apart they are, and where they first differ."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..record.report import Compared

# relative and absolute tolerances by dtype: twice torch.testing's defaults for float32 allow a different summation order
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-9), torch.float32: (2e-5, 2e-5), torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2),
    torch.complex64: (2e-5, 2e-5), torch.complex128: (1e-7, 1e-9),
}  # fmt: skip
MOST_ROWS = 300  # of one kind; whatever differs is always among them
_MOST_TEXT = 80  # characters of a value that is no tensor
_WHAT = ("dtype", "shape", "device", "requires_grad")


@dataclass(frozen=True, slots=True)
class Closeness:
    """``absolute`` and ``relative`` are the largest differences of finite elements, 0 where nothing is to be subtracted;
    ``first`` is the index of the first element that differs."""

    differing: int = 0
    absolute: float = 0.0
    relative: float = 0.0
    first: tuple[int, ...] | None = None
    eager: Any = None  # the elements there
    compiled: Any = None

    def text(self, elements: int) -> str:
        """Of two that differ, among so many elements."""
        count = f"{self.differing} of {elements} elements differ"
        return f"{count}, first at {self.first}: eager {self.eager}, compiled {self.compiled}"


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without code of its class, in the layout that all operators know."""
    usual = tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)
    return usual.to_dense() if usual.is_mkldnn else usual


def unlike(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """What keeps two tensors from being compared by their elements; "" for none."""
    for what in _WHAT:
        e, a = getattr(expected, what), getattr(actual, what)
        if e != a:
            return f"{what} differs: eager {e}, compiled {a}"
    return ""


def closeness(expected: torch.Tensor, actual: torch.Tensor) -> Closeness:
    """Of two tensors that are not :func:`unlike`."""
    if expected.numel() == 0 or expected.is_meta:
        return Closeness()
    if expected.layout in _SPARSE:
        expected, actual = expected.detach().to_dense(), actual.detach().to_dense()
    if torch.equal(expected, actual):  # most are, and what follows takes long
        return Closeness()
    absolute = relative = 0.0
    if expected.dtype in TOLERANCE:
        allowed, least = TOLERANCE[expected.dtype]
        wide = torch.complex128 if expected.is_complex() else torch.float64
        e, a = expected.detach().to(wide), actual.detach().to(wide)
        finite = torch.isfinite(e) & torch.isfinite(a)
        error, size = (e - a).abs()[finite], e.abs()[finite]
        if error.numel():
            absolute = float(error.max())
            relative = float((error / size)[size > 0].amax()) if bool((size > 0).any()) else 0.0
        scale = max(1.0, float(size.max()) if size.numel() else 1.0)
        close = torch.isclose(a, e, rtol=allowed, atol=least * scale, equal_nan=True)
    else:
        close = expected == actual
    if bool(close.all()):
        return Closeness(0, absolute, relative)
    at = tuple((~close).nonzero()[0].tolist())
    return Closeness(int((~close).sum()), absolute, relative, at, expected[at].item(), actual[at].item())


def table(
    expected: Mapping[str, Any], actual: Mapping[str, Any], arguments: Sequence[str], written: Sequence[str],
    excused: Mapping[str, str],
) -> tuple[list[Compared], int]:  # fmt: skip
    """The rows of two observations (see :func:`.comparison.observe`): the result, each gradient, the inputs and variables
    that were ``written``, or differ; and how many more agree. ``arguments`` names the tensors among the inputs; ``excused``
    says why a difference is not held against the compiled call, by where it is."""
    rows = [replace(row, kind="value") for row in _rows("result", expected["result"], actual["result"])]
    rows = [_excused(row, excused.get("result", "")) for row in rows]
    for key, value in expected["gradient"].items():
        name = place_of("gradient", key, arguments)
        rows += _of(name, "gradient", value, actual["gradient"].get(key), excused.get(f"gradient {key}", ""))
    for number, (before, after) in enumerate(zip(expected["input"], actual["input"], strict=True)):
        where, name = f"input {number}", place_of("input", str(number), arguments)
        found = _of(name, "state", before, after, excused.get(where, ""))
        rows += [row for row in found if where in written or not row.agrees]
    for path, value in expected["state"].items():
        name = place_of("state", path, arguments)
        if path in written or path not in actual["state"]:
            rows += _of(name, "state", value, actual["state"].get(path), excused.get(f"state {path}", ""))
        else:
            rows += [row for row in _of(name, "state", value, actual["state"][path], "") if not row.agrees]
    return _few(rows)


def argument_names(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """What the tensors among the inputs are called, in their order: ``x``, ``pair[0]``."""
    try:
        bound = inspect.signature(getattr(fn, "forward", fn)).bind(*args, **kwargs)
        given = list(bound.arguments.items())
        if [id(v) for _, v in given] != [id(v) for v in (*args, *kwargs.values())]:
            return []  # gathered into *args, or in another order
    except (TypeError, ValueError):
        return []
    return [name for parameter, value in given for name, _ in _tensors(parameter, value)]


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(value):
            yield from _tensors(f"{name}[{key}]", item)


def place_of(what: str, key: str, names: Sequence[str]) -> str:
    """What of an observation is at a key, in words: ``gradient of weight``, ``x afterwards``. ``names`` are those of the tensors
    among the inputs."""
    number = key.removeprefix("argument ")
    known = number.isdigit() and int(number) < len(names) and (what == "input" or number != key)
    name = names[int(number)] if known else f"argument {key}" if what == "input" else key
    return f"gradient of {name}" if what == "gradient" else f"{name.removeprefix('module_under_check.')} afterwards"


def _of(name: str, kind: str, expected: Any, actual: Any, excuse: str) -> list[Compared]:
    return [_excused(replace(row, kind=kind), excuse) for row in _rows(name, expected, actual)]


def _excused(row: Compared, why: str) -> Compared:
    return replace(row, agrees=True, note=why) if why and not row.agrees else row


def _rows(name: str, expected: Any, actual: Any) -> list[Compared]:
    """A row for each tensor, and for each other value, of two structures."""
    if isinstance(expected, torch.Tensor) and type(expected) is type(actual):
        return [_row(name, plain(expected), plain(actual))]
    alike = type(expected) is type(actual)
    if alike and isinstance(expected, dict) and list(expected) == list(actual):
        return [row for key in expected for row in _rows(f"{name}[{key!r}]", expected[key], actual[key])]
    if alike and isinstance(expected, (list, tuple)) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [row for key, (e, a) in pairs for row in _rows(f"{name}[{key}]", e, a)]
    if alike and type(expected) is float:
        made = _row(name, *(torch.tensor(v, device="cpu") for v in (expected, actual)))
        return [replace(made, dtype="float", first=None, eager=_text(expected), compiled=_text(actual))]
    try:
        agrees = alike and bool(expected == actual or expected is actual or expected != expected)
    except Exception:  # noqa: BLE001 - a user's __eq__ may raise
        agrees = True
    words = (_text(expected), _text(actual))
    return [Compared(name, "value", agrees, type(expected).__name__, eager=words[0], compiled=words[1])]


def _row(name: str, expected: torch.Tensor, actual: torch.Tensor) -> Compared:
    row = Compared(
        name, "value", True, str(expected.dtype).removeprefix("torch."), tuple(expected.shape), expected.numel()
    )
    if why := unlike(expected, actual):
        return replace(row, agrees=False, note=why)
    found = closeness(expected, actual)
    comparable = expected.dtype in TOLERANCE
    return replace(
        row, agrees=not found.differing, differing=found.differing, first=found.first,
        max_absolute=found.absolute if comparable else None, max_relative=found.relative if comparable else None,
        eager="" if found.first is None else _text(found.eager),
        compiled="" if found.first is None else _text(found.compiled),
    )  # fmt: skip


def _text(value: Any) -> str:
    try:
        text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def _few(rows: list[Compared]) -> tuple[list[Compared], int]:
    kept, seen = list[Compared](), dict[str, int]()
    for row in rows:
        seen[row.kind] = seen.get(row.kind, 0) + 1
        if seen[row.kind] <= MOST_ROWS or not row.agrees:
            kept.append(row)
    return kept, len(rows) - len(kept)
