"""Inputs that nobody states: the first candidates (:mod:`.candidates`) that a trial accepts, for a module or a function.

Of a module the first layer with parameters says the rank, the dtype and the channels; what comes later, the sizes:
``Conv2d(1, 32)`` … ``Linear(9216)`` takes images of 28 × 28. A trial of a module is on the meta device; one of a function calls
it on small tensors.
"""

from __future__ import annotations

import inspect
import itertools
import re
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .. import torch_private
from ..capture.hook.tensor_layout import describe
from ..system.console import quiet
from ..system.signatures import annotations_of, signature
from .candidates import LENGTH, Choice, Shape, choices
from .unknown import ASSUMED_SIZE, Sizes, Unknown, assumed_as, batch_of, sizes_of

_BATCH = 2
_OF_META = re.compile(r"\bmeta\b|unsupported scalarType|Meta")  # what is said of tensors without values
_MOST_NUMBERS = 1 << 25  # of a module that is tried with values
_MOST_SECONDS = 2.0  # of the processor's
_MOST_UNKNOWN = 8
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Call = tuple[tuple[Any, ...], dict[str, Any]]


def inferred(target: Callable[..., Any], refused: list[str] | None = None) -> tuple[Any, ...] | None:
    """A tensor (or number) for each required parameter of a module's ``forward``, or of a function; None where no trial succeeds:
    ``refused`` gets what the target said to the likeliest."""
    try:
        required = [
            p for p in signature(target.forward if isinstance(target, nn.Module) else target).parameters.values()
            if p.default is p.empty and p.kind not in _VARIADIC
        ]  # fmt: skip
    except (TypeError, ValueError):
        return None
    if not required or any(p.kind is p.KEYWORD_ONLY for p in required):
        return None
    made = completed(target, tuple(Unknown("") for _ in required), {}, refused)
    return None if made is None else made[0]


def inferred_of_class(forward: types.FunctionType, owner: type[nn.Module]) -> tuple[Any, ...] | None:
    """An instance of ``owner``, of which ``forward`` is that method, and what its layers take. What the constructor requires is a
    configuration that its annotation makes, or an assumed size."""
    try:
        given = {
            name: _default(hint) if isinstance(hint := annotations_of(owner.__init__).get(name), type) else assumed_as(name, Unknown(""))
            for name, p in signature(owner).parameters.items() if p.default is p.empty and p.kind not in _VARIADIC
        }  # fmt: skip
        module = owner(**given)
        vars(module)["forward"] = types.MethodType(forward, module)  # without what compiles it
        made = inferred(module)
    except Exception:  # noqa: BLE001  constructors of the program may raise anything
        return None
    vars(module).pop("forward", None)
    return None if made is None else (module, *made)


def _default(hint: type) -> Any:
    return ASSUMED_SIZE if hint is int else hint()


def completed(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], refused: list[str] | None = None
) -> Call | None:
    """The call with tensors (or numbers) in place of what is unknown in it; None where no trial succeeds."""
    leaves, form = torch_private.PYTREE.tree_flatten((args, kwargs))
    unknown = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Unknown)]
    if not 0 < len(unknown) <= _MOST_UNKNOWN:
        return None
    modules = [target] if isinstance(target, nn.Module) else _modules_of(target, leaves)
    trial = _OfModule(target) if isinstance(target, nn.Module) else _OfFunction(target)
    names = _names(target, leaves, args, kwargs)
    ends = time.process_time() + _MOST_SECONDS
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chosen in _proposals(leaves, unknown, names, modules):
            if time.process_time() > ends:
                return None
            if trial.accepts(_filled(leaves, unknown, chosen, trial.device), form):
                filled = _filled(leaves, unknown, chosen, _device_of(modules))
                return torch_private.PYTREE.tree_unflatten(filled, form)
            if refused is not None and not refused:
                refused.append(trial.refused)
    return None


def _proposals(
    leaves: list[Any], unknown: list[int], names: list[str], modules: list[nn.Module]
) -> Iterator[tuple[Choice, ...]]:
    """A choice for each unknown leaf, each once, with the sizes that are known; ``names`` are the leaves' parameters."""
    sizes = [sizes_of(leaves[i]) for i in unknown]
    known = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    batches = [n for n in (batch_of(leaves[i]) for i in unknown) if n]
    batch = next(iter(batches), known[0].shape[0] if known else _BATCH)
    likely = choices([names[i] for i in unknown], modules, known, batch)
    tried: set[tuple[Choice, ...]] = set()
    for chosen in itertools.chain(likely, itertools.product(*map(_of_known, sizes))):
        fitting = tuple(c for c in map(_of_sizes, chosen, sizes) if c is not None)
        if len(fitting) == len(chosen) and fitting not in tried:
            tried.add(fitting)
            yield fitting


def fits(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module takes a call, of which only its class is known to have taken it."""
    if not isinstance(target, nn.Module):
        return True
    leaves, form = torch_private.PYTREE.tree_flatten((args, kwargs))
    trial = _OfModule(target)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trial.accepts(_filled(leaves, [], [], trial.device), form)


def _of_known(sizes: Sizes | None) -> list[Choice]:
    """Tensors of the sizes that are known, whatever the layers take."""
    if sizes is None:
        return []
    whole = tuple(LENGTH if n is None else n for n in sizes)
    return [Shape(whole), Shape(whole, torch.int64, 2)]


def _of_sizes(choice: Choice, sizes: Sizes | None) -> Choice | None:
    """``choice`` with the sizes that are known; None where it is of another rank."""
    if sizes is None:
        return choice
    if not isinstance(choice, Shape) or len(choice.sizes) != len(sizes):
        return None
    merged = tuple(own if n is None else n for own, n in zip(choice.sizes, sizes, strict=True))
    return choice._replace(sizes=merged)


def _filled(leaves: list[Any], unknown: list[int], chosen: Sequence[Choice], device: torch.device | str) -> list[Any]:
    filled = list(leaves)
    if torch.device(device).type == "meta":
        filled = [leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in filled]
    for i, choice in zip(unknown, chosen, strict=True):
        filled[i] = choice.made(device) if isinstance(choice, Shape) else choice
    return filled


def _device_of(modules: Iterable[nn.Module]) -> torch.device | str:
    return next((p.device for module in modules for p in module.parameters()), torch.device("cpu"))


def _names(target: Any, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The parameter that each leaf belongs to."""
    function = target.forward if isinstance(target, nn.Module) else target
    try:
        positional = list(signature(function).parameters)
    except (TypeError, ValueError):
        positional = []
    positional += ["" for _ in args[len(positional) :]]
    count = torch_private.PYTREE.tree_leaves
    names = [name for name, value in zip(positional, args, strict=False) for _ in count(value)]
    names += [name for name, value in kwargs.items() for _ in count(value)]
    return names + [""] * (len(leaves) - len(names))


def _modules_of(function: Any, leaves: list[Any]) -> list[nn.Module]:
    """Those that a function is given, belongs to, closes over, or names."""
    found = [leaf for leaf in (*leaves, getattr(function, "__self__", None)) if isinstance(leaf, nn.Module)]
    code = getattr(inspect.unwrap(function), "__code__", None)
    if isinstance(code, types.CodeType):
        globals_ = getattr(inspect.unwrap(function), "__globals__", {})
        cells = getattr(inspect.unwrap(function), "__closure__", None) or ()
        values = [globals_.get(name) for name in code.co_names]
        values += [cell.cell_contents for cell in cells if cell != types.CellType()]
        found += [v for v in values if isinstance(v, nn.Module)]
    return found


# --- trials ---------------------------------------------------------------------------------------------------------


class _OfModule:
    """On the meta device, until the module asks for values."""

    refused = ""  # why the last trial was

    def __init__(self, module: nn.Module) -> None:
        self.device = "meta"
        self._module = module
        self._tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._numbers = sum(t.numel() for t in self._tensors.values())
        self._state = self._copied("meta")

    def _copied(self, device: str) -> dict[str, torch.Tensor]:
        tensors = self._tensors.items()
        if device == "meta":
            return {name: torch.empty_like(t, device=device) for name, t in tensors}
        return {name: t.detach().clone() for name, t in tensors}

    def accepts(self, leaves: list[Any], form: Any) -> bool:
        args, kwargs = torch_private.PYTREE.tree_unflatten(leaves, form)
        before = [(m, dict(vars(m))) for m in self._module.modules()]
        try:
            for module, attributes in before:
                if hasattr(attributes.get("forward"), "listens"):  # nobody hears of it
                    del vars(module)["forward"]
                module._forward_pre_hooks = type(module._forward_pre_hooks)()
            with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device(self.device):
                made = torch.func.functional_call(self._module, self._state, args, kwargs)
        except Exception as error:  # noqa: BLE001 - whatever the module says to this input
            if self.device == "meta" and _OF_META.search(str(error)) and self._numbers <= _MOST_NUMBERS:
                self.device, self._state = "cpu", self._copied("cpu")
                return self.accepts(_at(leaves, "cpu"), form)
            self.refused = _said(error, leaves)
            return False
        finally:
            for module, attributes in before:  # it may have kept what it was given
                vars(module).clear()
                vars(module).update(attributes)
        return not isinstance(made, Unknown)


def _at(leaves: list[Any], device: str) -> list[Any]:
    """The leaves with values, of any kind, where they had none."""
    return [
        torch.zeros_like(leaf, device=device) if isinstance(leaf, torch.Tensor) and leaf.is_meta else leaf
        for leaf in leaves
    ]


def _said(error: Exception, leaves: list[Any]) -> str:
    tensors = ", ".join(describe(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
    text = " ".join(str(error).split())
    return f"given {tensors or 'no tensor'}, it raises {type(error).__name__}: {text[:200]}"


class _OfFunction:
    device = "cpu"
    refused = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def accepts(self, leaves: list[Any], form: Any) -> bool:
        copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = torch_private.PYTREE.tree_unflatten(copies, form)
        try:
            with torch.random.fork_rng(devices=[]):
                made = self._function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever the function says to this input
            self.refused = _said(error, leaves)
            return False
        return not isinstance(made, Unknown)
