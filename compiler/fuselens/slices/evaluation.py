"""What a program compiles, and what it calls that with, found by evaluating the statements that lead there.

The program does not run: a statement that fails leaves its names unknown, loops go round a few times, and all ends as soon as
everything that the file compiles was called. Calls of the compilers return what they were given, with an ear on its first
call. What is refused by the sandbox is refused here as well.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import gc
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import fuselens

from .. import api, sandbox, torch_private
from ..capture.hook.tensor_layout import describe
from ..capture.program import marks
from ..inputs.weightless import Weightless
from ..source.discovery import Annotated, SourceModule
from ..system import source_text
from ..system.console import quiet
from ..system.replacing import replaced
from ..system.signatures import signature
from . import project, rewriting, stand_ins, vision
from .devices import OnThisMachine
from .hearing import FEW_ROUNDS, ROUNDS, Hearing
from .inferred import Call, completed
from .rewriting import Leads
from .unknown import Unknown, UnknownUsed, assumed_as, first_unknown, why_of

LONGEST_SECONDS = 8.0
_BETTER_SECONDS = 2.0  # for a call in training after one without gradients
_LOOP_SECONDS = 3.0  # of a loop that leads nowhere: it may build layers
_RAISED_BY = "__fuselens_frame__"  # of an exception: the frame whose ``raise`` it is
_WAITING = 1 / 8  # of a second that passes, counted
_ROUNDS = 3  # of a loop that leads somewhere, if the first ones do not get there


_OF_UNKNOWN = re.compile(  # what the interpreter says of what is not known
    r"\bUnknown\b|missing \d+ required|isinstance\(\) arg 2 must be|not enough values to unpack \(expected \d+, got 0"
)


_ABSENT = object()


class _Over(BaseException):
    """Everything was found, or time is up."""


@dataclass(slots=True)
class Compiled:
    """What a compiler was given, and with what its first call was."""

    target: Any
    annotation: Any = None  # of fuselens.compile
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    file: str = ""  # of the program that makes that call
    line: int = 0  # there
    around: Surroundings | None = None  # of that call
    tried: bool = False  # no call of it could be completed
    devices: frozenset[str] = frozenset()  # types of those that the program put something on, and that are not here
    completed: bool = False  # what was unknown of that call is what the target takes


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What holds for all of torch at a call: which decides what is recorded and in which types it is computed."""

    grad: bool
    inference: bool
    autocast: torch.dtype | None  # on the CPU
    training: tuple[tuple[torch.nn.Module, bool], ...]  # of the modules that are called

    @classmethod
    def now(cls, target: Any) -> Surroundings:
        modules = target.modules() if isinstance(target, torch.nn.Module) else ()
        return cls(
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            tuple((m, m.training) for m in modules),
        )  # fmt: skip

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """The same holds in the block."""
        for module, training in self.training:
            module.training = training
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode() if self.inference else torch.set_grad_enabled(self.grad))
            if self.autocast is not None:
                stack.enter_context(torch.autocast("cpu", self.autocast))
            yield


@dataclass(slots=True)
class Note:
    """A statement that could not be evaluated; with ``assumed``, one that could, because of what the note says."""

    file: str
    line: int
    why: str
    assumed: bool = False


class Evaluation:
    """One evaluation of a file. ``found`` has what the annotations of the file turned out to be."""

    def why_not(self, annotated: Annotated) -> str:
        """Why an annotation was not reached, as far as that can be told: the last statement before it that failed."""
        if why := self.unknown.get(annotated.qualname):
            return why
        failed = [n for n in self.notes if n.file == self.path and not n.assumed]
        before = [n for n in failed if n.line <= annotated.decorator_span.line]
        note = max(before, key=lambda n: n.line) if before else next(iter(failed), None)
        return f"line {note.line} was left out: {note.why}" if note is not None else ""

    def __init__(
        self,
        leads: Leads,
        wanted: Iterable[Annotated],
        of: str | None = None,
        values: bool = False,
        preview: bool = False,
        hearing: Hearing | None = None,
    ) -> None:
        """``of`` is the file that the annotations are in, where the program is another one that imports it, and ``preview``
        writes them; ``values``: large tensors are computed, too. With ``hearing`` it goes on after the first calls, which that keeps."""
        self._hearing = hearing
        self._values = values
        self._preview = preview
        self.path = leads.module.filename
        self._of = of or self.path
        self._leads = leads
        self.found: dict[str, Compiled] = {}
        self.unknown: dict[str, str] = {}  # why what an annotation compiles is not known
        self.notes: list[Note] = []
        self._wanted = {a.qualname: a for a in wanted}
        self._given_on = Unknown("it is not given")  # the last mapping of arguments that is not known
        self._ended = False
        self._unheard = False  # of the call that comes, parts were not known
        self._why = ""  # the last statement failed
        self._kept: dict[str, Any] = {}  # of what it would have made
        self._half_made: tuple[BaseException | None, dict[str, Any]] = None, {}
        self._changes = contextlib.ExitStack()
        self._clock = _Clock()
        self._trains = any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in leads.module.nodes)
        self._devices = OnThisMachine()
        # by the id of the code of each function that is rewritten: that, and the code as it is written
        self._as_written: dict[int, tuple[types.CodeType, types.CodeType]] = {}

    def run(self, namespace: dict[str, Any]) -> None:
        """Evaluates the file in ``namespace``. Its functions may be called afterwards: then they only go on where they fail."""
        with (
            quiet(), sandbox.without_interruption(), self._changes, contextlib.ExitStack() as ears,
            contextlib.suppress(_Over), self._compilers(ears),
            vision.installed(self._assume), project.imported_by(self.path, self._of_the_project),
            stand_ins.in_place(_imported(self._leads.module), self._assume),
            replaced((torch, "set_default_device", self._devices.stay)), self._clock.running(), self._devices,
            contextlib.nullcontext() if self._values else Weightless(),
            replaced(*([self._hearing.loader()] if self._hearing else [])),
        ):  # fmt: skip
            self._execute(self._leads, namespace)
            self._call_what_nobody_calls(namespace)
        if self._hearing is not None and self._clock.is_over:
            self._hearing.skipped(f"what the program does after {LONGEST_SECONDS:g} s")
        self._ended = True
        self._clock.stop()
        self._undo()

    def _call_what_nobody_calls(self, namespace: dict[str, Any]) -> None:
        """Functions that make or call what is not found so far, with arguments that are not known."""
        if self._hearing is not None and not self._unfinished():
            return
        for function, owner in self._leads.not_called():
            name = owner.name if owner is not None else function.name
            value = namespace.get(name)
            if self._leads.leads_to(function, self._unfinished()) and callable(value):
                self._clock.more()
                with contextlib.suppress(Exception):
                    form = signature(value).parameters.values()
                    named = [
                        p for p in form if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
                    ]
                    given = {p.name: Unknown(f"nobody calls `{name}`") for p in named if p.kind != p.POSITIONAL_ONLY}
                    value(**given)

    def _unfinished(self) -> list[Annotated]:
        return [a for name, a in self._wanted.items() if not self._has_call(name)]

    def _of_the_project(self, path: str, text: bytes, namespace: dict[str, Any]) -> None:
        """Evaluates another file; what is not Python raises as its import would."""
        previewed = self._preview and os.path.samefile(path, self._of)
        self._execute(Leads(SourceModule(source_text.decode(text), path, previewed), self._leads.names), namespace)

    def _execute(self, leads: Leads, namespace: dict[str, Any]) -> None:
        self._changes.enter_context(replaced(*vision.in_place_of_installed(_imported(leads.module))))
        namespace |= {
            rewriting.FAILED: self._failed, rewriting.UNKNOWN: self._unknown, rewriting.ITEMS: self._items,
            rewriting.ROUNDS: self._rounds, rewriting.RAISED: _raised, rewriting.PARTS: _parts,
            rewriting.NAMED: self._named, rewriting.CALLED: self._called_with, rewriting.DECIDED: self._decided,
            rewriting.MAYBE: _maybe,
        }  # fmt: skip
        file = leads.module.filename
        as_written = compile(leads.module.tree, file, "exec", dont_inherit=True)
        tolerant = compile(rewriting.rewritten(leads), file, "exec", dont_inherit=True)
        self._as_written |= _counterparts(tolerant, as_written)
        exec(tolerant, namespace)

    def _undo(self) -> None:
        """Functions are again as they are written: some are part of what is compiled."""
        if not self._as_written:
            return
        for function in gc.get_objects():
            if type(function) is types.FunctionType and (pair := self._as_written.get(id(function.__code__))):
                function.__code__ = pair[1]

    # --- what rewritten code calls --------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """Goes on after a statement that failed; raises again what is not to be caught here."""
        if isinstance(error, (_Over, KeyboardInterrupt, GeneratorExit)):
            raise error
        here = sys._getframe(1)
        if getattr(error, _RAISED_BY, None) is here:
            delattr(error, _RAISED_BY)
            raise error
        why = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        refused = sandbox.take()  # the program, or a library on its behalf
        if isinstance(error, sandbox.Refused):
            refused.append(error.finding)
        line = next((line for frame, line in traceback.walk_tb(error.__traceback__) if frame is here), 0)
        for finding in refused:
            what = finding.message.rpartition("because ")[2]
            if isinstance(error, sandbox.Refused) or finding.span is None or finding.span.line == line:
                why = what
            else:  # by a statement before, which went on
                self.notes.append(Note(finding.span.file, finding.span.line, what))
        unknown = isinstance(error, UnknownUsed)
        self._kept = self._half_made[1] if self._half_made[0] is error else {}
        self._why = (
            str(error)
            if unknown and str(error).startswith("line ")
            else f"line {line}: {str(error) if unknown else why}"
        )
        if self._hearing is not None and isinstance(error, TimeoutError):
            self._hearing.skipped(f"line {line} of {os.path.basename(here.f_code.co_filename)}, which takes long")
        if not (unknown or _OF_UNKNOWN.search(why)):
            self.notes.append(Note(here.f_code.co_filename, line, why))
        self._clock.check()

    def _assume(self, what: str) -> None:
        """Notes it at the line of the program that is under way."""
        for frame, line in traceback.walk_stack(sys._getframe(1)):
            if frame.f_code.co_filename == self.path:
                self.notes.append(Note(self.path, line, what, assumed=True))
                return

    def _unknown(self) -> Unknown:
        return Unknown(self._why, known=self._kept)

    def _items(self, values: Any, leads: bool) -> Iterator[Any]:
        if isinstance(values, Unknown):  # one round of what leads somewhere, and none of what does not
            self._guess(leads, "how often a loop goes round", values)
            return iter([values] if leads else [])
        return self._some(iter(values), leads)  # asked for at once, as the loop would

    def _some(self, values: Iterator[Any], leads: bool) -> Iterator[Any]:
        more, first = self._rounds(leads), True
        while more():
            try:
                value = next(values)
            except StopIteration:
                return
            except UnknownUsed as error:  # as of a bar that shows the progress of unknown data
                if not first or not leads:
                    raise
                yield Unknown(str(error))
                return
            first = False
            yield value

    def _guess(self, matters: bool, what: str, unknown: Unknown) -> None:
        if matters and self._hearing is not None:
            self._hearing.guess(f"{what}: {why_of(unknown)}")

    def _rounds(self, leads: bool) -> Callable[[], bool]:
        began, rounds = _now(), 0

        def more() -> bool:
            nonlocal rounds
            rounds += 1
            self._clock.check()
            if not leads and _now() - began > _LOOP_SECONDS:
                raise TimeoutError(f"this loop takes longer than {_LOOP_SECONDS:g} s")
            most = _ROUNDS if self._hearing is None else ROUNDS if self._clock.has_half else FEW_ROUNDS
            if leads and rounds > most:
                if self._hearing is not None:
                    self._hearing.skipped(f"a loop after {rounds - 1} rounds")
                return False
            return True

        return more

    def _called_with(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of a built-in function, which says nothing of what is unknown, or of a class: a module's sizes are some."""
        unknown = first_unknown((args, kwargs))
        if unknown is None or isinstance(function, Unknown):
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self._half_made = error, _attributes_given(function, args, kwargs)
                raise
        if function is range:
            first = args[0] if len(args) > 1 and isinstance(args[0], int) else 0
            return range(first, first + 1)
        if getattr(function, "__module__", "").partition(".")[0] in _TELL_NOTHING:
            return unknown
        if not isinstance(function, type) or not issubclass(function, torch.nn.Module):
            return function(*args, **kwargs)
        try:
            bound = signature(function).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return function(*args, **kwargs)
        sizes = {name: assumed_as(name, value) for name, value in bound.arguments.items()}
        some = [
            f"`{name}` is taken to be {n}"
            for name, n in sizes.items()
            if isinstance(bound.arguments[name], Unknown) and isinstance(n, int)
        ]
        as_it_is = bound.args, bound.kwargs
        bound.arguments |= sizes
        try:
            made = function(*bound.args, **bound.kwargs)
        except (AttributeError, TypeError):  # it is no size
            return function(*as_it_is[0], **as_it_is[1])
        if some:
            self._assume(f"{' and '.join(some)}: {why_of(unknown)}")
        return made

    def _decided(self, condition: Any, prefers: int, binds: tuple[str, ...], compiles: bool) -> Any:
        """A condition. One that is unknown holds where that leads somewhere, and does not where something else does; where nothing
        does, it holds if that binds a name that has no value yet. What compiles is looked at even if it is not asked for."""
        if compiles and (isinstance(condition, Unknown) or bool(condition) != (prefers > 0)):
            self._assume(
                f"this condition is taken {'' if prefers > 0 else 'not '}to hold: only then something is compiled"
            )
            return prefers > 0
        if not isinstance(condition, Unknown):
            return condition
        self._guess(True, "whether a condition holds", condition)
        if prefers:
            return prefers > 0
        frame = sys._getframe(1)
        holds = any(name not in frame.f_locals and name not in frame.f_globals for name in binds)
        if holds:
            self._assume(f"this condition is taken to hold: {why_of(condition)}")
        return holds

    # --- the compilers --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _compilers(self, ears: contextlib.ExitStack) -> Iterator[None]:
        """Calls of ``torch.compile`` and ``fuselens.compile`` are heard, and compile nothing."""
        real = api.compile

        def heard(fn: Any = None, /, _own: bool = False, _site: Any = None, **options: Any) -> Any:
            site = _site or self._sites()
            fn = options.pop("model", options.pop("fn", fn))
            if fn is None:
                return functools.partial(heard, _own=_own, _site=site, **options)
            if isinstance(fn, Unknown) and (annotated := self._annotation_at(site, fn)) is not None:
                self.unknown.setdefault(annotated.qualname, why_of(fn))
                if all(name in self.unknown or self._has_call(name) for name in self._wanted):
                    raise _Over
            if isinstance(fn, (Unknown, type, classmethod, staticmethod)) or not callable(fn):
                return fn
            annotation = getattr(real(fn, **options), "__fuselens__", None) if _own else None
            return self._heard(Compiled(fn, annotation), site, ears)

        def in_place(module: torch.nn.Module, *_: Any, **__: Any) -> None:
            self._heard(Compiled(module), self._sites(), ears)

        own = functools.partial(heard, _own=True)
        with replaced(
            (torch, "compile", heard), (fuselens, "compile", own), (api, "compile", own),
            (torch.nn.Module, "compile", in_place),
        ):  # fmt: skip
            yield

    def _heard(self, compiled: Compiled, site: list[tuple[int, int]], ears: contextlib.ExitStack) -> Any:
        annotated = self._annotation_at(site, compiled.target)
        if annotated is not None:
            self.found.setdefault(annotated.qualname, compiled)
            if self._hearing is not None:
                self._hearing.name(compiled, annotated.qualname)
        target = compiled.target
        if isinstance(target, torch.nn.Module):
            if torch_private.ORIGINAL_MODULE not in vars(target):
                vars(target)[torch_private.ORIGINAL_MODULE] = target
                ears.callback(vars(target).pop, torch_private.ORIGINAL_MODULE, None)

            self._listen(compiled, target, ears)
            return target

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._known(compiled, args, kwargs)
            self._called(compiled, args, kwargs)
            with self._inside(compiled):
                return target(*args, **kwargs)

        vars(call)[torch_private.ORIGINAL] = target  # what else is compiled traces that
        marks.mark(call, marks.COMPILED)
        return call

    def _listen(self, compiled: Compiled, module: torch.nn.Module, ears: contextlib.ExitStack) -> None:
        """Hears calls of a module, and of its ``forward``."""

        def call(args: Any, kwargs: Any) -> Call:
            args, kwargs = self._known(compiled, args, kwargs)
            self._called(compiled, args, kwargs)
            return args, kwargs

        ear = _Ear(module, call, functools.partial(self._inside, compiled))
        before = vars(module).get("forward", _ABSENT)
        vars(module)["forward"] = ear
        ears.callback(_put_back, vars(module), "forward", before)
        ears.callback(module.register_forward_pre_hook(ear.before, with_kwargs=True).remove)

    def _inside(self, compiled: Compiled) -> contextlib.AbstractContextManager[None]:
        return self._hearing.entered(compiled) if self._hearing is not None else contextlib.nullcontext()

    def _annotation_at(self, sites: list[tuple[int, int]], target: Any) -> Annotated | None:
        code = getattr(target, "__code__", None)
        for annotated in self._wanted.values():
            span = annotated.decorator_span
            if (span.line, span.column) in sites:
                return annotated
            if code is not None and code.co_filename == self._of and code.co_qualname == annotated.qualname:
                return annotated
        trainers = (a for a in self._wanted.values() if a.arguments.get("trainer") and a.qualname not in self.found)
        return next(trainers, None) if isinstance(target, torch.nn.Module) else None  # on behalf of who made it

    def _named(self, value: Any, named: bool) -> Any:
        """What is given on, by position or by name. Where names are unknown, there are none: what is required is found missing."""
        if isinstance(value, Unknown) and not named:
            raise UnknownUsed(why_of(value))
        if isinstance(value, Unknown):
            self._given_on = value
        return {} if isinstance(value, Unknown) else value

    def _known(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call as it can be made: what is unknown in it is what the layers or the body take."""
        kwargs = {**self._missing(compiled.target, args, kwargs), **kwargs}
        unknown = first_unknown((args, kwargs))
        if unknown is None:
            return args, kwargs
        if self._hearing is not None:
            self._hearing.called(compiled, args, kwargs, Surroundings.now(compiled.target), why_of(unknown))
        tried = compiled.tried or self._is_complete()
        made = None if tried else completed(compiled.target, args, kwargs)
        if made is None:
            compiled.tried = True
            raise UnknownUsed(why_of(unknown))
        if compiled.args is None:
            compiled.completed = True
        if self._hearing is not None:
            self._unheard = True
        return made

    def _missing(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What a call lacks: as where the arguments that are given on are unknown."""
        try:
            form = signature(target.forward if isinstance(target, torch.nn.Module) else target)
            given = form.bind_partial(*args, **kwargs).arguments
        except (TypeError, ValueError):
            return {}
        named = [
            p
            for p in form.parameters.values()
            if p.default is p.empty and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return {p.name: self._given_on for p in named if p.name not in given}

    def _sites(self) -> list[tuple[int, int]]:
        """The calls of the file under way, innermost first: line and column of each."""
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(2)) if frame.f_code.co_filename == self._of)
        spans = (sandbox.instruction_span(frame.f_code, frame.f_lasti) for frame in frames)
        return [(span.line, span.column) for span in spans]

    def _called(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._ended:
            return
        completed, self._unheard = self._unheard, False
        if self._hearing is not None and not completed:
            self._hearing.called(compiled, args, kwargs, Surroundings.now(compiled.target))
        if self._is_complete():  # the program has caught our end
            raise _Over
        if compiled.args is not None and not (
            self._trains and _without_gradients(compiled) and torch.is_grad_enabled()
        ):
            return
        compiled.around = Surroundings.now(compiled.target)
        compiled.args, compiled.kwargs = torch_private.PYTREE.tree_map(_copied, (args, kwargs))
        calls = traceback.walk_stack(sys._getframe(1))
        compiled.file, compiled.devices = self.path, frozenset(self._devices.named)
        compiled.line = next((line for frame, line in calls if frame.f_code.co_filename == self.path), 0)
        if self._is_complete():
            raise _Over
        if self._was_called() and self._hearing is None:
            self._clock.hurry()

    def _is_complete(self) -> bool:
        """A call in training says more than one in between that only measures."""
        return (
            self._hearing is None
            and self._was_called()
            and not (self._trains and any(map(_without_gradients, self.found.values())))
        )

    def _was_called(self) -> bool:
        return all(map(self._has_call, self._wanted))

    def _has_call(self, name: str) -> bool:
        return name in self.found and self.found[name].args is not None


class _Ear:
    """In place of a module's ``forward``: tells of each call. What one without gradients gave, one that looks alike gives again."""

    listens = True

    def __init__(
        self,
        module: torch.nn.Module,
        call: Callable[[Any, Any], Call],
        within: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._module = module
        self._call = call
        self._within = within
        self._known: dict[Any, Any] = {}
        self._told = False  # of the call of the module that is under way
        self.__wrapped__ = module.forward

    def before(self, _: Any, args: Any, kwargs: Any) -> Call:
        self._told = True
        return self._call(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._told:
            args, kwargs = self._call(args, kwargs)
        self._told = False
        with self._within():
            if torch.is_grad_enabled():
                return self.__wrapped__(*args, **kwargs)
            key = self._module.training, described((args, kwargs))
            if key not in self._known:
                self._known[key] = self.__wrapped__(*args, **kwargs)
            return self._known[key]

    def __deepcopy__(self, copies: dict[int, Any]) -> Any:
        """A copy of the module is not heard."""
        copied = copies.get(id(self._module), self._module)
        return types.MethodType(type(copied).forward, copied)


def _put_back(attributes: dict[str, Any], name: str, value: Any) -> None:
    attributes.pop(name, None)
    if value is not _ABSENT:
        attributes[name] = value


def _without_gradients(compiled: Compiled) -> bool:
    return compiled.around is not None and not compiled.around.grad


def described(value: Any) -> str:
    """A value in a few words: the dtype and sizes of a tensor, the type of anything else."""
    if isinstance(value, torch.Tensor):
        return describe(value)
    if isinstance(value, (int, float, str, type(None))):
        text = repr(value)
        return text if len(text) < 20 else type(value).__name__
    if isinstance(value, (list, tuple)) and len(value) < 6:
        return f"({', '.join(map(described, value))})"
    return type(value).__name__


def _copied(value: Any) -> Any:
    """A tensor as it is now: the program may write to it after the call."""
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return value
    made = value.detach().clone()
    return made.requires_grad_(value.requires_grad)


def _attributes_given(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The attributes that a constructor gives the values of its parameters, or of their attributes: ``self.size = config.size``."""
    constructor = getattr(function, "__init__", None) if isinstance(function, type) else None
    if not isinstance(constructor, types.FunctionType) or issubclass(function, torch.nn.Module):
        return {}
    try:
        given = signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {}
    found: dict[str, Any] = {}
    path: list[str] = []  # a local variable, and attributes of it
    for step in dis.get_instructions(constructor):
        if step.opname.startswith("LOAD_FAST"):
            names = [step.argval] if isinstance(step.argval, str) else list(step.argval)
            path = [*path, *names] if names[-1] == "self" and len(names) == 1 else names
        elif step.opname in ("LOAD_ATTR", "STORE_ATTR") and path:
            if step.opname == "LOAD_ATTR":
                path.append(str(step.argval))
            elif len(path) > 1 and path[-1] == "self" and path[0] in given:
                with contextlib.suppress(Exception):
                    found[str(step.argval)] = functools.reduce(getattr, path[1:-1], given[path[0]])
                path = []
        elif step.opname not in ("CACHE", "EXTENDED_ARG", "RESUME"):
            path = []
    return found


def _raised(error: Any) -> Any:
    """What a ``raise`` of the program raises: its function ends by it, as it is written."""
    made = error() if isinstance(error, type) and issubclass(error, BaseException) else error
    with contextlib.suppress(AttributeError):
        setattr(made, _RAISED_BY, sys._getframe(1))
    return made


def _counterparts(made: types.CodeType, written: types.CodeType) -> dict[int, tuple[types.CodeType, types.CodeType]]:
    """The functions of a file whose code is not as it is written: both codes of each."""
    others = {(c.co_qualname, c.co_firstlineno): c for c in _codes(written)}
    pairs = ((c, others.get((c.co_qualname, c.co_firstlineno))) for c in _codes(made))
    return {
        id(code): (code, other) for code, other in pairs
        if other is not None and code.co_code != other.co_code and code.co_freevars == other.co_freevars
    }  # fmt: skip


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from _codes(inner)


def _imported(module: SourceModule) -> frozenset[str]:
    """The modules that a file imports, and what it takes of them."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names |= {part for alias in node.names for part in (alias.name, *alias.name.split("."))}
        elif isinstance(node, ast.ImportFrom):
            names |= {*(node.module or "").split("."), node.module or "", *(alias.name for alias in node.names)}
    return frozenset(names)


def _parts(value: Any, form: tuple[Any, ...], each: bool = False) -> Any:
    """``value``, which is taken apart as ``form`` says, or each of its items is; an unknown one has as many parts."""
    if each:
        return (_parts(item, form) for item in value)
    if isinstance(value, Unknown):
        return tuple(_parts(value, inner) if inner else value for inner in form)
    if any(form) and isinstance(value, (tuple, list)) and len(value) == len(form):
        return tuple(_parts(part, inner) if inner else part for part, inner in zip(value, form, strict=True))
    return value


def _maybe(expression: Callable[[], Any]) -> Any:
    """What an expression gives; unknown where it has to use what is."""
    try:
        return expression()
    except UnknownUsed as error:
        return Unknown(str(error))
    except (TypeError, ValueError) as error:  # of code in C
        if "Unknown" not in str(error):
            raise
        return Unknown(str(error))


_TELL_NOTHING = frozenset({"builtins", "tqdm", "rich"})


def _now() -> float:
    """What this thread has used, and a part of what has passed: where it only waits, that ends, too."""
    return time.thread_time() + time.monotonic() * _WAITING


class _Clock:
    """How long an evaluation may take, in seconds of the processor: others may use it, too. Imports are not counted, nor ended in
    their middle."""

    def __init__(self) -> None:
        self._ends = _now() + LONGEST_SECONDS
        self._half: float | None = self._ends - LONGEST_SECONDS / 2
        self._imports = 0

    def stop(self) -> None:
        self._ends = math.inf

    @property
    def is_over(self) -> bool:
        return _now() > self._ends

    @property
    def has_half(self) -> bool:
        """Whether half of the time is left, or more."""
        return self._ends - _now() > LONGEST_SECONDS / 2

    def more(self) -> None:
        self._ends = max(self._ends, _now() + _BETTER_SECONDS)

    def hurry(self) -> None:
        """What is needed is there; what is left would be better."""
        self._ends = min(self._ends, _now() + _BETTER_SECONDS)

    def check(self) -> None:
        if _now() > self._ends and not self._imports:
            raise _Over

    def _interrupt(self) -> None:
        """Leaves out, once, the statement that took half of the time."""
        self.check()
        if self._half is not None and _now() > self._half and not self._imports:
            self._half = None
            raise TimeoutError(f"this takes longer than {LONGEST_SECONDS / 2:g} s")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A statement that takes too long is ended in its middle, where the system can do so."""
        with replaced((builtins, "__import__", self._counted(builtins.__import__))):
            if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
                yield
                return
            before = signal.signal(signal.SIGALRM, lambda *_: self._interrupt())
            timer = signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                signal.setitimer(signal.ITIMER_REAL, *timer)

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def imported(*args: Any, **kwargs: Any) -> Any:
            began, self._imports = _now(), self._imports + 1
            try:
                return real(*args, **kwargs)
            finally:
                self._imports -= 1
                if not self._imports:
                    self._ends += _now() - began
                    self._half = self._half and self._half + _now() - began

        return imported
