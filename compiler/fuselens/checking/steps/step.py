"""Runs a training step without values, twice, and hears what the second one holds: see :mod:`fuselens.footprint.ledger`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import api, torch_private
from ...capture.classify import is_library_file
from ...config import CARDS, Config
from ...footprint import costs, curve
from ...footprint.ledger import Ledger
from ...inputs.example_inputs import ExampleInputs
from ...ir.card import usual
from ...pipeline import Recorder
from ...ranks.held import modules_of
from ...record.report import Span, StepMemory
from ...slices import Compiled
from ..function_check import Call
from ..located import Found
from . import optimizers
from .sizes import Sizes

_STEPS = 2  # the first one makes gradients, and the state of an optimizer
_NO_OPTIMIZER = "none"


class StepRaised(Exception):
    """The step raised; ``__cause__`` is what."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is tried of a step beside its sizes: options of the compiler, of the optimizer, and what surrounds it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer's groups
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


AS_IT_IS = Change()


@dataclass(frozen=True, slots=True)
class Subject:
    """A function to be called, and the text of its file."""

    name: str
    found: Found
    inputs: ExampleInputs
    config: Config
    source: str = ""
    span: Span | None = None
    evaluated: Compiled | None = None

    @classmethod
    def of(cls, call: Call, source: str) -> Subject:
        annotated = call.annotated
        return cls(
            annotated.qualname, call.found, call.inputs, call.config, source, annotated.name_span, call.evaluated
        )


class Step:
    """One function's step. ``config.step_optimizer`` names an optimizer, "none" for none."""

    def __init__(self, subject: Subject, config: Config) -> None:
        self.subject, self.config = subject, config
        self.target = f"cuda:sm_{CARDS[config.card].architecture}" if config.card else subject.config.target
        self.sizes = Sizes.of(subject.found, subject.inputs)
        self.modules = modules_of(subject.found.target, (*subject.inputs.args, *subject.inputs.kwargs.values()))
        self.parameters = list(dict.fromkeys(p for m in self.modules for p in m.parameters()))
        self.optimizers = self._optimizers(subject.source)
        self.gradients = optimizers.gradients_in(subject.source, subject.name.rpartition(".")[2])
        self.notes: list[str] = []
        self._found: dict[tuple[Any, ...], StepMemory] = {}
        self._compiled: dict[Any, tuple[Any, Recorder]] = {}

    def _optimizers(self, source: str) -> list[torch.optim.Optimizer]:
        trained = [p for p in self.parameters if p.requires_grad]
        name = self.config.step_optimizer
        if not trained or name == _NO_OPTIMIZER:
            return []
        if name:
            kind = optimizers.named(name)
            if kind is None:
                raise ValueError(f"there is no optimizer {name!r} in torch.optim: give {optimizers.known()} or none")
            return [kind(trained, lr=1e-3)]  # type: ignore[call-arg]
        made = optimizers.of_program(trained)
        text = [] if made else [optimizers.of_text(source, trained)]
        return made or [o for o in text if o is not None]

    def memory(self, sizes: Mapping[str, int], change: Change = AS_IT_IS, *, varying: bool = False) -> StepMemory:
        """With these sizes in place of the example's; ``varying``: of a function that is compiled once for all of them, and not for
        these as a run would. Raises UnknownSize and StepRaised."""
        key = tuple(sorted(sizes.items())), id(change), varying
        if key not in self._found:
            self._found[key] = self._measured(sizes, change, varying)
        return self._found[key]

    def _measured(self, sizes: Mapping[str, int], change: Change, varying: bool) -> StepMemory:
        architecture = architecture_of(self.target)
        machine = costs.of_card(usual(architecture)) if architecture else costs.PROCESSOR
        ledger = Ledger(is_library_file, machine, architecture)
        ledger.outside.add(Step._measured.__code__)
        compiled, recorder = self._compile(sizes, change, varying)
        recorder.ledger = ledger
        for tensor in self.parameters:
            ledger.given(tensor, "parameters")
        for module in self.modules:
            for tensor in module.buffers():
                ledger.given(tensor, "parameters")
        evaluated = self.subject.evaluated
        around = evaluated.around if evaluated is not None else None
        with (
            ledger,
            self._like_a_gpu(architecture),
            _groups(self.optimizers, change.groups),
            _without_gradients(self.parameters),
        ):
            with ledger.quiet_values():
                inputs, known = self.sizes.chosen(sizes)
            for tensor in torch_private.PYTREE.tree_leaves((inputs.args, inputs.kwargs)):
                ledger.given(tensor, "inputs")
            window = curve.Window(0, 0)
            for _ in range(_STEPS):
                first = ledger.begin_step()
                with around.again() if around else contextlib.nullcontext(), change.around():
                    result = self._called(compiled, inputs)
                self._rest(result, ledger)
                del result
                window = curve.Window(first, len(ledger.events))
        for state in (s for o in self.optimizers for s in o.state.values()):
            for tensor in torch_private.PYTREE.tree_leaves(state):
                if isinstance(tensor, torch.Tensor) and (number := ledger.number_of(tensor)) is not None:
                    ledger.blocks[number - 1].kind = "optimizer state"
        self.notes = _notes(ledger, recorder, bool(self.optimizers), self.gradients)
        return curve.step_memory(
            ledger, window, target=self.target if architecture else "cpu", sizes=known, axis=self.sizes.axis,
            optimizer=optimizers.described(self.optimizers), notes=tuple(self.notes), **limit_of(self.config),
        )  # fmt: skip

    def _compile(self, sizes: Mapping[str, int], change: Change, varying: bool) -> tuple[Any, Recorder]:
        key = id(change), None if varying else tuple(sorted(sizes.items()))
        if key not in self._compiled:
            options = {"weightless": False, "build": True, "explore": False, "target": self.target} | dict(
                change.options
            )
            subject = self.subject
            config = dataclasses.replace(subject.config, **options)
            target, span = subject.found.target, subject.span
            recorder = Recorder(subject.name, span.file if span else "", span, config, texts=False)
            axes = self.sizes.varying(sizes) if varying else subject.inputs.dynamic
            self._compiled[key] = api.wrap(target, config, recorder=recorder, owner=object(), axes=axes), recorder
        return self._compiled[key]

    def _called(self, compiled: Any, inputs: ExampleInputs) -> Any:
        try:
            return compiled(*inputs.args, **inputs.kwargs)
        except Exception as error:
            raise StepRaised from error

    def _rest(self, result: Any, ledger: Ledger) -> None:
        """The backward and the optimizer, where the function does not do that itself."""
        leaves = [
            t for t in torch_private.PYTREE.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad
        ]
        losses = [t for t in leaves if not t.dim()] or leaves
        if self.gradients == optimizers.ZEROED_LATE and losses:
            self._zero()
        try:
            if losses and torch.is_grad_enabled():
                torch.autograd.backward(losses, [torch.ones_like(t) for t in losses])
            if not ledger.updated and any(p.grad is not None for p in self.parameters):
                for optimizer in self.optimizers:
                    optimizer.step()
                if not self.gradients:
                    self._zero()
        except Exception as error:
            raise StepRaised from error

    def _zero(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _like_a_gpu(self, architecture: int) -> AbstractContextManager[None]:
        """On a GPU, optimizers update all parameters at once unless they are told not to."""
        usual = [
            g for o in self.optimizers for g in o.param_groups if g.get("foreach", False) is None and not g.get("fused")
        ]
        return _groups_of(usual, {"foreach": True}) if architecture else contextlib.nullcontext()


def architecture_of(target: str) -> int:
    """The number in ``sm_90``; 0 for the CPU."""
    if not target.startswith("cuda"):
        return 0
    digits = "".join(c for c in target.partition("sm_")[2] if c.isdigit())
    return int(digits) if digits else 90


def limit_of(config: Config) -> dict[str, Any]:
    card = CARDS.get(config.card)
    limit = config.limit_bytes
    return {"card": card.name if card else "", "limit": limit if limit else card.memory if card else None}


@contextlib.contextmanager
def _groups_of(groups: Sequence[dict[str, Any]], values: Mapping[str, Any]) -> Iterator[None]:
    before = [dict(g) for g in groups]
    for group in groups:
        group.update(values)
    try:
        yield
    finally:
        for group, old in zip(groups, before, strict=True):
            group.update({name: old.get(name) for name in values})


def _groups(made: Sequence[torch.optim.Optimizer], values: Mapping[str, Any]) -> AbstractContextManager[None]:
    return _groups_of([g for o in made for g in o.param_groups], values)


@contextlib.contextmanager
def _without_gradients(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Inside, and after it, parameters have no gradients of another step."""
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.grad = None


_OF_GRADIENTS = {
    optimizers.ADDED_UP: "the program adds gradients up: those of the call before are there",
    optimizers.ZEROED_LATE: "the program drops gradients after the forward: those of the step before are there until then",
}


def _notes(ledger: Ledger, recorder: Recorder, updates: bool, gradients: str) -> list[str]:
    found = [_OF_GRADIENTS[gradients]] if gradients else []
    places = {span for span in ledger.undecided if span is not None}
    if ledger.undecided:
        lines = ", ".join(sorted({f"line {span.line}" for span in places})) or "a library"
        found.append(f"data decides a size ({lines}): it is counted as large as it can be")
    if not updates and not ledger.updated and any(b.phase == "backward" for b in ledger.blocks):
        found.append("no optimizer was found: its state is not counted")
    if any(g.fallback for g in recorder.report.graphs):
        found.append("some graphs run eagerly, and are counted so")
    if recorder.config.mode in ("reduce-overhead", "max-autotune") and ledger.architecture:
        found.append("CUDA graphs hold memory of their own, which is not counted")
    return found


def failed_at(error: StepRaised) -> tuple[str, Span | None]:
    """What the step raised, and where in the user's text."""
    cause = error.__cause__ or error
    place, trace = None, cause.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_file(code.co_filename):
            place = Span(code.co_filename, trace.tb_lineno, 0, trace.tb_lineno, 0)
        trace = trace.tb_next
    return f"{type(cause).__name__}: {cause}".splitlines()[0], place
