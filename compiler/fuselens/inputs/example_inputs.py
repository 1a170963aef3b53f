"""Example inputs of an annotated function, made from what its author wrote and without running it.

First that applies: ``@fuselens.example(...)`` or ``example_inputs=``; jaxtyping annotations; defaults and plain
annotations. Named axes get a size each: distinct, so that two axes are never equal by accident and specialised
together, and above 1, so that nothing broadcasts by accident.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch

from ..record.report import Origin
from ..system.signatures import annotations_of, signature

# Multiples of eight first, because sizes are split into heads and vector lanes; then of four.
_SIZES = (16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 20, 28, 36, 44, 52, 60, 68, 76, 84, 92)
_ODD = {-1: (17, 31, 45, 59, 73, 87, 101, 115, 129, 143), -2: (3, 5, 7, 9, 11, 13, 15, 19, 21, 23)}  # by variant
_RUN = (2, 3)  # what "*batch" and "..." stand for: leading axes multiply, so they are small, and they often broadcast
_SEED = 0x5EED
_SCALARS: dict[type, Any] = {float: 1.5, int: 3, bool: True, str: "", complex: 1 + 2j, bytes: b"", type(None): None}
# Among the dtypes that an annotation admits, the first of these is chosen.
_DTYPES = (
    "float32", "int64", "bool", "complex64", "bfloat16", "float16", "float64", "int32", "uint8", "int16", "int8",
    "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NoExampleInputs(Exception):
    """The source does not say what the inputs look like. The message names the parameter and what is missing."""


_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class ExampleInputsFailed(Exception):
    """What the source says about the inputs raised an exception (``__cause__``) or makes no sense."""


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """Inputs for one call. ``symbols`` maps named axes to the chosen sizes; ``dynamic`` maps a tensor parameter to
    its named axes (dimension → axis name), which are the sizes that callers expect to vary."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    symbols: dict[str, int] = field(default_factory=dict)
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)
    origin: Origin = "annotations"


def inputs_for(
    target: Callable[..., Any] | torch.nn.Module,
    example: tuple[Any, ...] | list[Any] | Callable[[], Any] | None = None,
    *,
    owner: type | None = None,
    variant: int = 0,
    sizes: Mapping[str, int] = _NO_SIZES,
) -> ExampleInputs:
    """Example inputs for ``target``. ``example`` is what ``example_inputs=`` was given. ``variant`` counts other values
    and other sizes of named axes, where annotations leave them open and ``sizes`` do not say them; -1 and -2 have odd sizes.

    ``owner`` is the class of a method that takes ``self``: an instance is made and becomes the first argument, unless
    the author's own example starts with one. Raises NoExampleInputs and ExampleInputsFailed.
    """
    stated = _stated(target, example)
    if stated is not None:
        args, kwargs, origin = stated
        if owner is not None and not (args and isinstance(args[0], owner)):
            args = (instance_of(owner), *args)
        _check_binding(target, args, kwargs)
        return ExampleInputs(args, kwargs, origin=origin)
    return _Signature(target, owner, variant, sizes).inputs()


# --- what the author states -----------------------------------------------------------------------------------------


def _stated(target: Any, example: Any) -> tuple[tuple[Any, ...], dict[str, Any], Origin] | None:
    marked = _marked(target)
    if marked is not None:
        return *_call(marked), "fuselens.example"
    if example is not None:
        return *_call(example), "example_inputs"
    return None


def has_example(target: Any, example: Any) -> bool:
    """Whether the author states example inputs."""
    return _marked(target) is not None or example is not None


def _marked(target: Any) -> Any:
    """What ``@fuselens.example`` left on a function, or on a module or its ``forward``."""
    marked = getattr(target, "__fuselens_example__", None)
    if marked is None and isinstance(target, torch.nn.Module):
        marked = getattr(target.forward, "__fuselens_example__", None)
    return marked


def _call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Accepts ``(a, b)``, ``[a, b]``, ``((a, b), {"c": …})``, a mapping of keywords, and callables returning these."""
    if callable(example):
        try:
            example = example()
        except Exception as error:
            raise ExampleInputsFailed(f"{type(error).__name__}: {error}") from error
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if not isinstance(example, tuple | list):
        raise ExampleInputsFailed(f"expected a tuple of arguments, got {type(example).__name__}")
    if len(example) == 2 and isinstance(example[0], tuple | list) and _is_keywords(example[1]):
        return tuple(example[0]), dict(example[1])
    return tuple(example), {}


def _is_keywords(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) for k in value)


def _check_binding(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Says in the author's terms when the stated inputs do not fit the signature; a signature may not exist."""
    try:
        described = signature(target.forward if isinstance(target, torch.nn.Module) else target)
    except (TypeError, ValueError):
        return
    try:
        described.bind(*args, **kwargs)
    except TypeError as error:
        raise ExampleInputsFailed(f"they do not fit the signature: {error}") from error


def instance_of(owner: type) -> Any:
    """An instance of the class of a method, made without arguments."""
    try:
        signature(owner).bind()
    except TypeError as error:
        raise NoExampleInputs(f"`self`: `{owner.__qualname__}()` cannot be made without arguments ({error})") from error
    except ValueError:
        pass  # no signature, e.g. a class written in C: try
    try:
        return owner()
    except Exception as error:
        raise ExampleInputsFailed(f"`{owner.__qualname__}()` raised {type(error).__name__}: {error}") from error


# --- annotations ----------------------------------------------------------------------------------------------------


class _Signature:
    """The signature of one function, and the sizes and values chosen for it so far."""

    def __init__(
        self, target: Callable[..., Any] | torch.nn.Module, owner: type | None, variant: int, sizes: Mapping[str, int]
    ) -> None:
        function = target.forward if isinstance(target, torch.nn.Module) else target
        self.owner = owner
        self.module = target if isinstance(target, torch.nn.Module) else None
        try:
            self.parameters = list(signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise NoExampleInputs(f"its signature cannot be read ({error})") from error
        self.function = inspect.unwrap(function)
        self.hints = _type_hints(self.function)
        self.sizes = _Sizes(self._texts(), variant, sizes)
        self.values: dict[str, Any] = {}  # arguments so far, for axes such as "{self.width}"
        self.dynamic: dict[str, dict[int, str]] = {}
        self.generator = torch.Generator().manual_seed(_SEED + variant)
        self.described = False

    def inputs(self) -> ExampleInputs:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if self.module is not None:
            self.values["self"] = self.module
        for position, parameter in enumerate(self.parameters):
            if position == 0 and self.owner is not None:
                self.values[parameter.name] = instance_of(self.owner)
                args.append(self.values[parameter.name])
            elif parameter.kind in _VARIADIC:
                if parameter.kind is inspect.Parameter.VAR_POSITIONAL and parameter.name in self.hints:
                    args += [self._value(parameter) for _ in range(2)]
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                if parameter.default is _EMPTY:
                    kwargs[parameter.name] = self._value(parameter)
            elif parameter.default is _EMPTY:
                args.append(self._value(parameter))
            else:
                args.append(parameter.default)
                self.values[parameter.name] = parameter.default
        origin: Origin = "annotations" if self.described else "defaults"
        return ExampleInputs(tuple(args), kwargs, self.sizes.named, self.dynamic, origin)

    def _texts(self) -> Iterator[str]:
        for parameter in self.parameters:
            if parameter.default is _EMPTY:
                yield from _axis_texts(self.hints.get(parameter.name))

    def _value(self, parameter: inspect.Parameter) -> Any:
        name = parameter.name
        hint = self.hints.get(name, parameter.annotation)
        if hint is _EMPTY:
            raise NoExampleInputs(f"`{name}` has no annotation and no default")
        self.described = True
        self.values[name] = value = self._make(hint, name)
        return value

    def _make(self, hint: Any, name: str) -> Any:
        if isinstance(hint, typing.ForwardRef):  # inside of another annotation
            hint = _evaluated(hint, {})
        if isinstance(hint, _Unresolved):
            raise ExampleInputsFailed(f"the annotation of `{name}` raised {hint.reason}")
        if hint is None or (isinstance(hint, type) and hint in _SCALARS):
            return _SCALARS[type(None) if hint is None else hint]
        if _is_jaxtyping(hint):
            return self._array(hint, name)
        if (origin := typing.get_origin(hint)) is not None:
            return self._generic(hint, origin, name)
        if isinstance(hint, typing.NewType):
            return self._make(hint.__supertype__, name)
        if isinstance(hint, type):
            return self._of_class(hint, name)
        raise NoExampleInputs(f"`{name}` is annotated as {_show(hint)}, which says no shape or value")

    def _of_class(self, hint: type, name: str) -> Any:
        if issubclass(hint, torch.Tensor):
            raise NoExampleInputs(f"`{name}` is annotated as {hint.__name__} without a shape")
        if hint is torch.dtype:
            return torch.float32
        if hint is torch.device:
            return torch.device("cpu")
        if issubclass(hint, enum.Enum):
            if members := list(hint):
                return members[0]
        elif dataclasses.is_dataclass(hint):
            hints = _type_hints(hint)
            required = [f for f in dataclasses.fields(hint) if f.init and _has_no_default(f)]
            return hint(**{f.name: self._make(hints.get(f.name, f.type), f"{name}.{f.name}") for f in required})
        elif issubclass(hint, tuple) and hasattr(hint, "_fields"):
            hints = _type_hints(hint)
            return hint(*(self._make(hints.get(f, _EMPTY), f"{name}.{f}") for f in getattr(hint, "_fields", ())))
        elif issubclass(hint, torch.nn.Module):
            return instance_of(hint)
        raise NoExampleInputs(f"`{name}` is annotated as {hint.__qualname__}, which says no shape or value")

    def _generic(self, hint: Any, origin: Any, name: str) -> Any:
        arguments = typing.get_args(hint)
        if origin is Literal:
            return arguments[0]
        if origin is typing.Annotated:
            return self._make(arguments[0], name)
        if origin in (typing.Union, types.UnionType):
            return self._first_possible([a for a in arguments if a is not type(None)], name)
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                arguments = (arguments[0], arguments[0])
            return tuple(self._make(a, f"{name}[{i}]") for i, a in enumerate(arguments) if a != ())
        if origin in (list, Sequence, Iterable):
            return [self._make(arguments[0], f"{name}[{i}]") for i in range(2)]
        raise NoExampleInputs(f"`{name}` is annotated as {_show(hint)}, which says no shape or value")

    def _first_possible(self, hints: list[Any], name: str) -> Any:
        for last, hint in enumerate(hints, start=1 - len(hints)):
            try:
                return self._make(hint, name)
            except NoExampleInputs:
                if last == 0:
                    raise
        return None

    def _array(self, hint: Any, name: str) -> Any:
        if hint.array_type in (float, int, bool, complex):  # Float[float, ""]: a Python scalar
            return _SCALARS[hint.array_type]
        if isinstance(hint.array_type, type) and not issubclass(hint.array_type, torch.Tensor):
            raise NoExampleInputs(f"`{name}` is annotated as {_show(hint)}: only torch tensors are supported")
        dtype = _dtype(hint, name)
        shape, axes = self.sizes.shape(hint.dim_str, name, self.values)
        if axes:
            self.dynamic[name] = axes
        return random_tensor(shape, dtype, self.generator)


class _Sizes:
    """Sizes of axes, by jaxtyping's grammar: ``n``, ``4``, ``name=4``, ``*batch``, ``...``, ``_``, ``#n``, ``n+1``,
    ``{expression}``. The same name has the same size in every annotation of one signature."""

    def __init__(self, texts: Iterator[str], skipped: int = 0, chosen: Mapping[str, int] = _NO_SIZES) -> None:
        self.named: dict[str, int] = dict(chosen)
        self._chosen = frozenset(chosen)
        words = [word for text in texts for word in _tokens(text)]
        self._taken = {int(word) for word in words if word.isdecimal()}
        sizes = _ODD.get(skipped, _SIZES)
        self._free = itertools.islice((*sizes, *range(sizes[-1] + 12, 100_000, 8)), max(0, skipped), None)
        for name in dict.fromkeys(word for word in words if word.isidentifier()):
            self._size(name)
        self._avoid_coincidences([word for word in words if _is_expression(word)])

    def _avoid_coincidences(self, expressions: list[str]) -> None:
        """With ``"n m 2*n"``, n = 16 and m = 32 would make m equal to the third axis by accident: m moves on."""
        for _ in _SIZES:
            try:
                self._taken |= {self._evaluate(text, "", {}) for text in expressions}
            except ExampleInputsFailed:
                return  # reported when the parameter is reached
            clash = next((n for n, size in self.named.items() if size in self._taken and n not in self._chosen), None)
            if clash is None:
                return
            self.named[clash] = self._next()

    def shape(self, text: str, parameter: str, values: dict[str, Any]) -> tuple[tuple[int, ...], dict[int, str]]:
        """Sizes of the axes in ``text``, and which dimension has which name."""
        shape: list[int] = []
        axes: dict[int, str] = {}
        for word in _split_axes(text):
            word = word.rpartition("=")[2] if _is_documented(word) else word
            bare = word.lstrip("#*_?")
            variadic = word == "..." or "*" in word[: len(word) - len(bare)]
            anonymous = "_" in word[: len(word) - len(bare)] or word == "..." or not bare
            if variadic:
                shape += _RUN
            elif anonymous:
                shape.append(self._next())
            elif bare.isidentifier():
                axes[len(shape)] = bare
                shape.append(self._size(bare))
            else:
                shape.append(self._evaluate(bare, parameter, values))
        return tuple(shape), axes

    def _next(self) -> int:
        return next(size for size in self._free if size not in self._taken)

    def _size(self, name: str) -> int:
        if name not in self.named:
            self.named[name] = self._next()
        return self.named[name]

    def _evaluate(self, text: str, parameter: str, values: dict[str, Any]) -> int:
        """``4``, ``n+1``, ``2*n`` and ``{self.width}`` (an f-string field over the arguments)."""
        try:
            if "{" in text:
                text = str(eval(f"f{text!r}", {}, dict(values)))  # the author's own annotation, as jaxtyping does
            names = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
            size = eval(text, {}, {n: self._size(n) for n in sorted(names - {"min", "max", "abs", "sum"})})
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ExampleInputsFailed(f"the axis {text!r} of `{parameter}` raised {why}") from error
        if not isinstance(size, int) or size < 0:
            raise ExampleInputsFailed(f"the axis {text!r} of `{parameter}` is {size!r}, not a size")
        return size


def _is_documented(word: str) -> bool:
    """``rows=4``: a name for the reader in front of the axis proper (``==`` and friends are expressions)."""
    name, equals, rest = word.partition("=")
    return bool(equals) and name.lstrip("#*_?").isidentifier() and not rest.startswith("=")


def _split_axes(text: str) -> list[str]:
    """Axes are separated by spaces, but ``{x + 1}`` may contain some."""
    words: list[str] = []
    depth = 0
    for word in text.split():
        if depth:
            words[-1] += " " + word
        else:
            words.append(word)
        depth += word.count("{") - word.count("}")
    return words


def _tokens(text: str) -> list[str]:
    """The axes of ``text`` that have a size by name, number or expression."""
    words = (w.rpartition("=")[2] if _is_documented(w) else w for w in _split_axes(text))
    return [w.lstrip("#?") for w in words if w.lstrip("#?")[:1] not in ("*", "_", ".", "")]


def _is_expression(text: str) -> bool:
    if "{" in text:  # needs the arguments' values
        return False
    try:
        return not isinstance(ast.parse(text, mode="eval").body, ast.Constant | ast.Name)
    except SyntaxError:
        return False


def _axis_texts(hint: Any) -> Iterator[str]:
    """Every shape text inside an annotation, to learn the static sizes before named ones are chosen."""
    if _is_jaxtyping(hint):
        yield hint.dim_str
    for argument in typing.get_args(hint):
        yield from _axis_texts(argument)


def _is_jaxtyping(hint: Any) -> bool:
    """By what it offers, so that jaxtyping need not be installed here; its classes have no public base."""
    return isinstance(hint, type) and hasattr(hint, "dim_str") and hasattr(hint, "dtypes")


def _dtype(hint: Any, name: str) -> torch.dtype:
    if not isinstance(hint.dtypes, tuple | list):  # Shaped: any dtype
        return torch.float32
    admitted = [d for d in hint.dtypes if isinstance(d, str)]
    for candidate in (*_DTYPES, *admitted):
        dtype = getattr(torch, candidate, None)
        if candidate in admitted and isinstance(dtype, torch.dtype):
            return dtype
    raise NoExampleInputs(f"`{name}` is annotated as {_show(hint)}: torch has no such dtype")


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal floats; integers 0 and 1, which are valid indices and class labels nearly everywhere (0–255 for bytes,
    which are images). They are the same on every device; it is the default one that they are on."""
    if dtype.is_complex:
        made = torch.randn(shape, generator=generator, device="cpu", dtype=dtype)
    elif dtype.is_floating_point:
        made = torch.randn(shape, generator=generator, device="cpu")
    else:
        made = torch.randint(0, 256 if dtype == torch.uint8 else 2, shape, generator=generator, device="cpu")
    return made.to(torch.get_default_device(), dtype)


@dataclass(frozen=True, slots=True)
class _Unresolved:
    """An annotation in a string that could not be evaluated."""

    reason: str


def _type_hints(function: Any) -> dict[str, Any]:
    """Annotations with strings evaluated. One bad annotation must not spoil the others (``get_type_hints`` would)."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001  evaluates user text: anything may come
        pass
    function = getattr(function, "__func__", function)
    raw = annotations_of(function) if callable(function) else {}
    scope = getattr(function, "__globals__", None) or vars(inspect.getmodule(function) or types)
    return {name: _evaluated(hint, scope) for name, hint in raw.items()}


def _evaluated(hint: Any, scope: dict[str, Any]) -> Any:
    """An annotation, of which a string is evaluated, and what 3.14 could not evaluate is tried again for its reason."""
    try:
        if isinstance(hint, typing.ForwardRef) and sys.version_info >= (3, 14):
            return hint.evaluate()
        return eval(hint, dict(scope)) if isinstance(hint, str) else hint
    except Exception as error:  # noqa: BLE001  evaluates user text: anything may come
        return _Unresolved(f"{type(error).__name__}: {error}")


def _has_no_default(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _show(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
