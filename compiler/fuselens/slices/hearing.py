"""What a program calls its compiled functions with, call by call: heard while the program is evaluated.

An evaluation that only wants to know what to compile ends at the first call. With a :class:`Hearing` it goes on: loops go round more
often, a loader gives its first batches and its last one, and each call is kept with what held around it. Calls that guards cannot tell
apart are kept once and counted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import api, torch_private
from ..capture.classify import is_installed
from ..record.report import Span
from ..sandbox import instruction_span
from .unknown import Unknown

ROUNDS = 64  # of a loop, while there is time
FEW_ROUNDS = 3  # of a loop, after half of the time
_DIFFERENT = 48  # calls of a function that are kept
_WHOLE = 8  # batches of a loader that are all looked at
_FIRST = 3  # of a longer one; and the last
_PLAIN = (int, float, bool, str, type(None))


@dataclass(slots=True)
class State:
    """What guards read besides the arguments: plain attributes of modules and objects, ``requires_grad``, plain globals."""

    attributes: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    gradients: list[tuple[torch.Tensor, bool]] = field(default_factory=list)
    tensors: tuple[Any, ...] = ()  # dtypes and sizes of parameters, which are not put back

    def restore(self) -> None:
        for mapping, name, value in self.attributes:
            mapping[name] = value
        for tensor, required in self.gradients:
            if tensor.requires_grad != required and tensor.is_leaf:
                tensor.requires_grad_(required)

    @property
    def key(self) -> tuple[Any, ...]:
        told = tuple((id(m), n, type(v), v if v == v else "nan") for m, n, v in self.attributes)
        return told, tuple((id(t), r) for t, r in self.gradients), self.tensors


@dataclass(slots=True, eq=False)
class Heard:
    """One call, and how often it was made alike at its site. ``unknown`` says what of it is not known."""

    function: str
    site: Span | None  # None: of a recorded run
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    around: Any = None  # Surroundings
    state: State = field(default_factory=State)
    times: int = 1
    unknown: str = ""
    inside: str = ""  # the compiled function that makes the call, which becomes a part of that one


@dataclass(slots=True)
class Hearing:
    """``calls`` are in the order of the program. ``left_out`` says what was not looked at, ``guessed`` what was decided without
    knowing: what is foretold is not certain then. ``alike`` says what was left out because guards cannot tell it from what was looked at,
    where calls differ in nothing but tensors (:func:`counts`)."""

    calls: list[Heard] = field(default_factory=list)
    left_out: dict[str, None] = field(default_factory=dict)
    guessed: dict[str, None] = field(default_factory=dict)
    alike: dict[str, None] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _known: dict[Any, Heard] = field(default_factory=dict)
    _kept: dict[str, int] = field(default_factory=dict)
    _inside: list[str] = field(default_factory=list)

    def name(self, compiled: Any, name: str) -> None:
        self._names[id(compiled)] = name

    def called(
        self, compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any], around: Any, unknown: str = ""
    ) -> None:
        """Keeps a call of what ``compiled`` stands for."""
        name, site = self._names.get(id(compiled)), _site()
        if name is None or site is None:
            return
        inside = self._inside[-1] if self._inside else ""
        state = State() if unknown or inside else state_of(compiled.target, args, kwargs)
        told = None if unknown or inside else (_key((args, kwargs)), state.key, _mode(around))
        key = name, site, id(compiled.target), told, unknown, inside
        if (known := self._known.get(key)) is not None:
            known.times += 1
            return
        if self._kept.get(name, 0) >= _DIFFERENT:
            self.left_out[f"calls of `{name}` after {_DIFFERENT} different ones"] = None
            return
        self._kept[name] = self._kept.get(name, 0) + 1
        if told is not None:
            aliases: dict[int, Any] = {}
            args, kwargs = torch_private.PYTREE.tree_map(lambda v: _alias(v, aliases), (args, kwargs))
        else:
            args, kwargs = (), {}
        heard = Heard(name, site, compiled.target, args, kwargs, around, state, 1, unknown, inside)
        self._known[key] = heard
        self.calls.append(heard)

    @contextlib.contextmanager
    def within(self, compiled: Any) -> Iterator[None]:
        """Calls in the block are made by what ``compiled`` stands for."""
        self._inside.append(self._names.get(id(compiled), ""))
        try:
            yield
        finally:
            self._inside.pop()

    def entered(self, compiled: Any) -> contextlib.AbstractContextManager[None]:
        return self.within(compiled) if id(compiled) in self._names else contextlib.nullcontext()

    def skipped(self, what: str) -> None:
        self.left_out[what] = None

    def guess(self, what: str) -> None:
        self.guessed[what] = None

    def loader(self) -> tuple[Any, str, Any]:
        """What to replace so that a loader gives its first batches and its last one."""
        kind = torch.utils.data.DataLoader
        real = kind.__iter__

        @functools.wraps(real)
        def batches(loader: Any) -> Any:
            indices = _indices(loader)
            if indices is None:
                return real(loader)
            if len(indices) <= _WHOLE:
                return real(loader)
            chosen = _chosen(indices)
            note = self.alike if _are_alike(loader) else self.left_out
            note[f"{len(indices) - len(chosen)} of {len(indices)} batches of a loader"] = None
            return (loader.collate_fn([loader.dataset[i] for i in some]) for some in chosen)

        return kind, "__iter__", batches


def _indices(loader: Any) -> list[Any] | None:
    """The batches of a loader, by indices; None where it has no such."""
    if getattr(loader, "batch_sampler", None) is None or isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return None
    return list(loader.batch_sampler)


def _chosen(indices: list[Any]) -> list[Any]:
    """The first batches, the first one of each other length, and the last."""
    lengths = {len(some): k for k, some in reversed(list(enumerate(indices)))}
    return [indices[k] for k in sorted({*range(_FIRST), *lengths.values(), len(indices) - 1})]


def _are_alike(loader: Any) -> bool:
    """Whether batches of one length have the same sizes and types: they are rows of tensors."""
    data = loader.dataset
    while type(data) is torch.utils.data.Subset:
        data = data.dataset
    return type(data) is torch.utils.data.TensorDataset and loader.collate_fn is torch.utils.data.default_collate


# --- where a call is --------------------------------------------------------------------------------------------------

_OURS = api.__file__.rpartition("api.py")[0]


def _site() -> Span | None:
    """The call expression of the program that is under way, innermost."""
    frame: types.FrameType | None = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, "<")) and not is_installed(file):
            return instruction_span(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


# --- what tells calls apart -------------------------------------------------------------------------------------------


def _key(value: Any) -> Any:
    """What guards may tell apart. Objects are told apart by identity: whoever is kept stays alive."""
    if isinstance(value, torch.Tensor):
        marks = torch_private.size_marks(value)
        return (
            type(value), value.dtype, tuple(value.shape), tuple(value.stride()) if value.layout is torch.strided else (),
            str(value.device), value.requires_grad, value.is_leaf, repr(marks),
        )  # fmt: skip
    if type(value) in _PLAIN:
        return type(value), repr(value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, dict):
        return type(value), tuple((repr(k), _key(v)) for k, v in value.items())
    return type(value), id(value)


def counts(calls: Iterable[Heard]) -> bool:
    """Whether calls of one function differ in more than tensors and modes: in numbers, texts and attributes, which may count."""
    seen: dict[int, Any] = {}
    for call in calls:
        plain = [(type(v), repr(v)) for v in _flat((call.args, call.kwargs)) if type(v) in _PLAIN]
        held = [(id(m), n, repr(v)) for m, n, v in call.state.attributes if n != "training"]
        if seen.setdefault(id(call.target), (plain, held)) != (plain, held):
            return True
    return False


def _mode(around: Any) -> tuple[Any, ...]:
    return around.grad, around.inference, around.autocast


def _alias(value: Any, made: dict[int, Any]) -> Any:
    """The tensor as it is laid out now, whatever the program does to it later. One that is given twice stays one."""
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return value
    if id(value) not in made:
        with torch.inference_mode(value.is_inference()), torch.enable_grad():
            alias = value.detach()
            if value.requires_grad:
                alias.requires_grad_()
            if not value.is_leaf:
                alias = alias.clone()
        vars(alias).update(vars(value))
        made[id(value)] = alias
    return made[id(value)]


def state_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
    """What guards of a call may read of modules, objects and globals."""
    state = State()
    facts: list[Any] = []
    seen: set[int] = set()
    for value in itertools.chain(_around(target), _flat((args, kwargs))):
        if id(value) in seen or isinstance(value, (torch.Tensor, Unknown, type, types.ModuleType)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            for module in value.modules():
                _plain_of(vars(module), state)
            for tensor in itertools.chain(value.parameters(), value.buffers()):
                state.gradients.append((tensor, tensor.requires_grad))
                facts.append((tensor.dtype, tuple(tensor.shape)))
        elif type(getattr(value, "__dict__", None)) is dict and not callable(value):
            _plain_of(vars(value), state)
    for function in _functions(target):
        names = set(_names(function.__code__)) & function.__globals__.keys()
        held = function.__globals__
        state.attributes += [(held, name, held[name]) for name in sorted(names) if type(held[name]) in _PLAIN]
    state.tensors = tuple(facts)
    return state


def _plain_of(mapping: dict[str, Any], state: State) -> None:
    state.attributes += [(mapping, name, value) for name, value in mapping.items() if type(value) in _PLAIN]


def _around(target: Any) -> Iterator[Any]:
    """The target, what it is bound to, and what its code finds by name."""
    yield target
    while isinstance(target, functools.partial):
        yield from _flat((target.args, target.keywords))
        target = target.func
    yield getattr(target, "__self__", None)
    for function in _functions(target):
        yield from (function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):
                yield cell.cell_contents


def _functions(target: Any) -> Iterator[types.FunctionType]:
    """The function that is compiled, and those of the same file that it names."""
    first = function_of(target)
    if first is None:
        return
    waiting, seen = [first], set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        for name in _names(function.__code__):
            other = function.__globals__.get(name)
            if isinstance(other, types.FunctionType) and other.__globals__ is function.__globals__:
                waiting.append(other)


def function_of(target: Any) -> types.FunctionType | None:
    """The Python function whose frame is compiled."""
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, torch.nn.Module):
        target = getattr(type(target), "forward", None)
    if isinstance(target, types.MethodType):
        target = target.__func__
    if not isinstance(target, types.FunctionType):
        target = getattr(type(target), "__call__", None)  # noqa: B004
    return target if isinstance(target, types.FunctionType) else None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(tuple(value.values()))
    else:
        yield value
