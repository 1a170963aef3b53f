"""Random operators as pointwise functions of random words (``ir.philox``), so that they fuse and may be repeated.

Each call of a graph draws one seed per device from torch's default generator; the n-th random operator of the graph
reads stream n of that seed. A rule here says what an operator makes of the words. It returns NotImplemented where the
operator is to stay as it is, with eager's stream: generators as arguments, complex numbers, numbers that eager refuses
(it raises then). Tensors of parameters are checked when the graph runs.

Uniform numbers have as many random bits as eager's; a probability is compared with whole words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fuselens import torch_private
from fuselens.ir import philox as philox  # registers the operator that makes words

aten = torch.ops.aten

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # of a number's mantissa
DRAW_SEED = aten.randint.low
SEED_ARGUMENTS = (-(2**31), 2**31, [2])


class Streams:
    """The streams of one run of a graph: ``seed`` gives the seed of a device, drawn when first asked for."""

    def __init__(self, seed: Callable[[torch.device], Tensor]) -> None:
        self.count = 0
        self._seed = seed
        self._seeds: dict[torch.device, Tensor] = {}

    def words(self, like: Tensor) -> Tensor:
        """The words of a new stream, in the shape of ``like`` and the layout of what eager makes like it."""
        seed = self._seeds.get(like.device)
        if seed is None:
            seed = self._seeds[like.device] = self._seed(like.device)
        self.count += 1
        plain = all(type(n) is int for n in like.shape) and like.is_contiguous()
        stride = like.stride() if plain else torch.empty_like(like).stride()
        return torch.ops.fuselens.random.default(seed, self.count - 1, like.shape, stride)


def draw_seed(device: torch.device) -> Tensor:
    """A seed from torch's default generator of the device, as compiled graphs draw theirs."""
    return DRAW_SEED(*SEED_ARGUMENTS, dtype=torch.int32, device=device)


# --- numbers made of words ---------------------------------------------------------------------------------------


def _top(words: Tensor, bits: int) -> Tensor:
    """The highest bits of each word as a number that is not negative."""
    return (words >> (32 - bits)) & (2**bits - 1)


def _unit(streams: Streams, like: Tensor, bits: int = 24) -> Tensor:
    """Uniform on [0, 1), in the type that ``like`` computes in: of 53 bits in float64, else of ``bits``."""
    if like.dtype is torch.float64:
        high, low = _top(streams.words(like), 27), _top(streams.words(like), 26)
        return (high.to(torch.float64) * 2.0**26 + low.to(torch.float64)) * 2.0**-53
    return _top(streams.words(like), bits).to(torch.float32) * 2.0**-bits


def _positive(streams: Streams, like: Tensor) -> Tensor:
    """Uniform on (0, 1] for logarithms: small numbers keep all their digits."""
    if like.dtype is torch.float64:
        return 1.0 - _unit(streams, like)
    words = streams.words(like)
    return ((words ^ (words >> 31)).to(torch.float32) + 0.5) * 2.0**-31


def _normal(streams: Streams, like: Tensor) -> Tensor:
    """Standard normal numbers (Box and Muller)."""
    radius = (_positive(streams, like).log() * -2.0).sqrt()
    return radius * (_unit(streams, like) * (2 * math.pi)).cos()


def _below(streams: Streams, like: Tensor, p: float) -> Tensor:
    """True with probability ``p``."""
    threshold = round(p * 2**32) - 2**31
    if threshold in (-(2**31), 2**31):
        return torch.full_like(like, threshold > 0, dtype=torch.bool)
    return streams.words(like) < threshold


def _check(parameters: Tensor, operator: str) -> None:
    """Raises what the operator raises of parameters out of range, by running it."""
    if not parameters.numel() or parameters.device.type != "cpu":
        return  # other devices only check while they draw
    least, most = parameters.aminmax()
    if operator == "bernoulli" and not (least >= 0 and most <= 1):
        torch.bernoulli(parameters)
    elif operator == "normal" and not least >= 0:
        torch.normal(0.0, parameters)


_library = torch.library.Library("fuselens", "FRAGMENT")
_library.define("check(Tensor parameters, str operator) -> ()", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("check", _check, "CompositeExplicitAutograd")
_library.impl("check", lambda parameters, operator: None, "Meta")

# --- rules -------------------------------------------------------------------------------------------------------

Rule = Callable[..., Any]


def _floating(make: Callable[..., Tensor]) -> Rule:
    """Of operators ``op(self, *numbers)`` whose result is a floating tensor like ``self``.

    ``make(streams, like, *numbers)`` gives NotImplemented for numbers that eager refuses.
    """

    def rule(streams: Streams, like: Tensor, *numbers: Any, generator: Any = None, **named: Any) -> Any:
        given = (*numbers, *named.values())
        if generator is not None or like.dtype not in _FLOATS or not all(type(n) in (int, float) for n in given):
            return NotImplemented
        made = make(streams, like, *numbers, **named)
        return made if made is NotImplemented else made.to(like.dtype)

    return rule


def _uniform(streams: Streams, like: Tensor, low: float = 0.0, high: float = 1.0, **named: float) -> Tensor:
    low, high = named.get("from", low), named.get("to", high)
    if not low <= high or not high - low <= torch.finfo(like.dtype).max:
        return NotImplemented
    return _rounded_unit(streams, like) * (high - low) + low


def _rounded_unit(streams: Streams, like: Tensor) -> Tensor:
    """Uniform on [0, 1), also when rounded to the type of ``like``."""
    return _unit(streams, like, _BITS[like.dtype])


def _normal_like(streams: Streams, like: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _normal(streams, like) * std + mean if std >= 0 else NotImplemented


def _log_normal(streams: Streams, like: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return (_normal(streams, like) * std + mean).exp() if std > 0 else NotImplemented


def _exponential(streams: Streams, like: Tensor, lambd: float = 1.0) -> Tensor:
    if not lambd > 0:
        return NotImplemented
    tiny = 2.0**-54 if like.dtype is torch.float64 else 2.0**-24  # never 0: programs take its logarithm
    return (-_positive(streams, like).log()).clamp_min(tiny) / lambd


def _cauchy(streams: Streams, like: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return ((_unit(streams, like) - 0.5) * math.pi).tan() * sigma + median if sigma > 0 else NotImplemented


def _geometric(streams: Streams, like: Tensor, p: float, *, generator: Any = None) -> Any:
    if generator is not None or like.dtype.is_complex or not (type(p) is float and 0 < p < 1):
        return NotImplemented
    wide = like.dtype in (torch.float64, torch.int64)
    draw = _positive(streams, torch.empty_like(like, dtype=torch.float64 if wide else torch.float32))
    return (draw.log() / math.log1p(-p)).ceil().clamp_min(1).to(like.dtype)


def _bernoulli(streams: Streams, like: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    if generator is not None or like.dtype.is_complex or type(p) not in (int, float) or not 0 <= p <= 1:
        return NotImplemented
    return _below(streams, like, p).to(like.dtype)


def _native_dropout(streams: Streams, x: Tensor, p: float, train: bool | None) -> Any:
    if x.dtype not in _FLOATS or not (train is None or train) or type(p) not in (int, float) or not 0 <= p <= 1:
        return NotImplemented
    kept = _below(streams, x, 1 - p)
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _rrelu(
    streams: Streams, x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Any:  # fmt: skip
    numbers = type(lower) in (int, float) and type(upper) in (int, float)
    if generator is not None or not training or x.dtype not in _FLOATS or not numbers or not lower <= upper:
        return NotImplemented
    slope = (_unit(streams, x) * (upper - lower) + lower).to(x.dtype)
    slope = torch.where(x <= 0, slope, torch.ones((), dtype=x.dtype, device=x.device))
    return x * slope, slope


def _bernoulli_of(streams: Streams, p: Tensor, *, generator: Any = None) -> Any:
    return _bernoulli_tensor(streams, torch.empty(p.shape, dtype=p.dtype, device=p.device), p, generator=generator)


def _bernoulli_tensor(streams: Streams, like: Tensor, p: Tensor, *, generator: Any = None) -> Any:
    if generator is not None or like.dtype.is_complex or p.dtype not in _FLOATS:
        return NotImplemented
    torch.ops.fuselens.check.default(p, "bernoulli")
    wide = torch.float64 if p.dtype is torch.float64 else torch.float32
    return (_unit(streams, torch.empty_like(like, dtype=wide)) < p.expand(like.shape)).to(like.dtype)


def _normal_of(streams: Streams, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    dtype, device = tensors[0].dtype, tensors[0].device
    if generator is not None or dtype not in _FLOATS or any(t.dtype is not dtype for t in tensors):
        return NotImplemented
    if isinstance(std, Tensor):
        torch.ops.fuselens.check.default(std, "normal")
    elif not std >= 0:
        return NotImplemented
    like = torch.empty(torch.broadcast_tensors(*tensors)[0].shape, dtype=dtype, device=device)
    return (_normal(streams, like) * std + mean).to(dtype)


def _integers(streams: Streams, like: Tensor, low: Any, high: Any) -> Any:
    """Integers from ``low`` up to but not including ``high``."""
    if type(low) is not int or type(high) is not int or not 0 < high - low <= 2**31 or not _holds(like, low, high - 1):
        return NotImplemented
    words = streams.words(like).to(torch.int64) & (2**32 - 1)
    return (((words * (high - low)) >> 32) + low).to(like.dtype)


def _holds(like: Tensor, low: int, high: int) -> bool:
    """Whether the type has all integers of the range; eager refuses to draw others, or warns."""
    if like.dtype.is_complex:
        return False
    if like.dtype.is_floating_point:
        limit = 2 ** round(-math.log2(torch.finfo(like.dtype).eps))
        return -limit <= low and high <= limit
    if like.dtype is torch.bool:
        return low >= 0 and high <= 1
    return torch.iinfo(like.dtype).min <= low and high <= torch.iinfo(like.dtype).max


def _random_from(streams: Streams, like: Tensor, low: Any, high: Any, *, generator: Any = None) -> Any:
    return NotImplemented if generator is not None else _integers(streams, like, low, high)


def _random_to(streams: Streams, like: Tensor, high: Any, *, generator: Any = None) -> Any:
    return _random_from(streams, like, 0, high, generator=generator)


def _made(draw: Callable[..., Any], before: int, dtype: torch.dtype | None = None) -> Rule:
    """Of factory functions ``op(*numbers, size, dtype=, …)`` with ``before`` numbers."""

    def rule(streams: Streams, *args: Any, generator: Any = None, **options: Any) -> Any:
        if generator is not None or not _plain(options):
            return NotImplemented
        numbers, (size,) = args[:before], args[before:]
        wanted = options.get("dtype") or dtype or torch.get_default_dtype()
        like = torch.empty(size, dtype=wanted, device=options.get("device"))
        return draw(streams, like, *numbers)

    return rule


def _like(draw: Callable[..., Any]) -> Rule:
    """Of ``op_like(self, *numbers, dtype=, …)``."""

    def rule(streams: Streams, x: Tensor, *numbers: Any, generator: Any = None, **options: Any) -> Any:
        if generator is not None or not _plain(options):
            return NotImplemented
        given = {k: options[k] for k in ("dtype", "device", "memory_format") if options.get(k) is not None}
        return draw(streams, torch.empty_like(x, **given), *numbers)

    return rule


def _plain(options: Mapping[str, Any]) -> bool:
    return options.get("layout") in (None, torch.strided) and not options.get("pin_memory")


_unit_like, _standard = _floating(_rounded_unit), _floating(_normal)
_from_zero = lambda streams, like, high: _integers(streams, like, 0, high)  # noqa: E731

RULES: Mapping[Any, Rule] = MappingProxyType({
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli_of,
    aten.bernoulli.Tensor: _bernoulli_tensor,
    aten.native_dropout.default: _native_dropout,
    aten.uniform.default: _floating(_uniform),
    aten.normal_functional.default: _floating(_normal_like),
    aten.normal.Tensor_float: _normal_of,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.normal.float_float: _made(_floating(_normal_like), 2),
    aten.log_normal.default: _floating(_log_normal),
    aten.exponential.default: _floating(_exponential),
    aten.cauchy.default: _floating(_cauchy),
    aten.geometric.default: _geometric,
    aten.rrelu_with_noise_functional.default: _rrelu,
    getattr(aten.random, "from"): _random_from,
    aten.random.to: _random_to,
    aten.rand.default: _made(_unit_like, 0),
    aten.randn.default: _made(_standard, 0),
    aten.randint.default: _made(_from_zero, 1, torch.int64),
    aten.randint.low: _made(_integers, 2, torch.int64),
    aten.rand_like.default: _like(_unit_like),
    aten.randn_like.default: _like(_standard),
    aten.randint_like.default: _like(_from_zero),
    aten.randint_like.low_dtype: _like(_integers),
})  # fmt: skip

# --- eagerly -----------------------------------------------------------------------------------------------------

_IN_PLACE = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.uniform_.default: aten.uniform.default,
    aten.normal_.default: aten.normal_functional.default,
    aten.log_normal_.default: aten.log_normal.default,
    aten.exponential_.default: aten.exponential.default,
    aten.cauchy_.default: aten.cauchy.default,
    aten.geometric_.default: aten.geometric.default,
    getattr(aten.random_, "from"): getattr(aten.random, "from"),
    aten.random_.to: aten.random.to,
}


# --- eager's stream ----------------------------------------------------------------------------------------------

_FUNCTIONAL = {functional: op for op, functional in _IN_PLACE.items()} | {aten.random.default: aten.random_.default}


def _drawn(like: Tensor, operator: str, numbers: list[Any], parameters: Tensor | None = None) -> Tensor:
    """What an operator that writes random numbers leaves in a tensor laid out as ``like`` is."""
    packet, _, overload = operator.partition(".")
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    getattr(getattr(aten, packet), overload)(made, *([] if parameters is None else [parameters]), *numbers)
    return made


def _drawn_meta(like: Tensor, operator: str, numbers: list[Any], parameters: Tensor | None = None) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


_library.define(
    "drawn(Tensor like, str operator, Scalar[] numbers, Tensor? parameters=None) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.impl("drawn", _drawn, "CompositeExplicitAutograd")
_library.impl("drawn", _drawn_meta, "Meta")


def is_functional_draw(target: Any) -> bool:
    """Whether a captured node itself calls what functionalization puts in the place of an operator that writes."""
    names = ("bernoulli",)  # of a method; the others have no functional form that programs could call so
    return target in names or target is torch.bernoulli or target in _FUNCTIONAL or target in _PACKETS


_PACKETS = frozenset(op.overloadpacket for op in _FUNCTIONAL)


def in_place_draw(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The arguments of ``fuselens.drawn`` for an operator that writes random numbers, which was made functional.

    Eager's kernels walk memory, and choose their method by its layout; functional forms make contiguous results. None
    where those are the same.
    """
    op = _FUNCTIONAL.get(func)
    if op is None or kwargs.get("generator") is not None or is_plain(args[0]):
        return None
    if any(stride == 0 and size != 1 for size, stride in zip(args[0].shape, args[0].stride(), strict=True)):
        return None  # an element in several places: nothing can be written there, so eager's result is a new tensor
    parameters = next((a for a in args[1:] if isinstance(a, Tensor)), None)
    named = [kwargs[a.name] for a in func._schema.arguments[len(args) :] if a.name in kwargs and not a.kwarg_only]
    numbers = [a for a in (*args[1:], *named) if a is not None and a is not parameters]
    name = f"{op.overloadpacket.__name__}.{op._overloadname}"
    return args[0], name, numbers, *([] if parameters is None else [parameters])


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor lies in memory as a new one of its shape does."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected = expected * size if size > 1 else expected
    return True


class Drawing(torch_private.RecordingMode):
    """Inside, operators that run eagerly draw what a graph compiled of them draws from the same generators."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = Streams(draw_seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(_IN_PLACE.get(func, func))
        drawn = rule(self.streams, *args, **kwargs) if rule else NotImplemented
        if drawn is NotImplemented and func in (aten.rrelu_with_noise.default, aten.rrelu_with_noise_.default):
            drawn = _rrelu(self.streams, *args, **kwargs)
            if drawn is not NotImplemented:
                drawn, slope = drawn
                args[1].copy_(slope)
                return args[0].copy_(drawn) if func is aten.rrelu_with_noise_.default else drawn
        if drawn is NotImplemented:
            return func(*args, **kwargs)
        return args[0].copy_(drawn) if func in _IN_PLACE else drawn


def drawing(run: Callable[[tuple[Any, ...]], Any]) -> Callable[[tuple[Any, ...]], Any]:
    """``run``, drawing as a compiled graph does."""

    def draw(inputs: tuple[Any, ...]) -> Any:
        with Drawing():
            return run(inputs)

    return draw
