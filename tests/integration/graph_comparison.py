"""A random graph run eagerly and compiled, and compared in all it does; tolerances come from the graph itself.

The same program is run in float64, once as it is and some times with noise: each result of a step is changed by as much
as rounding to its dtype may change it. What compiled code may differ from eager by is what rounding explains, so an
ill-conditioned program raises no false alarm, and a comparison of nearly equal numbers may fall either way.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

import fuselens

from .graph_stages import checked
from .random_graphs import NAMES, Input, Program, Step

EPSILON = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
_FOLDS = re.compile(
    r"sum|mean|var|std|norm|@|matmul|einsum|conv|linear|softm|logsumexp|pool|attention|loss|entropy|similarity|lerp|index_add"
)
_CHOOSES = re.compile(r"amax|amin|max\(|min\(|sort|topk|cummax")  # exact, and its backward compares with the result
SAMPLES, MORE_SAMPLES = 2, 40


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
    seeds = [torch.linspace(0.5, 1.5, o.numel(), dtype=torch.float64).reshape(o.shape).to(o.dtype) for o in wanted]
    try:
        found = torch.autograd.grad(wanted, list(leaves.values()), seeds, allow_unused=True)
    except RuntimeError as error:
        return {}, f"{type(error).__name__}: {error}"
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


def _wide(text: str) -> str:
    text = re.sub(r"torch\.(float32|bfloat16|float16)\b", "torch.float64", text)
    return re.sub(r"\.(half|float|bfloat16)\(\)", ".double()", text)


class Reference:
    """The program in float64; ``dtypes`` are those of the values in eager, which tell how much each is rounded."""

    def __init__(self, program: Program, arguments: dict[str, torch.Tensor]) -> None:
        self.program = program
        self.dtypes: dict[str, torch.dtype] = {n: a.dtype for n, a in arguments.items()}
        self.arguments = arguments
        self._step_dtypes()

    def _step_dtypes(self) -> None:
        scope: dict[str, Any] = {**NAMES, **{n: a.detach().clone() for n, a in self.arguments.items()}}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            for step in self.program.steps:
                exec(str(step), scope)
                if step.name:
                    self.dtypes[step.name] = scope[step.name].dtype

    def run(self, noise: torch.Generator | None) -> Callable[..., Any]:
        def call(*given: torch.Tensor) -> Any:
            scope: dict[str, Any] = dict(NAMES)
            for name, value in zip(self.arguments, given, strict=True):
                scope[name] = value
            with _default(torch.float64):
                for step in self.program.steps:
                    text = _wide(step.text)
                    target = step.name or step.args[0]
                    operands = {a: scope[a] for a in step.args}
                    if noise is not None and step.name and _FOLDS.search(step.text):
                        operands = {a: self._noisy(v, a, noise) for a, v in operands.items()}
                    exec(f"{step.name} = {text.format(*step.args)}" if step.name else text.format(*step.args),
                         (local := {**scope, **operands}))  # fmt: skip
                    scope[target] = local[target] if step.name else scope[target]
                    if noise is not None:
                        self._disturb(scope[target], target, [scope[a] for a in step.args] if step.name else [], noise,
                                      chooses=bool(_CHOOSES.search(step.text)))  # fmt: skip
            return tuple(scope[o] for o in self.program.outputs)

        return call

    def _noisy(self, value: torch.Tensor, name: str, noise: torch.Generator) -> torch.Tensor:
        if not value.is_floating_point():
            return value
        return value * (1 + EPSILON[self.dtypes[name]] * _uniform(value, noise))

    def _disturb(
        self, value: torch.Tensor, name: str, operands: list[torch.Tensor], noise: torch.Generator, *, chooses: bool
    ) -> None:
        epsilon = EPSILON.get(self.dtypes[name])
        if (
            epsilon is None
            or not value.is_floating_point()
            or chooses
            or any(_address(o) == _address(value) for o in operands)
        ):
            return
        if value.requires_grad and operands:
            value.register_hook(lambda g: g * (1 + epsilon * _uniform(g, noise)))
        if 0 not in value.stride():
            value.data.mul_(1 + epsilon * _uniform(value, noise))


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

    def _sample(self, noise: torch.Generator | None) -> dict[str, torch.Tensor]:
        arguments = _widened(self.program.arguments(self.call), self.program)
        return observe(self.program, self.reference.run(noise), arguments).tensors

    def more(self, count: int) -> None:
        while len(self.samples) < count:
            self.samples.append(self._sample(torch.Generator().manual_seed(len(self.samples))))

    def covers(self, name: str, expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
        """For each element whether the difference is explained."""
        same = (actual == expected) | (actual.isnan() & expected.isnan())
        exact = self.exact.get(name)
        if exact is None or exact.shape != expected.shape:
            return same
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
        return same | overflown | ((actual.double() - wide).abs() <= allowed)


def compare(program: Program, compiled: Callable[..., Any], call: int) -> str | None:
    """The first difference between eager and ``compiled`` in words; None when they agree."""
    expected = observe(program, program.function(), program.arguments(call))
    actual = observe(program, compiled, program.arguments(call))
    if expected.error or actual.error:
        return None if expected.error == actual.error else f"eager raises {expected.error}, compiled {actual.error}"
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
        if found.difference:
            found.difference = f"call {call}: {found.difference}"
            break
    found.compilations = len(report.graphs)
    found.fallbacks = tuple(d.message for d in report.diagnostics if d.code in ("FL301", "FL402", "FL404"))
    return found


# --- smaller programs -------------------------------------------------------------------------------------------


def reduced(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program with outputs, steps, sizes and inputs left out for as long as it fails."""
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(program):
            if _runs(candidate) and fails(candidate):
                program, changed = candidate, True
                break
    return program


def _runs(program: Program) -> bool:
    try:
        return observe(program, program.function(), program.arguments()).error is None
    except Exception:  # noqa: BLE001 - whatever eager says, it is no program to show
        return False


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
