"""Inputs that nobody states: for a module what its layers take, for a function what its body takes.

Of a module the first layer with parameters says the rank, the dtype and the channels; what comes later, the sizes:
``Conv2d(1, 32)`` … ``Linear(9216)`` takes images of 28 × 28. The first candidates that a trial accepts are taken. A trial of a
module is on the meta device; one of a function calls it on small tensors.
"""

from __future__ import annotations

import inspect
import itertools
import re
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import torch_private
from ..capture.hook.tensor_layout import describe
from ..system.console import quiet
from ..system.signatures import annotations_of, signature
from .unknown import ASSUMED_SIZE, Sizes, Unknown, assumed_as, batch_of, sizes_of

_BATCH, _LENGTH = 2, 16
_OF_META = re.compile(r"\bmeta\b|unsupported scalarType|Meta")  # what is said of tensors without values
_MOST_NUMBERS = 1 << 25  # of a module that is tried with values
_MOST_SECONDS = 2.0  # of the processor's
_MOST_UNKNOWN = 8
_SIDES = (*range(4, 65), 72, 80, 96, 112, 128, 160, 192, 224, 227, 256, 299, 320, 384, 512)
_COMMON = (16, 28, 32, 64, 96, 128, 224, 256)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONVOLUTIONS = {
    nn.Conv1d: 1,
    nn.Conv2d: 2,
    nn.Conv3d: 3,
    nn.ConvTranspose1d: 1,
    nn.ConvTranspose2d: 2,
    nn.ConvTranspose3d: 3,
}
_NORMALISED = {nn.BatchNorm1d: 0, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2}
_PLAIN = {int: "step steps n k index i epoch", float: "lr alpha beta gamma eps weight temperature t scale"}


class Shape(NamedTuple):
    """A tensor that may be given: ``bound`` is that of integers."""

    sizes: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    bound: int = 0

    def made(self, device: torch.device | str) -> torch.Tensor:
        if torch.device(device).type == "meta":
            return torch.empty(self.sizes, dtype=self.dtype, device=device)
        generator = torch.Generator().manual_seed(0)
        if self.dtype.is_floating_point:
            return torch.randn(self.sizes, generator=generator).to(device, self.dtype)
        return torch.randint(self.bound or 2, self.sizes, generator=generator).to(device, self.dtype)


Choice = Shape | torch.device | int | float
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
    names = _names(target, leaves, args, kwargs)
    sizes = [sizes_of(leaves[i]) for i in unknown]
    batches = [batch_of(leaves[i]) for i in unknown]
    known = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    batch = next((n for n in batches if n), None) or next((t.shape[0] for t in known), _BATCH)
    trial = _OfModule(target) if isinstance(target, nn.Module) else _OfFunction(target)
    modules = [target] if isinstance(target, nn.Module) else _modules_of(target, leaves)
    ends = time.process_time() + _MOST_SECONDS
    tried: set[tuple[Choice, ...]] = set()
    choices = _choices([names[i] for i in unknown], modules, known, batch)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chosen in itertools.chain(choices, itertools.product(*map(_of_known, sizes))):
            fitting = [c for c in map(_of_sizes, chosen, sizes) if c is not None]
            if len(fitting) < len(chosen) or tuple(fitting) in tried:
                continue
            tried.add(tuple(fitting))
            if time.process_time() > ends:
                return None
            if trial.accepts(_filled(leaves, unknown, fitting, trial.device), form):
                filled = _filled(leaves, unknown, fitting, _device_of(modules))
                return torch_private.PYTREE.tree_unflatten(filled, form)
            if refused is not None and not refused:
                refused.append(trial.refused)
    return None


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
    whole = tuple(_LENGTH if n is None else n for n in sizes)
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


# --- candidates -----------------------------------------------------------------------------------------------------


def _choices(
    names: list[str], modules: list[nn.Module], known: list[torch.Tensor], batch: int
) -> Iterator[tuple[Choice, ...]]:
    """One choice for each unknown value, likely ones first."""
    pools = _pools(modules, known, batch)
    like = list(dict.fromkeys(_like(t) for t in known))
    asked = [[*_of_kind(name, pools), *_by_name(name, batch)] for name in names]
    rest = [*like, *_usual(batch)]
    if len(names) == 1:
        yield from ((c,) for c in (*asked[0], *itertools.chain(*pools), *rest))
        return
    if all(asked):
        likely = [[c for c in own if not _is_image(c) or c.sizes[-1] in _COMMON] for own in asked]
        yield from itertools.islice(itertools.product(*likely), 600)
    if all(asked) and any("mask" in name for name in names):
        yield from (
            tuple(_masked(name, own[0], turned) for name, own in zip(names, asked, strict=True))
            for turned in (False, True)
        )
    for c in (*itertools.chain(*pools), *rest):  # all alike, or all but those whose names say something else
        yield tuple(c for _ in names)
        if any(asked):
            yield tuple(own[0] if own else c for own in asked)
    pools = [p for p in pools if p]
    some = [p[0] for p in pools] + rest
    few = [c for p in pools for c in p[: 4 if len(pools) > 2 else 80]]
    if len(names) == 2:
        yield from ((a, b) for a in few for b in some)
        yield from ((a, b) for a in some for b in few)
    each = [[*own, *some][: 12 if len(names) < 4 else 6] for own in asked]
    yield from itertools.islice(itertools.product(*each), 2000)


def _masked(name: str, usual: Choice, turned: bool) -> Choice:
    """Of rows of words, or of columns of them: the mask of a parameter of that name, which is of positions, or of words that pad."""
    if "mask" not in name or not isinstance(usual, Shape):
        return usual
    batch = usual.sizes[0]
    length, examples = (batch, _LENGTH) if turned else (_LENGTH, batch)
    return Shape((examples, length) if "pad" in name else (length, length), torch.bool, 2)


def _pools(modules: list[nn.Module], known: list[torch.Tensor], batch: int) -> list[list[Shape]]:
    """What layers that may see the input first take, each kind of it apart."""
    firsts = [first for module in modules for first in _first_layers(module)]
    words = (m for module in modules for m in module.modules() if isinstance(m, nn.Embedding))
    firsts += [m for m in itertools.islice(words, 1) if m not in firsts]
    pools = [list(pool) for first in firsts for pool in _of_layer(first, batch)]
    lengths = _lengths(modules)
    pools += [
        [Shape((batch, n), torch.int64, first.num_embeddings) for n in lengths]
        for first in firsts if isinstance(first, nn.Embedding)
    ]  # fmt: skip
    counts = {n for t in known for n in t.shape}  # batches may come second
    pools += [
        [Shape((_LENGTH, n), torch.int64, first.num_embeddings) for n in sorted(counts - {batch})]
        for first in firsts if isinstance(first, nn.Embedding)
    ]  # fmt: skip
    tables = [m for module in modules for m in module.modules() if isinstance(m, nn.ModuleList)]
    for table in tables:  # one table of embeddings for each of some features
        if len(table) and all(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in table):
            bound = min(int(m.num_embeddings) for m in table)  # type: ignore[arg-type]
            pools.append([Shape(sizes, torch.int64, bound) for sizes in ((batch, len(table)), (len(table), batch))])
    return pools


def _lengths(modules: list[nn.Module]) -> list[int]:
    """Sizes that a module's tables have: of positions, most often."""
    found: set[int] = set()
    for module in modules:
        for layer in module.modules():
            if type(layer).__module__.startswith("torch.nn") and not isinstance(layer, nn.Embedding):
                continue
            for p in layer.parameters(recurse=False):
                found |= {n for n in p.shape[:-1] if 2 <= n <= 4096}
    return sorted(found)[:8]


_KINDS = (("image img pixel picture", 4), ("text token ids idx caption sentence word src tgt trg seq", 2))


def _of_kind(name: str, pools: list[list[Shape]]) -> list[Shape]:
    """Of what layers take, what a parameter of that name may be: an image, or a row of words."""
    for words, rank in _KINDS if "mask" not in name.lower() else ():
        if any(word in name.lower() for word in words.split()):
            found = [c for pool in pools for c in pool if len(c.sizes) == rank]
            return [c for c in found if rank != 2 or c.dtype == torch.int64]
    return []


def _is_image(choice: Choice) -> bool:
    return isinstance(choice, Shape) and len(choice.sizes) == 4


def _like(tensor: torch.Tensor) -> Shape:
    bound = 2 if not tensor.dtype.is_floating_point else 0
    return Shape(tuple(tensor.shape), tensor.dtype, bound)


def _by_name(name: str, batch: int) -> list[Choice]:
    """What a parameter of that name takes, most often."""
    last = name.lower()
    if last == "device":
        return [torch.device("cpu")]
    if last in _PLAIN[int].split():
        return [1]
    if last in _PLAIN[float].split():
        return [0.5]
    if last.startswith(("label", "target", "class", "action")) or last == "y":
        return [Shape((batch,), torch.int64, 2), Shape((batch, _LENGTH), torch.int64, 2)]
    if "mask" in last:
        return [Shape((batch, _LENGTH), torch.bool, 2), Shape((_LENGTH, _LENGTH), torch.bool, 2)]
    if "length" in last or last.startswith(("perm", "idx", "ind")):
        return [Shape((batch,), torch.int64, 2)]
    if last.startswith("adj"):
        return [Shape((batch, batch))]
    if last.startswith("lam"):
        return [Shape(())]
    return []


def _usual(batch: int) -> list[Choice]:
    return [
        Shape((batch,)), Shape((batch, _LENGTH)), Shape((batch,), torch.int64, 2), Shape((batch, _LENGTH), torch.int64, 2),
        Shape((batch, _LENGTH, _LENGTH)), Shape((batch, 3, 32, 32)), Shape((batch, 1)), Shape((batch, 3)), Shape((batch, 2)),
        Shape((batch, 4)), Shape((batch, batch)), Shape(()), Shape((batch, 1, 16000)), Shape((batch, 16000)), 1, 0.5,
    ]  # fmt: skip


def _first_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers that may see the input first: the first one that has parameters, and the next of other kinds."""
    kinds: set[type] = set()
    for layer in module.modules():
        if any(True for _ in layer.parameters(recurse=False)) and type(layer) not in kinds:
            kinds.add(type(layer))
            yield layer
        if len(kinds) == 4:
            return


def _of_layer(layer: nn.Module, batch: int) -> Iterator[Iterator[Shape]]:
    dtype = next((p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point()), torch.float32)
    for kind, rank in (_CONVOLUTIONS | _NORMALISED).items():
        if isinstance(layer, kind):
            channels = int(getattr(layer, "in_channels", 0) or getattr(layer, "num_features", 1))
            small = (1,) if kind.__name__.startswith("ConvTranspose") else ()  # noise, most often
            sides = (*small, *_SIDES) if rank else (0,)
            yield (Shape((batch, channels, *[side] * rank), dtype) for side in sides)
            if rank == 2:
                yield (Shape((channels, side, side), dtype) for side in (32, 64))
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        yield (Shape(sizes, torch.int64, layer.num_embeddings) for sizes in ((batch, _LENGTH), (batch,)))
    if isinstance(layer, nn.Linear):
        n = layer.in_features
        yield (Shape(sizes, dtype) for sizes in ((batch, n), (batch, _LENGTH, n), (n,)))
        sides = [s for s in range(2, 513) if n % (s * s) == 0]
        yield (Shape((batch, n // (side * side), side, side), dtype) for side in sides)  # flattened images
    if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)):
        width = int(layer.input_size) if isinstance(layer, nn.RNNBase) else layer.embed_dim
        yield iter((Shape((batch, _LENGTH, width), dtype),))
    if isinstance(layer, nn.RNNCellBase):
        yield iter((Shape((batch, layer.input_size), dtype), Shape((batch, _LENGTH), dtype)))
    if not type(layer).__module__.startswith(
        "torch.nn"
    ):  # one of the program's own, which multiplies by its parameters
        for p in layer.parameters(recurse=False):
            if p.ndim == 2:
                yield (Shape(sizes, dtype) for n in p.shape for sizes in ((batch, n), (batch, _LENGTH, n)))
    if isinstance(layer, nn.LayerNorm):
        last = layer.normalized_shape
        yield (Shape(sizes, dtype) for sizes in ((batch, *last), (batch, _LENGTH, *last)))


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
