"""A random graph run eagerly and compiled, and compared in all it does; tolerances come from the graph itself.

The same program is run in float64, once as it is and some times with noise: what each ATen operator returns, in the
backward as well, is changed by as much as rounding to eager's dtype may change it. What compiled code may differ from
eager by is what rounding explains, so an ill-conditioned program raises no false alarm, and a comparison of nearly equal
numbers may fall either way.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import fuselens

from .graph_stages import checked
from .random_graphs import NAMES, Input, Program, Step

EPSILON = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
# Operators that move, choose or make elements: exact.
_EXACT = frozenset(
    """
    copy clone fill zero where index index_select gather scatter cat stack neg abs relu clamp clamp_min clamp_max maximum
    minimum max min amax amin sort topk kthvalue median cummax cummin flip roll repeat masked_fill sign sgn ceil floor round
    trunc frac copysign constant_pad_nd select_scatter slice_scatter diagonal_scatter as_strided_scatter empty
    empty_like empty_strided new_empty new_empty_strided zeros zeros_like ones ones_like full full_like new_zeros new_ones
    new_full scalar_tensor arange eye tril triu lift_fresh _to_copy index_fill index_copy take rot90
    max_pool2d_with_indices max_pool3d_with_indices threshold threshold_backward embedding upsample_nearest1d
    upsample_nearest2d nan_to_num hardtanh heaviside repeat_interleave select_backward slice_backward diagonal_backward
    unfold_backward max_unpool2d searchsorted bucketize bincount histc mode nanmedian fmax fmin frexp masked_scatter
    masked_select put diag_embed pixel_shuffle pixel_unshuffle channel_shuffle reflection_pad1d reflection_pad2d
    reflection_pad3d replication_pad1d replication_pad2d replication_pad3d adaptive_max_pool2d signbit isin block_diag
    upsample_nearest3d _upsample_nearest_exact2d im2col narrow_copy aminmax
""".split()
)
# Operators that add up, or whose intermediates may be larger than their results.
_FOLDS = frozenset(
    """
    sum mean prod mm bmm addmm baddbmm mv addmv dot convolution convolution_backward _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data logsumexp native_layer_norm native_layer_norm_backward
    native_group_norm native_group_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit
    _fused_rms_norm _fused_rms_norm_backward var std var_mean std_mean linalg_vector_norm norm cumsum cumprod logcumsumexp
    avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward index_add scatter_add
    embedding_dense_backward mse_loss smooth_l1_loss logaddexp lerp cosine_similarity nll_loss_forward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    upsample_bilinear2d max_pool2d_with_indices_backward upsample_nearest2d_backward _cdist_forward
    glu_backward
    _cdist_backward _euclidean_dist _pdist_forward _pdist_backward scatter_reduce index_reduce addr addbmm dist nansum renorm
    upsample_linear1d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa grid_sampler_2d
    grid_sampler_2d_backward col2im avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    _embedding_bag linalg_cross trace _trilinear huber_loss binary_cross_entropy logaddexp2 upsample_linear1d_backward
    upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward index_put
""".split()
)
# Pointwise operators that add up parts which may be larger than their results: Φ(x) and x φ(x) cancel in the derivative
# of gelu near its minimum.
_PARTS = frozenset(
    """
    gelu gelu_backward silu_backward mish mish_backward softplus softplus_backward elu_backward log_sigmoid_backward
    tanh_backward sigmoid_backward logit logit_backward hardswish_backward lgamma digamma polygamma erfc special_log_ndtr
    special_erfcx special_ndtri sinc atanh acosh asinh log1p expm1 addcmul addcdiv lerp atan2 hypot xlogy special_xlog1py
    special_zeta remainder fmod
""".split()
)
_RESAMPLES = ("upsample_b", "upsample_l", "upsample_t", "_upsample_b", "grid_sampler")  # at rounded positions
_NORMALISATIONS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm",
    "_fused_rms_norm",
)
_NORMS = 1 / 512  # of what is added up, below which a normalised value may come out as 0
SAMPLES, MORE_SAMPLES = 2, 40
_OVERWRITTEN = "needed for gradient computation has been modified by an inplace operation"
MOST_INPUT_ELEMENTS = 200_000


@dataclass
class Seen:
    """What a call did: results, gradients, inputs afterwards (as ``tensors``), and facts that must be equal."""

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]
    error: str | None = None


def observe(program: Program, run: Callable[..., Any], arguments: dict[str, torch.Tensor]) -> Seen:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outputs = run(*arguments.values())
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            return Seen({}, {}, f"{type(error).__name__}: {error}")
        tensors = {f"output {n}": o for n, o in zip(program.outputs, outputs, strict=True)}
        tensors |= {f"input {n}": a for n, a in arguments.items()}
        facts: dict[str, Any] = {n: _facts(t) for n, t in tensors.items()}
        first: dict[int, str] = {}
        for name, tensor in tensors.items():
            facts[f"memory of {name}"] = first.setdefault(_address(tensor), name) if tensor.numel() else None
        facts["versions"] = [a._version for a in arguments.values() if not a.is_inference()]
        values = {n: t.detach().clone() for n, t in tensors.items()}
        grads, error = _gradients(outputs, arguments)
    for name, grad in grads.items():
        facts[f"gradient of {name}"] = None if grad is None else (grad.dtype, tuple(grad.shape))
    values |= {f"gradient of {n}": g for n, g in grads.items() if g is not None}
    return Seen(values, facts, error)


def _gradients(outputs: Any, arguments: dict[str, torch.Tensor]) -> tuple[dict[str, Any], str | None]:
    leaves = {n: a for n, a in arguments.items() if a.requires_grad and a.is_leaf}
    wanted = [o for o in outputs if o.requires_grad and o.is_floating_point()]
    if not leaves or not wanted:
        return {}, None
    with _disable_current_modes():  # no noise
        seeds = [torch.linspace(0.5, 1.5, o.numel(), dtype=torch.float64).reshape(o.shape).to(o.dtype) for o in wanted]
    try:
        found = torch.autograd.grad(wanted, list(leaves.values()), seeds, allow_unused=True)
    except RuntimeError as error:
        counted = re.sub(r"version \d+", "version", str(error))  # of each write inside operators, in eager
        return {}, f"{type(error).__name__}: {counted}"
    return dict(zip(leaves, found, strict=True)), None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _facts(t: torch.Tensor) -> Any:
    strides = tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1) if t.numel() else None
    offset = t.storage_offset() if t.numel() else 0
    return t.dtype, tuple(t.shape), strides, offset, t.requires_grad, t.is_leaf


# --- the same program in float64, with noise --------------------------------------------------------------------


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _wide(text: str, given: list[torch.dtype]) -> str:
    """A step in float64. A conversion copies, unless it converts nothing in eager either."""

    def converted(dtype: str) -> str:
        same = given[:1] == [getattr(torch, dtype)]
        return ".to(torch.float64)" if same else ".to(torch.float64, copy=True)"

    text = re.sub(r"\.to\(torch\.(float32|float64|bfloat16|float16)\)", lambda m: converted(m[1]), text)
    named = {"half": "float16", "float": "float32", "double": "float64", "bfloat16": "bfloat16"}
    text = re.sub(r"\.(half|float|bfloat16|double)\(\)", lambda m: converted(named[m[1]]), text)
    return re.sub(r"torch\.(float32|bfloat16|float16)\b", "torch.float64", text)


def _copied(function: Callable[..., Any], *given: torch.Tensor) -> Any:
    """A call in double precision that copies its operands, as autocast does to convert them."""
    return function(*(t.clone() for t in given))


@contextmanager
def _saved_as_they_were() -> Iterator[None]:
    """What a backward needs is there even if it is overwritten: eager may have saved a conversion of it."""

    def pack(saved: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
        return saved.detach(), saved._version, saved.detach().clone()

    def unpack(packed: tuple[torch.Tensor, int, torch.Tensor]) -> torch.Tensor:
        saved, version, copy = packed
        return saved if saved._version == version else copy

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


class Reference:
    """The program in float64; ``dtypes`` are those of the values in eager, which tell how much each is rounded."""

    def __init__(self, program: Program, arguments: dict[str, torch.Tensor]) -> None:
        self.program = program
        self.dtypes: dict[str, torch.dtype] = {n: a.dtype for n, a in arguments.items()}
        self.arguments = arguments
        self._step_dtypes()

    def _step_dtypes(self) -> None:
        scope: dict[str, Any] = {**NAMES, **{n: a.detach() for n, a in self.arguments.items()}}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            for step in self.program.steps:
                exec(str(step), scope)
                if step.name:
                    self.dtypes[step.name] = scope[step.name].dtype

    def _epsilon(self, step: Step) -> float:
        if step.text.startswith("autocast("):
            return EPSILON[torch.bfloat16]
        of = [EPSILON[d] for d in map(self.dtypes.__getitem__, (step.name or step.args[0], *step.args)) if d in EPSILON]
        several = step.text.count("(") > 1  # some of which may be of an operand alone, and in its dtype
        return (max(of) if several else of[0]) if of else EPSILON[torch.float32]

    def run(self, rounding: _Rounding | None) -> Callable[..., Any]:
        def call(*given: torch.Tensor) -> Any:
            scope: dict[str, Any] = {**NAMES, "autocast": _copied}
            for name, value in zip(self.arguments, given, strict=True):
                scope[name] = value
            with _default(torch.float64):
                for step in self.program.steps:
                    epsilon = self._epsilon(step)
                    if rounding is not None:
                        rounding.epsilon = epsilon
                    exec(_wide(str(step), [self.dtypes[a] for a in step.args]), scope)
                    if rounding is not None:
                        target = step.name or step.args[0]
                        rounding.store(scope[target], self.dtypes[target], epsilon)
            return tuple(scope[o] for o in self.program.outputs)

        return call


class _Rounding(TorchDispatchMode):
    """Inside, operators return in float64 what is off by what rounding to ``epsilon`` may be: a sum of n terms by up to
    √n roundings, in single precision for those of halves, and by those of its terms."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(seed)
        self.flushes = seed % 2 == 1
        self.common = seed % 4 == 2  # what is equal stays equal, and its mean is off
        self.epsilon = EPSILON[torch.float64]

    def store(self, value: Any, dtype: torch.dtype, epsilon: float) -> None:
        """The value of a step as eager stores it; its backward rounds as the step does."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or dtype not in EPSILON:
            return
        if 0 not in value.stride():
            value.data.copy_(value.data.to(dtype))
        if value.requires_grad:

            def backward(_: Any) -> None:
                self.epsilon = epsilon

            # a hook of the tensor ends the process now and then (torch 2.13)
            (value.register_hook if value.grad_fn is None else value.grad_fn.register_prehook)(backward)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        folds = name in _FOLDS
        scale = 0.0
        if folds and not func._schema.is_mutable:
            scale = max((float(a.abs().max()) for a in args if _is_float(a) and a.numel()), default=0.0)
            args = [self._off(a.clone(), self.epsilon) if _is_float(a) else a for a in args]
        result = func(*args, **(kwargs or {}))
        if name in ("_cdist_forward", "_euclidean_dist"):  # of many points, by products that cancel
            result = (result.square() + self.epsilon * scale**2 * _uniform(result, self.noise)).clamp(min=0).sqrt()
        converts = (
            name == "_to_copy" and self.epsilon > EPSILON[torch.float32]
        )  # a half may be seen before it was rounded
        if (name in _EXACT and not converts) or any(
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        ):
            return result
        results = result if isinstance(result, (tuple, list)) else (result,)
        normalises = name.startswith(_NORMALISATIONS) and "backward" not in name and results[-1].numel() > 0
        single = min(self.epsilon, EPSILON[torch.float32])
        for r in results:
            if _is_float(r) and r.numel() and 0 not in r.stride() and not r._is_zerotensor():  # these have no memory
                given = max((a.numel() for a in args if _is_float(a)), default=1)
                terms = given / (results[-1] if normalises else r).numel() if folds else 0.0
                self._off(r, self.epsilon + single * terms**0.5)
                if normalises and r is results[0]:
                    r.add_(_shifts(name, args, results[-1]) * single * terms**0.5 * _uniform(r, self.noise))
                if not any(isinstance(a, torch.Tensor) for a in args):  # between two numbers
                    r.add_(r.abs().max() * self.epsilon * _uniform(r, self.noise))
                if name in _PARTS or name.endswith("norm_backward") or name.startswith(_RESAMPLES):
                    r.add_(_parts(name, args) * single * _uniform(r, self.noise))
                if name in ("std", "std_mean"):
                    r.add_(scale * single * _uniform(r, self.noise).abs())
                if self.flushes and "norm" in name:
                    r[r.abs() < scale * single / _NORMS] = 0.0
        return result

    def _off(self, value: torch.Tensor, epsilon: float) -> torch.Tensor:
        noise = _uniform(value.new_empty(()) if self.common else value, self.noise)
        return value.mul_(1 + epsilon * noise)


def _parts(name: str, args: Any) -> Any:
    """The size of an operator's parts: of the gradient, and of all other operands, numbers of about one being among them."""
    if name.endswith("norm_backward"):  # the inverse deviation and the weight multiply what may cancel
        grad, _, *others = (float(a.abs().max()) for a in args if _is_float(a) and a.numel())
        return (
            0.25 * grad * math.prod(max(1.0, o) for o in others)
        )  # rounded to nearest, off by half as much on average
    if name.startswith(_RESAMPLES):
        given = next(a for a in args if _is_float(a))
        return float(given.abs().max()) * max(given.shape) if given.numel() else 0.0
    operands = [a.abs() for a in args if _is_float(a)]
    scale: Any = operands.pop(0) if name.endswith("_backward") else 1.0
    for operand in operands:
        scale = scale * (1.0 + operand)
    return scale


def _shifts(name: str, args: Any, inverse_deviations: torch.Tensor) -> torch.Tensor:
    """How large each element of what is normalised is, in deviations and times the weight, before the mean is taken off."""
    given, *weights = (a for a in args if _is_float(a))
    if "batch" in name:
        inverse = inverse_deviations.view(-1, *[1] * (given.dim() - 2))
    else:
        inverse = inverse_deviations.flatten().repeat_interleave(given.numel() // inverse_deviations.numel())
        inverse = inverse.view(given.shape)
    return given.abs() * inverse * max((float(w.abs().max()) for w in weights[:1]), default=1.0)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _uniform(like: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    return torch.rand(like.shape, generator=noise, dtype=torch.float64) * 2 - 1


def _widened(arguments: dict[str, torch.Tensor], program: Program) -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = {}
    for given in program.inputs:
        value = arguments[given.name]
        if given.of:
            made[given.name] = eval(given.text(), {**NAMES, **made})
        elif value.is_floating_point():
            wide = torch.empty_strided(value.shape, value.stride(), dtype=torch.float64)
            if any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True)):
                base = tuple(slice(0, 1) if s == 0 else slice(None) for s in value.stride())
                wide[base].copy_(value.detach()[base])
            else:
                wide.copy_(value.detach())
            made[given.name] = wide.requires_grad_(value.requires_grad)
        else:
            made[given.name] = value
    return made


class Tolerance:
    """How far each tensor may be from eager's: what rounding explains, found by running the program with noise."""

    def __init__(self, program: Program, call: int) -> None:
        self.program = program
        self.call = call
        self.reference = Reference(program, program.arguments(call))
        self.samples: list[dict[str, torch.Tensor]] = []
        self.exact = self._sample(None)

    def _sample(self, rounding: _Rounding | None) -> dict[str, torch.Tensor]:
        arguments = _widened(self.program.arguments(self.call), self.program)
        with rounding or nullcontext(), _saved_as_they_were():
            return observe(self.program, self.reference.run(rounding), arguments).tensors

    def more(self, count: int) -> None:
        while len(self.samples) < count:
            self.samples.append(self._sample(_Rounding(len(self.samples))))

    def covers(self, name: str, expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
        """For each element whether the difference is explained."""
        same = (actual == expected) | (actual.isnan() & expected.isnan())
        exact = self.exact.get(name)
        if exact is None or exact.shape != expected.shape:  # it does not run in float64
            relative = 32 * EPSILON.get(expected.dtype, 0.0)
            return same | torch.isclose(actual.double(), expected.double(), relative, relative)
        others = [s[name] for s in self.samples if name in s and s[name].shape == expected.shape] or [exact]
        wide, reference = expected.double(), exact.double()
        error = (wide - reference).abs().nan_to_num(0, 0)
        spread = torch.stack([(o.double() - reference).abs().nan_to_num(0, 0) for o in others]).amax(0)
        epsilon = EPSILON.get(expected.dtype, 0.0)
        finite = reference[reference.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() and expected.is_floating_point() else 0.0
        allowed = 8 * spread + 4 * error + 4 * epsilon * (wide.abs() + scale) + 1e-300
        if expected.dtype == torch.float16:
            allowed = allowed + 2.0**-23
        overflown = wide.isfinite() != reference.isfinite()
        anything = actual.isnan() & (spread >= scale / 4)  # noise, divided by its size: none has none
        return same | overflown | anything | ((actual.double() - wide).abs() <= allowed)


def compare(program: Program, compiled: Callable[..., Any], call: int) -> str | None:
    """The first difference between eager and ``compiled`` in words; None when they agree."""
    expected = observe(program, program.function(), program.arguments(call))
    actual = observe(program, compiled, program.arguments(call))
    if expected.error != actual.error:
        return f"eager raises {expected.error}, compiled {actual.error}"
    for name, fact in expected.facts.items():
        if fact != actual.facts.get(name):
            return f"{name}: eager has {fact}, compiled {actual.facts.get(name)}"
    tolerance: Tolerance | None = None
    for name, value in expected.tensors.items():
        got = actual.tensors[name]
        if torch.equal(value, got):
            continue
        if tolerance is None:
            tolerance = Tolerance(program, call)
        for count in (SAMPLES, MORE_SAMPLES):
            tolerance.more(count)
            good = tolerance.covers(name, value, got)
            if bool(good.all()):
                break
        else:
            at = tuple((~good).nonzero()[0].tolist())
            exact = tolerance.exact[name][at].item() if name in tolerance.exact else "?"
            return (f"{name}: {int((~good).sum())} of {value.numel()} elements differ, first at {at}: eager "
                    f"{value[at].item()}, compiled {got[at].item()}, in float64 {exact}")  # fmt: skip
    return None


@dataclass
class Outcome:
    difference: str | None = None
    compilations: int = 0
    fallbacks: tuple[str, ...] = ()


def outcome(program: Program) -> Outcome:
    """What comes of running the program eagerly and compiled, with all its sizes that eager accepts."""
    fuselens.reset()
    run = fuselens.compile(program.function(), dynamic=True if program.dynamic else None)
    report = run.__fuselens__.recorder.report
    found = Outcome()
    for call in range(1 + len(program.sizes)):
        if program.elements(call) > MOST_INPUT_ELEMENTS:
            continue
        try:
            eager = observe(program, program.function(), program.arguments(call))
        except (RuntimeError, IndexError):
            continue
        if call and (eager.error or sum(t.numel() for t in eager.tensors.values()) > 1_000_000):
            continue
        try:
            with checked():
                found.difference = compare(program, run, call)
        except Exception as error:  # noqa: BLE001 - the compiler's own errors are what we look for
            found.difference = f"{type(error).__name__}: {error}"
        if found.difference and report.breaks and _OVERWRITTEN in found.difference:
            found.difference = None  # by a later graph than the one that would have saved it
        if found.difference:
            found.difference = f"call {call}: {found.difference}"
            break
    found.compilations = len(report.graphs)
    found.fallbacks = tuple(d.message for d in report.diagnostics if d.code in ("FL301", "FL402", "FL404"))
    return found


# --- smaller programs -------------------------------------------------------------------------------------------


def reduced(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program with outputs, steps, sizes and inputs left out for as long as it fails."""
    error = _error(program)
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(program):
            if _error(candidate) == error and fails(candidate):
                program, changed = candidate, True
                break
    return program


def _error(program: Program) -> str | None:
    """What kind of exception eager raises, if any."""
    try:
        return (observe(program, program.function(), program.arguments()).error or "").partition(":")[0]
    except Exception:  # noqa: BLE001 - whatever eager says, it is no program to show
        return None


def _smaller(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for o in program.outputs:
            yield _pruned(replace(program, outputs=(o,)))
        for k in range(len(program.outputs)):
            yield _pruned(replace(program, outputs=program.outputs[:k] + program.outputs[k + 1 :]))
    if len(program.sizes) > 1:
        for s in program.sizes:
            yield replace(program, sizes=(s,))
    if program.sizes:
        yield replace(program, sizes=())
    if program.dynamic:
        yield replace(program, dynamic=False)
    for k in range(len(program.steps)):  # start after step k
        yield from _cut(program, k)
    for k in reversed(range(len(program.steps))):
        step = program.steps[k]
        rest = program.steps[:k] + program.steps[k + 1 :]
        if not step.name:
            yield _pruned(replace(program, steps=rest))
            continue
        for by in step.args:
            swapped = tuple(replace(s, args=tuple(by if a == step.name else a for a in s.args)) for s in rest)
            outputs = tuple(by if o == step.name else o for o in program.outputs)
            yield _pruned(replace(program, steps=swapped, outputs=outputs))
    for k, given in enumerate(program.inputs):
        others = program.inputs[:k], program.inputs[k + 1 :]
        if given.grad:
            yield replace(program, inputs=(*others[0], replace(given, grad=False), *others[1]))
        if given.layout and not given.of:
            yield replace(program, inputs=(*others[0], replace(given, layout=""), *others[1]))
        for d, n in enumerate(given.sizes):
            for m in (1, 2, 3):
                if m < n:
                    sizes = {**{n: m}}
                    yield replace(program, inputs=tuple(
                        replace(i, sizes=tuple(sizes.get(s, s) for s in i.sizes)) for i in program.inputs
                    ))  # fmt: skip
            if given.sizes:
                yield replace(program, inputs=(*others[0], replace(given, sizes=given.sizes[:d] + given.sizes[d + 1 :]),
                                               *others[1]))  # fmt: skip


def _cut(program: Program, k: int) -> Iterator[Program]:
    """The value of step ``k`` as an input of its shape, dtype and memory order."""
    step = program.steps[k]
    if not step.name:
        return
    scope: dict[str, Any] = {**NAMES, **program.arguments()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for s in program.steps[: k + 1]:
            exec(str(s), scope)
    value = scope[step.name]
    given = Input(
        step.name, str(value.dtype).removeprefix("torch."), tuple(value.shape), grad=value.requires_grad, seed=k
    )
    steps = program.steps[:k] + program.steps[k + 1 :]
    for grad in (True, False) if given.grad else (False,):
        yield _pruned(replace(program, inputs=(*program.inputs, replace(given, grad=grad)), steps=steps))


def _pruned(program: Program) -> Program:
    """Without steps and inputs that no output needs; calls for their effect stay while what they change is needed."""
    needed = set(program.outputs)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if step.name in needed or (not step.name and step.args[0] in needed):
            needed |= set(step.args)
            kept.append(step)
    bases = {i.of for i in program.inputs if i.name in needed}
    inputs = tuple(i for i in program.inputs if i.name in needed | bases)
    return replace(program, steps=tuple(reversed(kept)), inputs=inputs or program.inputs[:1])
