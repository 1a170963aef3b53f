"""Compiled against eager: values, types, gradients, and time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from .. import sandbox
from ..record.diagnostics import make
from ..record.report import RunResult, Span
from .program_state import ProgramState

# relative and absolute tolerances by dtype: twice torch.testing's defaults for float32 allow a different summation order
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-9), torch.float32: (2e-5, 2e-5), torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2),
    torch.complex64: (2e-5, 2e-5), torch.complex128: (1e-7, 1e-9),
}  # fmt: skip
_BUDGET_SECONDS = 2.0
_MOST_REPEATS = 200


def compare(
    eager: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *,
    function: str, gradients: bool, progress: Callable[[str], None] = lambda _: None,
    unpooled: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext, target: str = "auto",
) -> RunResult:  # fmt: skip
    """Both callables on copies of the inputs, from the same random state; see :class:`RunResult`. ``progress`` is told
    what is being done; inside ``unpooled()`` freed memory goes back to the system, so that it can be measured; ``target``
    is what is compiled for."""
    progress("run eagerly")
    try:
        expected, expected_gradients = _once(eager, args, kwargs, gradients)
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        return _raised(function, "eager", error)
    progress("run compiled")
    start = time.perf_counter()
    try:
        actual, actual_gradients = _once(compiled, args, kwargs, gradients)
    except Exception as error:  # noqa: BLE001
        return _raised(function, "compiled", error)
    compile_seconds = time.perf_counter() - start
    worst = [0.0]
    difference = differ(expected, actual, "result", worst)
    gradient_difference = (
        differ(expected_gradients, actual_gradients, "gradient", worst) if expected_gradients else None
    )
    progress("time")
    eager_seconds, compiled_seconds = interleaved(lambda: eager(*args, **kwargs), lambda: compiled(*args, **kwargs))
    progress("measure memory")
    with unpooled():
        eager_bytes, compiled_bytes = (_peak_bytes(fn, args, kwargs, gradients) for fn in (eager, compiled))
    detail = (
        difference
        or gradient_difference
        or "values, dtypes and shapes agree" + ("; gradients agree" if expected_gradients else "")
    )
    return RunResult(
        function=function, agrees=difference is None and gradient_difference is None, detail=detail,
        max_error=worst[0], gradients_agree=None if not expected_gradients else gradient_difference is None,
        eager_seconds=eager_seconds, compiled_seconds=compiled_seconds, compile_seconds=compile_seconds,
        eager_bytes=eager_bytes, compiled_bytes=compiled_bytes, instead=_instead(target, compiled, (args, kwargs)),
    )  # fmt: skip


def _instead(target: str, compiled: Callable[..., Any], inputs: Any) -> str:
    """What of a GPU's code did not run. One input there is enough: with it the graph's kernels are there."""
    module = getattr(getattr(compiled, "__fuselens__", None), "target", None)
    tensors = [*_leaves(inputs), *(module.parameters() if isinstance(module, torch.nn.Module) else ())]
    if not target.startswith("cuda") or any(t.is_cuda for t in tensors):
        return ""
    why = "its tensors are on the CPU" if torch.cuda.is_available() else "this machine has no GPU"
    return f"the kernels for {target} did not run, because {why}: C++ kernels of the same graphs did"


def _raised(function: str, which: str, error: Exception) -> RunResult:
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.lineno is not None]
    span = None
    if frames:
        f = frames[-1]
        span = Span(f.filename, f.lineno or 1, f.colno or 0, f.end_lineno or f.lineno or 1, f.end_colno or 0)
    if refused := sandbox.behind(error):
        return RunResult(function, agrees=False, detail=refused.message, error=refused)
    return RunResult(
        function=function, agrees=False, detail=f"the {which} call raised {why}",
        error=make("FL909", span, what=function, why=why),
    )  # fmt: skip


def _once(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool
) -> tuple[Any, dict[str, Any]]:
    module = getattr(getattr(fn, "__fuselens__", None), "target", fn)
    with unchanged(module):
        given, given_kwargs = copied(args, gradients), copied(kwargs, gradients)
        result = fn(*given, **given_kwargs)
        found = _gradients(module, result, (given, given_kwargs)) if gradients else {}
        return _detached(result), found


def observe(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, gradients: bool, keeping: Any = None
) -> dict[str, Any]:
    """Everything that a call of ``fn`` on copies of the inputs leaves: its result and the gradients, the tensors among
    the inputs and the program's state as they are then (that of ``keeping``, its file, too), or what it raised. A
    gradient that is missing is zero: how a value that was not chosen comes into a graph decides whether it has one."""
    target = getattr(getattr(fn, "__fuselens__", None), "target", fn)
    roots = [v for v in (keeping, target, *args, *kwargs.values()) if not isinstance(v, torch.Tensor)]
    modules = [m for m in roots if isinstance(m, torch.nn.Module)]
    before, random = ProgramState(*roots), torch.get_rng_state()
    given = copied(args, gradients), copied(kwargs, gradients)
    try:
        result = fn(*given[0], **given[1])
        found = _gradients(torch.nn.ModuleList(modules), result, given, materialized=True) if gradients else {}
        return {
            "result": _detached(result),
            "gradient": found,
            "input": [_detached(t) for t in _leaves(given)],
            "state": ProgramState(*roots).values,
        }
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        return {"raised": error}
    finally:
        before.restore()
        torch.set_rng_state(random)


@contextlib.contextmanager
def unchanged(*values: Any) -> Iterator[None]:
    """Puts the state of ``values``, and torch's random state, back afterwards."""
    state = ProgramState(*(v for v in values if not isinstance(v, torch.Tensor)))
    random = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random)
        state.restore()


def _peak_bytes(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool) -> int | None:
    """How much more memory is held at most during a call, with its gradients, than before it: of the GPU where an input
    is on one, else of the process, in whole pages. None where the system does not tell."""
    module = getattr(getattr(fn, "__fuselens__", None), "target", fn)
    given, given_kwargs = copied(args, gradients), copied(kwargs, gradients)
    on_gpu = any(t.is_cuda for t in _leaves((given, given_kwargs)))

    def call() -> None:
        result = fn(*given, **given_kwargs)
        if gradients:
            _gradients(module, result, (given, given_kwargs))

    with unchanged(module):
        call()  # what a first call makes for all later ones is not counted
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before
        gc.collect()
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what earlier calls freed is not held by this one
        try:
            Path("/proc/self/clear_refs").write_bytes(b"5")  # the high-water mark is what is resident now
        except OSError:
            return None
        before = _status_bytes("VmRSS")
        call()
        return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def copied(value: Any, gradients: bool) -> Any:
    """The inputs with tensors cloned; floating leaves require grad when gradients are compared."""
    if isinstance(value, torch.Tensor):
        clone = value.detach().clone(memory_format=torch.preserve_format)
        if clone.stride() != value.stride() and not _overlaps(value):
            clone = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            clone.copy_(value.detach())
        floating = clone.is_floating_point() or clone.is_complex()
        return clone.requires_grad_(value.requires_grad or gradients) if floating else clone
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(copied(v, gradients) for v in value)
    if type(value) is dict:
        return {k: copied(v, gradients) for k, v in value.items()}
    return value


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _leaves(v)]
    return []


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {k: _detached(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detached(v) for v in value)
    return value


def _gradients(module: Any, result: Any, inputs: Any, *, materialized: bool = False) -> dict[str, Any]:
    """By the name of the input or parameter; ``materialized`` gives zeros where there is none."""
    named = {f"argument {i}": t for i, t in enumerate(_leaves(inputs)) if t.requires_grad and t.is_leaf}
    if isinstance(module, torch.nn.Module):
        named |= {n: p for n, p in module.named_parameters() if p.requires_grad}
    outputs = [t for t in _leaves(result) if t.requires_grad]
    if not outputs or not named:
        return {n: torch.zeros_like(t) for n, t in named.items()} if materialized else {}
    seeds = [
        torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape).to(t.dtype).to(t.device)
        for t in outputs
    ]
    found = torch.autograd.grad(outputs, list(named.values()), seeds, allow_unused=True, materialize_grads=materialized)
    return dict(zip(named, found, strict=True))


def differ(expected: Any, actual: Any, where: str, worst: list[float] | None = None) -> str | None:
    """The first difference between two results in words; None when they agree. ``worst[0]`` takes the largest error."""
    worst = worst if worst is not None else [0.0]
    if isinstance(expected, torch.Tensor) and type(expected) is type(actual):
        return _differ_tensors(_plain(expected), _plain(actual), where, worst)
    if type(expected) is not type(actual):
        return f"{where}: eager gives a {type(expected).__name__}, compiled a {type(actual).__name__}"
    if hasattr(expected, "__array_interface__") and not isinstance(expected, type):  # numpy's
        arrays: tuple[Any, Any] = expected, actual
        kinds = [(v.dtype, v.shape, v.flags.writeable) for v in arrays]
        if kinds[0] != kinds[1]:
            return f"{where}: eager gives {kinds[0]}, compiled {kinds[1]}"
        expected, actual = expected.tolist(), actual.tolist()
    if isinstance(expected, dict):
        if list(expected) != list(actual):
            return f"{where}: keys differ: {list(expected)} and {list(actual)}"
        pairs = [(f"{where}[{k!r}]", expected[k], actual[k]) for k in expected]
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(actual):
            return f"{where}: lengths differ: {len(expected)} and {len(actual)}"
        pairs = [(f"{where}[{i}]", e, a) for i, (e, a) in enumerate(zip(expected, actual, strict=True))]
    elif type(expected) is float:  # out of a tensor, mostly
        return _differ_tensors(torch.tensor(expected), torch.tensor(actual), where, worst)
    else:
        try:
            same = bool(expected == actual) or expected is actual or (expected != expected and actual != actual)
        except Exception:  # noqa: BLE001 - a user's __eq__ may raise
            return None
        return None if same else f"{where}: eager gives {expected!r}, compiled {actual!r}"
    for name, e, a in pairs:
        found = differ(e, a, name, worst)
        if found:
            return found
    return None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without code of its class, in the layout that all operators know."""
    plain = tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)
    return plain.to_dense() if plain.is_mkldnn else plain


def _differ_tensors(expected: torch.Tensor, actual: torch.Tensor, where: str, worst: list[float]) -> str | None:
    for what in ("dtype", "shape", "device", "requires_grad"):
        e, a = getattr(expected, what), getattr(actual, what)
        if e != a:
            return f"{where}: {what} differs: eager {e}, compiled {a}"
    if expected.numel() == 0:
        return None
    if expected.dtype in TOLERANCE:
        relative, absolute = TOLERANCE[expected.dtype]
        wide = torch.complex128 if expected.is_complex() else torch.float64
        e, a = expected.detach().to(wide), actual.detach().to(wide)
        finite = torch.isfinite(e) & torch.isfinite(a)
        error = (e - a).abs()[finite]
        if error.numel():
            worst[0] = max(worst[0], float(error.max()))
        close = torch.isclose(a, e, rtol=relative, atol=absolute * max(1.0, float(e.abs()[finite].max()) if finite.any() else 1.0),
                              equal_nan=True)  # fmt: skip
    else:
        close = expected == actual
    if bool(close.all()):
        return None
    bad = (~close).nonzero()[0].tolist()
    at = tuple(bad)
    count, e, a = int((~close).sum()), expected[at].item(), actual[at].item()
    return f"{where}: {count} of {expected.numel()} elements differ, first at {at}: eager {e}, compiled {a}"


def interleaved(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of both callables, run in turn, so that a noisy machine disturbs both alike."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + _BUDGET_SECONDS
    for call in (first, second):
        call()
    while len(times[0]) < _MOST_REPEATS and (len(times[0]) < 5 or time.perf_counter() < deadline):
        for call, record in zip((first, second), times, strict=True):
            synchronize()
            start = time.perf_counter()
            call()
            synchronize()
            record.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
