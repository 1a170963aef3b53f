"""Values that a parameter may take, likely ones first: by what layers take, by the parameter's name, and by what else is given.

The first layers that may see an input propose pools of shapes; of images there is one shape for each side. A trial
(:mod:`.inferred`) says which of the choices fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

LENGTH = 16  # of sequences
_SIDES = (*range(4, 65), 72, 80, 96, 112, 128, 160, 192, 224, 227, 256, 299, 320, 384, 512)
_COMMON = (16, 28, 32, 64, 96, 128, 224, 256)
_MOST_BY_NAME = 600  # combinations of what the names say
_MOST_COMBINED = 2000  # combinations of what the names and the layers say
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
            return torch.randn(self.sizes, generator=generator, device="cpu").to(device, self.dtype)
        return torch.randint(self.bound or 2, self.sizes, generator=generator, device="cpu").to(device, self.dtype)


Choice = Shape | torch.device | int | float
Pool = list[Shape]  # what one layer takes, in one form


def choices(
    names: list[str], modules: list[nn.Module], known: list[torch.Tensor], batch: int
) -> Iterator[tuple[Choice, ...]]:
    """One choice for each unknown value, of the parameters ``names``. ``known`` are the tensors that are given."""
    pools = _pools(modules, known, batch)
    rest = [*dict.fromkeys(_like(t) for t in known), *_usual(batch)]
    asked = [[*_of_kind(name, pools), *_by_name(name, batch)] for name in names]
    layers = list(itertools.chain(*pools))
    if len(names) == 1:
        yield from ((c,) for c in (*asked[0], *layers, *rest))
        return
    if all(asked):
        yield from _by_names_alone(names, asked)
    yield from _alike(asked, [*layers, *rest])
    yield from _combined(asked, [p for p in pools if p], rest)


def _by_names_alone(names: list[str], asked: list[list[Choice]]) -> Iterator[tuple[Choice, ...]]:
    likely = [[c for c in own if _is_common(c)] for own in asked]
    yield from itertools.islice(itertools.product(*likely), _MOST_BY_NAME)
    if any("mask" in name for name in names):
        for turned in (False, True):
            yield tuple(_masked(name, own[0], turned) for name, own in zip(names, asked, strict=True))


def _alike(asked: list[list[Choice]], values: list[Choice]) -> Iterator[tuple[Choice, ...]]:
    """All alike, or all but those whose names say something else."""
    for c in values:
        yield tuple(c for _ in asked)
        if any(asked):
            yield tuple(own[0] if own else c for own in asked)


def _combined(asked: list[list[Choice]], pools: list[Pool], rest: list[Choice]) -> Iterator[tuple[Choice, ...]]:
    """Of different layers, then of whatever is likely for each."""
    some = [*(p[0] for p in pools), *rest]
    if len(asked) == 2:
        few = [c for p in pools for c in p[: 4 if len(pools) > 2 else 80]]
        yield from ((a, b) for a in few for b in some)
        yield from ((a, b) for a in some for b in few)
    each = [[*own, *some][: 12 if len(asked) < 4 else 6] for own in asked]
    yield from itertools.islice(itertools.product(*each), _MOST_COMBINED)


# --- by layers ------------------------------------------------------------------------------------------------------


def _pools(modules: list[nn.Module], known: list[torch.Tensor], batch: int) -> list[Pool]:
    """What layers that may see the input first take, each kind of it apart."""
    firsts = [first for module in modules for first in _first_layers(module)]
    words = (m for module in modules for m in module.modules() if isinstance(m, nn.Embedding))
    firsts += [m for m in itertools.islice(words, 1) if m not in firsts]
    counts = {n for t in known for n in t.shape}  # batches may come second
    return [
        *(pool for first in firsts for pool in _of_layer(first, batch)),
        *_rows_of_words(firsts, [(batch, n) for n in _lengths(modules)]),
        *_rows_of_words(firsts, [(LENGTH, n) for n in sorted(counts - {batch})]),
        *_rows_of_features(modules, batch),
    ]


def _rows_of_words(layers: list[nn.Module], sizes: list[tuple[int, int]]) -> list[Pool]:
    embeddings = (layer for layer in layers if isinstance(layer, nn.Embedding))
    return [[Shape(size, torch.int64, embedding.num_embeddings) for size in sizes] for embedding in embeddings]


def _rows_of_features(modules: list[nn.Module], batch: int) -> Iterator[Pool]:
    """Of one table of embeddings for each of some features."""
    for table in (m for module in modules for m in module.modules() if isinstance(m, nn.ModuleList)):
        if len(table) and all(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in table):
            bound = min(int(m.num_embeddings) for m in table)  # type: ignore[arg-type]
            yield [Shape(sizes, torch.int64, bound) for sizes in ((batch, len(table)), (len(table), batch))]


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


def _first_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers that may see the input first: the first one that has parameters, and the next of other kinds."""
    kinds: set[type] = set()
    for layer in module.modules():
        if any(True for _ in layer.parameters(recurse=False)) and type(layer) not in kinds:
            kinds.add(type(layer))
            yield layer
        if len(kinds) == 4:
            return


def _of_layer(layer: nn.Module, batch: int) -> Iterator[Pool]:
    """By the rules of each kind that the layer is of."""
    dtype = next((p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point()), torch.float32)
    for kind, rule in _RULES:
        if isinstance(layer, kind):
            yield from rule(layer, batch, dtype)


Rule = Callable[[nn.Module, int, torch.dtype], Iterator[Pool]]


def _images(rank: int, attribute: str, smaller: tuple[int, ...] = ()) -> Rule:
    """Of channels, whose number is the layer's ``attribute``, and ``rank`` sides."""

    def rule(layer: nn.Module, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
        channels = int(getattr(layer, attribute) or 1)
        sides = (*smaller, *_SIDES) if rank else (0,)
        yield [Shape((batch, channels, *[side] * rank), dtype) for side in sides]
        if rank == 2:
            yield [Shape((channels, side, side), dtype) for side in (32, 64)]

    return rule


def _words(layer: nn.Embedding | nn.EmbeddingBag, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
    yield [Shape(sizes, torch.int64, layer.num_embeddings) for sizes in ((batch, LENGTH), (batch,))]


def _features(layer: nn.Linear, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
    n = layer.in_features
    yield [Shape(sizes, dtype) for sizes in ((batch, n), (batch, LENGTH, n), (n,))]
    sides = [s for s in range(2, 513) if n % (s * s) == 0]
    yield [Shape((batch, n // (side * side), side, side), dtype) for side in sides]  # flattened images


def _sequence(layer: nn.RNNBase | nn.MultiheadAttention, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
    width = int(layer.input_size) if isinstance(layer, nn.RNNBase) else layer.embed_dim
    yield [Shape((batch, LENGTH, width), dtype)]


def _step(layer: nn.RNNCellBase, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
    yield [Shape((batch, layer.input_size), dtype), Shape((batch, LENGTH), dtype)]


def _own(layer: nn.Module, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
    """A layer of the program's own multiplies by its parameters."""
    if type(layer).__module__.startswith("torch.nn"):
        return
    for p in layer.parameters(recurse=False):
        if p.ndim == 2:
            yield [Shape(sizes, dtype) for n in p.shape for sizes in ((batch, n), (batch, LENGTH, n))]


def _normalised(layer: nn.LayerNorm, batch: int, dtype: torch.dtype) -> Iterator[Pool]:
    last = layer.normalized_shape
    yield [Shape(sizes, dtype) for sizes in ((batch, *last), (batch, LENGTH, *last))]


_NOISE = (1,)  # what a transposed convolution takes, most often, has this side
_RULES: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], Callable[..., Iterator[Pool]]], ...] = (
    (nn.Conv1d, _images(1, "in_channels")),
    (nn.Conv2d, _images(2, "in_channels")),
    (nn.Conv3d, _images(3, "in_channels")),
    (nn.ConvTranspose1d, _images(1, "in_channels", _NOISE)),
    (nn.ConvTranspose2d, _images(2, "in_channels", _NOISE)),
    (nn.ConvTranspose3d, _images(3, "in_channels", _NOISE)),
    (nn.BatchNorm1d, _images(0, "num_features")),
    (nn.BatchNorm2d, _images(2, "num_features")),
    (nn.BatchNorm3d, _images(3, "num_features")),
    (nn.InstanceNorm1d, _images(1, "num_features")),
    (nn.InstanceNorm2d, _images(2, "num_features")),
    ((nn.Embedding, nn.EmbeddingBag), _words),
    (nn.Linear, _features),
    ((nn.RNNBase, nn.MultiheadAttention), _sequence),
    (nn.RNNCellBase, _step),
    (nn.Module, _own),
    (nn.LayerNorm, _normalised),
)


# --- by names -------------------------------------------------------------------------------------------------------

_KINDS = (("image img pixel picture", 4), ("text token ids idx caption sentence word src tgt trg seq", 2))


def _of_kind(name: str, pools: list[Pool]) -> list[Shape]:
    """Of what layers take, what a parameter of that name may be: an image, or a row of words."""
    for words, rank in _KINDS if "mask" not in name.lower() else ():
        if any(word in name.lower() for word in words.split()):
            found = [c for pool in pools for c in pool if len(c.sizes) == rank]
            return [c for c in found if rank != 2 or c.dtype == torch.int64]
    return []


def _is_common(choice: Choice) -> bool:
    """Images of few sides are; whatever is no image is."""
    return not isinstance(choice, Shape) or len(choice.sizes) != 4 or choice.sizes[-1] in _COMMON


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
        return [Shape((batch,), torch.int64, 2), Shape((batch, LENGTH), torch.int64, 2)]
    if "mask" in last:
        return [Shape((batch, LENGTH), torch.bool, 2), Shape((LENGTH, LENGTH), torch.bool, 2)]
    if "length" in last or last.startswith(("perm", "idx", "ind")):
        return [Shape((batch,), torch.int64, 2)]
    if last.startswith("adj"):
        return [Shape((batch, batch))]
    if last.startswith("lam"):
        return [Shape(())]
    return []


def _usual(batch: int) -> list[Choice]:
    return [
        Shape((batch,)), Shape((batch, LENGTH)), Shape((batch,), torch.int64, 2), Shape((batch, LENGTH), torch.int64, 2),
        Shape((batch, LENGTH, LENGTH)), Shape((batch, 3, 32, 32)), Shape((batch, 1)), Shape((batch, 3)), Shape((batch, 2)),
        Shape((batch, 4)), Shape((batch, batch)), Shape(()), Shape((batch, 1, 16000)), Shape((batch, 16000)), 1, 0.5,
    ]  # fmt: skip


def _masked(name: str, usual: Choice, turned: bool) -> Choice:
    """Of rows of words, or of columns of them: the mask of a parameter of that name, which is of positions, or of words that pad."""
    if "mask" not in name or not isinstance(usual, Shape):
        return usual
    batch = usual.sizes[0]
    length, examples = (batch, LENGTH) if turned else (LENGTH, batch)
    return Shape((examples, length) if "pad" in name else (length, length), torch.bool, 2)
