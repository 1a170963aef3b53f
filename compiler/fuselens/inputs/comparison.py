"""Compiled against eager: values, types, gradients, and time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import sandbox, torch_private
from ..ir.evaluate import extent
from ..record.diagnostics import make
from ..record.report import KernelRun, RunResult, Span
from . import rounding
from .compared import argument_names, closeness, place_of, plain, table, unlike
from .kernel_pass import Probed, timed, timed_on_gpu
from .program_state import ProgramState, RandomState, TorchSettings
from .structures import Values, leaves, tensors_in

_BUDGET_SECONDS = 2.0
_MOVED = "other last bits change it in eager, too"
_MOST_REPEATS = 200


VALUES = ("result", "gradient", "input", "state")
"""What of an observation is values, which programs that mean the same leave; the rest is how one program leaves them."""


@dataclass(slots=True)
class Notes:
    """What :func:`observe` notes of a call beside what it leaves."""

    seconds: float = 0.0
    written: list[str] = field(default_factory=list)  # inputs (``input 0``) and paths of the program's state


def compare(
    eager: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *,
    function: str, gradients: bool, progress: Callable[[str], None] = lambda _: None,
    unpooled: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext, target: str = "auto",
    probed: Iterable[Probed] = (), on_gpu: Callable[[], Iterable[KernelRun]] = tuple,
) -> RunResult:  # fmt: skip
    """Both callables on copies of the inputs, from the same state of the program and of its random numbers; see
    :class:`RunResult`. What they leave is compared, too: inputs that they write, parameters, buffers, variables.

    ``gradients`` makes floating inputs require gradients. Where eager raises because of that, both run without.
    ``progress`` is told what is being done; inside ``unpooled()`` freed memory goes back to the system, so that it can be
    measured; ``target`` is what is compiled for. ``probed`` are the kernels of the C++ units that the compiled call made,
    once it has made them, ``on_gpu`` gives those of its graphs for a GPU."""
    judged = judge(eager, compiled, args, kwargs, gradients=gradients, progress=progress)
    if judged.raised is not None:
        return _raised(function, *judged.raised)
    expected, actual, differing = judged.expected, judged.actual, judged.differing
    gradients = judged.gradients
    gradient_names = [name for name, found in expected["gradient"].items() if found is not None]
    with unchanged(eager, *args, *kwargs.values()):
        given, named = copied(args, False), copied(kwargs, False)
        progress("time")
        times = interleaved(lambda: eager(*given, **named), lambda: compiled(*given, **named))
    faster = [one / other for one, other in zip(*times, strict=True) if other > 0]
    progress("measure memory")
    with unpooled():
        eager_bytes, compiled_bytes = (_peak_bytes(fn, args, kwargs, gradients) for fn in (eager, compiled))
    progress("time kernels")
    kernels = _kernel_runs(compiled, args, kwargs, gradients, probed, on_gpu())
    arguments = argument_names(_target(eager), args, kwargs)
    written = [*judged.notes.written, *judged.compiled_notes.written]
    values, more = table(expected, actual, arguments, written, judged.excused)
    return RunResult(
        function=function, agrees=judged.agrees, detail=judged.detail, repeatable=judged.repeatable, max_error=judged.worst,
        gradients_agree=not any(where.startswith("gradient") for where in differing) if gradient_names else None,
        eager_seconds=statistics.median(times[0]), compiled_seconds=statistics.median(times[1]),
        compile_seconds=judged.compiled_notes.seconds, eager_quartiles=_quartiles(times[0]), compiled_quartiles=_quartiles(times[1]),
        speedup=statistics.median(faster) if faster else None, speedup_quartiles=_quartiles(faster) if len(faster) > 1 else None,
        values=tuple(values), more_values=more, kernels=kernels,
        span=place(eager, args, kwargs, returned=next(iter(differing)) == "result") if differing else None,
        eager_bytes=eager_bytes, compiled_bytes=compiled_bytes, instead=_instead(target, compiled, (args, kwargs)),
    )  # fmt: skip


@dataclass(slots=True)
class Judged:
    """Two calls compared: what they left, and what of it differs, by where. ``raised`` says which of them raised what. A
    difference that eager has by itself is ``excused``, with the reason."""

    gradients: bool
    notes: Notes
    compiled_notes: Notes
    expected: dict[str, Any] = field(default_factory=dict)
    actual: dict[str, Any] = field(default_factory=dict)
    raised: tuple[str, Exception] | None = None
    differing: dict[str, str] = field(default_factory=dict)
    excused: dict[str, str] = field(default_factory=dict)
    amplified: list[str] = field(default_factory=list)
    repeatable: bool = True
    worst: float = 0.0

    @property
    def agrees(self) -> bool:
        return self.repeatable and not self.differing and self.raised is None

    @property
    def detail(self) -> str:
        """The first difference, or what was compared."""
        if self.differing:
            return next(iter(self.differing.values()))
        if not self.repeatable:
            return "eager itself gives another result each time, so there is nothing to compare with"
        out = "values, dtypes and shapes agree"
        out += "; gradients agree" if any(g is not None for g in self.expected["gradient"].values()) else ""
        out += "; what it changes agrees" if self.notes.written else ""
        if self.amplified:
            out += f"; rounding decides {_named(self.amplified)}: {_MOVED}"
        return out


def judge(
    eager: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *,
    gradients: bool, progress: Callable[[str], None] = lambda _: None,
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    other: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> Judged:  # fmt: skip
    """Calls both once and compares what they leave. Where eager raises because inputs require gradients, both do without.
    Eager's calls are made inside of ``around()``; ``other`` are the compiled call's inputs, where it has its own."""
    progress("run eagerly")
    judged = Judged(gradients, Notes(), Notes())

    def left(args: Any, kwargs: Any, notes: Notes | None = None) -> dict[str, Any]:
        with around():
            return observe(eager, args, kwargs, gradients=gradients, notes=notes)

    expected = left(args, kwargs, judged.notes)
    if "raised" in expected and gradients:
        gradients = judged.gradients = False
        expected = left(args, kwargs, judged.notes)
    if "raised" in expected:
        judged.raised = "eager", expected["raised"]
        return judged
    progress("run compiled")
    actual = observe(compiled, *(other or (args, kwargs)), gradients=gradients, notes=judged.compiled_notes)
    if "raised" in actual:
        judged.raised = "compiled", actual["raised"]
        return judged
    judged.expected, judged.actual, worst = expected, actual, [0.0]
    differing = differences(expected, actual, worst, argument_names(_target(eager), args, kwargs))
    if differing:  # a clock, an iterator, a file: what differs from call to call proves nothing
        unsteady = differences(expected, left(args, kwargs))
        judged.repeatable = "result" not in unsteady
        judged.excused |= dict.fromkeys(unsteady, "eager itself gives another value each time")
        differing = {where: found for where, found in differing.items() if where not in unsteady}
    # nor does what other last bits change as well, as an optimizer does that divides noise by noise
    if differing:
        moved = [_moved(eager, args, kwargs, gradients, rounding.Rounding(seed)) for seed in range(rounding.RUNS)]
        limits = [_moved(eager, args, kwargs, gradients, by) for by in rounding.limits()]
        judged.amplified = [where for where in differing if _is_rounding(where, expected, actual, moved, limits)]
        judged.excused |= dict.fromkeys(judged.amplified, f"rounding decides it: {_MOVED}")
        differing = {where: found for where, found in differing.items() if where not in judged.amplified}
    judged.differing, judged.worst = differing, worst[0]
    return judged


def differences(
    expected: dict[str, Any], actual: dict[str, Any], worst: list[float] | None = None, arguments: Sequence[str] = ()
) -> dict[str, str]:  # fmt: skip
    """What differs between two observations, in words, by where: the result, each gradient, each input, each leaf of the
    program's state that eager has. ``arguments`` names the tensors among the inputs."""
    if "raised" in actual:
        return {"result": "it raised"}
    worst = [0.0] if worst is None else worst
    found: dict[str, str | None] = {"result": differ(expected["result"], actual["result"], "result", worst)}
    for what in ("gradient", "state"):
        for key, value in expected[what].items():
            found[f"{what} {key}"] = differ(value, actual[what].get(key), place_of(what, key, arguments), worst)
    for number, (before, after) in enumerate(zip(expected["input"], actual["input"], strict=True)):
        found[f"input {number}"] = differ(before, after, place_of("input", str(number), arguments), worst)
    return {where: words for where, words in found.items() if words}


def _named(places: list[str]) -> str:
    first = places[0].removeprefix("state ")
    return first if len(places) == 1 else f"{first} and {len(places) - 1} more"


def _moved(
    eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, by: rounding.Rounding
) -> dict[str, Any]:
    with by:
        return observe(eager, args, kwargs, gradients=gradients)


def _is_rounding(
    where: str, expected: dict[str, Any], actual: dict[str, Any], moved: list[dict[str, Any]], limits: list[dict[str, Any]]
) -> bool:  # fmt: skip
    """Whether all that differs in one place is what eager makes of other last bits, see :mod:`.rounding`."""
    what, _, key = where.partition(" ")

    def values(observed: dict[str, Any]) -> Values:
        at = observed.get(what)  # none where it raised
        at = at[int(key)] if what == "input" and at is not None else at.get(key) if key and at is not None else at
        return list(leaves(where, at))

    one, other, runs, at_limits = values(expected), values(actual), [*map(values, moved)], [*map(values, limits)]
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        rounding.decides(name, one, other, runs, at_limits) for (name, e), (_, a) in pairs if differ(e, a, name)
    )


def _instead(target: str, compiled: Callable[..., Any], inputs: Any) -> str:
    """What of a GPU's code did not run. One input there is enough: with it the graph's kernels are there."""
    module = _target(compiled)
    tensors = [*tensors_in(inputs), *(module.parameters() if isinstance(module, torch.nn.Module) else ())]
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


def observe(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, gradients: bool, keeping: Any = None,
    notes: Notes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Everything that a call of ``fn`` on copies of the inputs leaves: its result and the gradients, the tensors among
    the inputs and the program's state as they are then (that of ``keeping``, its file, too), or what it raised. What
    nobody compares is in ``notes``, for who asks. A gradient that is missing is zero: how a value that was not chosen
    comes into a graph decides whether it has one."""
    roots = [v for v in (keeping, _target(fn), *args, *kwargs.values()) if not isinstance(v, torch.Tensor)]
    before, random, settings = ProgramState(*roots), RandomState(), TorchSettings()
    copies: dict[int, Any] = {}
    given = copied(args, gradients, copies), copied(kwargs, gradients, copies)
    named = [(f"input {number}", t) for number, t in enumerate(tensors_in(given))]
    versions = [version(t) for _, t in named]
    try:
        start = time.perf_counter()
        result = fn(*given[0], **given[1])
        found = gradients_of(_modules(keeping, fn, args, kwargs), result, given, materialized=True) if gradients else {}
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # what fails there is raised here
        seconds = time.perf_counter() - start
        left_set = TorchSettings().values
        after, left = ProgramState(*roots).values, [_detached(t) for t in tensors_in(given)]
        if notes is not None:
            inputs = enumerate(zip(tensors_in((args, kwargs)), left, strict=True))
            notes.seconds = seconds
            notes.written = [f"input {number}" for number, (a, b) in inputs if differ(a.detach(), b, "")]
            notes.written += [p for p, value in before.values.items() if differ(value, after.get(p), p)]
        return {
            "result": _detached(result),
            "gradient": found,
            "input": left,
            "state": after,
            "settings": left_set,
            "memory": dict(memory(result, named)),
            "written": [version(t) != before for (_, t), before in zip(named, versions, strict=True)],
        }
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        return {"raised": error}
    finally:
        settings.restore()
        before.restore()
        random.restore()


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to, as autograd counts it."""
    return 0 if tensor.is_inference() else tensor._version


def memory(result: Any, named: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    """Whose memory each tensor of a result has, how it lies there, and whether it requires a gradient."""
    known = list(named)
    for where, value in leaves("result", result):
        if not isinstance(value, torch.Tensor) or type(value) not in _PLAIN or value.layout is not torch.strided:
            continue
        same = next((name for name, t in known if t is value), "")
        owner = next((name for name, t in known if _shares(t, value)), "") if not same else ""
        known.append((where, value))
        said = f"{same} itself" if same else f"memory of {owner}" if owner else "memory of its own"
        steps = ", ".join("*" if n < 2 else str(s) for n, s in zip(value.shape, value.stride(), strict=True))
        said += f", strides ({steps})" if value.numel() else ""
        yield where, f"{said}, requires a gradient" if value.requires_grad else said


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    if type(one) not in _PLAIN or one.layout is not torch.strided or not one.numel() or not other.numel():
        return False
    return torch_private.storage_key(one) == torch_private.storage_key(other)


def _modules(keeping: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The modules that a call reaches, as one whose parameters have the names that they have there; of several, each has a name."""
    target = _target(fn)
    named: dict[str, Any] = {"program": keeping, "self": target}
    with contextlib.suppress(TypeError, ValueError):  # no signature, or other arguments: they count, then
        named |= inspect.signature(getattr(target, "forward", target)).bind(*args, **kwargs).arguments
    named |= {f"argument {number}": value for number, value in enumerate(args)} | kwargs
    modules: dict[torch.nn.Module, str] = {}
    for name, value in named.items():
        if isinstance(value, torch.nn.Module):
            modules.setdefault(value, name)
    if len(modules) == 1:
        return next(iter(modules))
    found = torch.nn.Module()
    found._modules |= {name: module for module, name in modules.items()}
    return found


def _target(fn: Any) -> Any:
    """The function or module that was compiled."""
    return getattr(getattr(fn, "__fuselens__", None), "target", fn)


@contextlib.contextmanager
def unchanged(*values: Any) -> Iterator[None]:
    """Puts the state of ``values``, torch's settings, and the state of random numbers back afterwards."""
    state = ProgramState(*(_target(v) for v in values if not isinstance(v, torch.Tensor)))
    random, settings = RandomState(), TorchSettings()
    try:
        yield
    finally:
        settings.restore()
        random.restore()
        state.restore()


def _peak_bytes(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool) -> int | None:
    """How much more memory is held at most during a call, with its gradients, than before it: of the GPU where an input
    is on one, else of the process, in whole pages. None where the system does not tell."""
    module = _target(fn)
    given, given_kwargs = copied(args, gradients), copied(kwargs, gradients)

    def call() -> None:
        result = fn(*given, **given_kwargs)
        if gradients:
            gradients_of(module, result, (given, given_kwargs))

    with unchanged(module, *args, *kwargs.values()):
        return peak_bytes(call, on_gpu=any(t.is_cuda for t in tensors_in((given, given_kwargs))))


def peak_bytes(call: Callable[[], object], *, on_gpu: bool) -> int | None:
    """How much more memory is held at most during a second call than before it."""
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


def copied(value: Any, gradients: bool, copies: dict[int, Any] | None = None) -> Any:
    """The inputs with tensors cloned, each once for all that share ``copies``; floating leaves require grad when gradients are
    compared."""
    copies = {} if copies is None else copies
    if isinstance(value, torch.Tensor):
        if id(value) not in copies:
            copies[id(value)] = _copy_of(value, gradients)
        return copies[id(value)]
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(copied(v, gradients, copies) for v in value)
    if type(value) is dict:
        return {k: copied(v, gradients, copies) for k, v in value.items()}
    return value


def _copy_of(value: torch.Tensor, gradients: bool) -> torch.Tensor:
    clone = value.detach().clone(memory_format=torch.preserve_format)
    if (clone.stride() != value.stride() or _is_shifted(value)) and not _overlaps(value):
        clone = _like(value)
        clone.copy_(value.detach())
    floating = clone.is_floating_point() or clone.is_complex()
    return clone.requires_grad_(value.requires_grad or gradients) if floating else clone


_ALIGNED = 64  # bytes: where memory that torch gives begins


def _is_shifted(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_meta
    return plain and tensor.storage_offset() * tensor.itemsize % _ALIGNED != 0


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """New memory for a tensor of the same strides, which begins as far from an aligned place."""
    offset = tensor.storage_offset() % _ALIGNED if _is_shifted(tensor) else 0
    size = offset + extent(tensor.shape, tensor.stride())
    memory = torch.zeros(size, dtype=tensor.dtype, device=tensor.device)  # what lies between may be read
    return memory.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {k: _detached(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detached(v) for v in value)
    return value


def gradients_of(module: Any, result: Any, inputs: Any, *, materialized: bool = False) -> dict[str, Any]:
    """By the name of the input or parameter; ``materialized`` gives zeros where there is none."""
    named = {f"argument {i}": t for i, t in enumerate(tensors_in(inputs)) if t.requires_grad and t.is_leaf}
    if isinstance(module, torch.nn.Module):
        named |= {n: p for n, p in module.named_parameters() if p.requires_grad}
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    if not outputs or not named:
        return {n: torch.zeros_like(t) for n, t in named.items()} if materialized else {}
    found = torch.autograd.grad(
        outputs, list(named.values()), seeds(outputs), allow_unused=True, materialize_grads=materialized
    )
    return dict(zip(named, found, strict=True))


def seeds(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What gradients start from: no two elements alike, so that none takes another's place unseen."""
    return [
        torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64, device="cpu").reshape(t.shape).to(t.dtype).to(t.device)
        for t in outputs
    ]


def differ(expected: Any, actual: Any, where: str, worst: list[float] | None = None) -> str | None:
    """The first difference between two results in words; None when they agree. ``worst[0]`` takes the largest error."""
    worst = worst if worst is not None else [0.0]
    if isinstance(expected, torch.Tensor) and type(expected) is type(actual):
        return _differ_tensors(plain(expected), plain(actual), where, worst)
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
        numbers = [torch.tensor(v, device="cpu") for v in (expected, actual)]
        return _differ_tensors(numbers[0], numbers[1], where, worst)
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


def _differ_tensors(expected: torch.Tensor, actual: torch.Tensor, where: str, worst: list[float]) -> str | None:
    if why := unlike(expected, actual):
        return f"{where}: {why}"
    found = closeness(expected, actual)
    worst[0] = max(worst[0], found.absolute)
    if found.first is None:
        return None
    return f"{where}: {found.text(expected.numel())}"


def interleaved(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Seconds of calls of both, made in turn, so that a noisy machine disturbs both alike."""
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
    return times


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _kernel_runs(
    compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, probed: Iterable[Probed],
    on_gpu: Iterable[KernelRun],
) -> tuple[KernelRun, ...]:  # fmt: skip
    """Times the kernels of calls as they were timed, and of calls with their gradients as they were compared."""

    def call() -> None:
        compiled(*copied(args, False), **copied(kwargs, False))

    def training() -> None:
        given, named = copied(args, True), copied(kwargs, True)
        gradients_of(_target(compiled), compiled(*given, **named), (given, named))

    calls = (call, training) if gradients else (call,)
    with unchanged(compiled, *args, *kwargs.values()):
        if any(t.is_cuda for t in tensors_in((args, kwargs))):
            return tuple(timed_on_gpu(on_gpu, *calls))
        return tuple(timed(probed, *calls))


def place(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, returned: bool) -> Span | None:
    """Where the function returned from, in one more eager call, or else its first line; None for what has no code."""
    target: Any = _target(fn)
    target = getattr(type(target), "forward", target) if isinstance(target, torch.nn.Module) else target
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    found: list[tuple[int, int, int, int]] = []

    def follow(frame: types.FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        if event == "return" and frame.f_lasti >= 0:
            line, last, column, end = list(code.co_positions())[frame.f_lasti // 2]
            if line is not None:
                found.append((line, column or 0, last or line, end or 0))
        return follow

    if returned:
        before = sys.gettrace()
        with unchanged(fn, *args, *kwargs.values()), contextlib.suppress(Exception):
            given, named = copied(args, False), copied(kwargs, False)
            sys.settrace(follow)
            try:
                fn(*given, **named)
            finally:
                sys.settrace(before)
    first = code.co_firstlineno
    return Span(code.co_filename, *(found[-1] if found else (first, 0, first, 0)))
