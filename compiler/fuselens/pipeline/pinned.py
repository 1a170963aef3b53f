"""Kernels of the project in the place of ours, where they are pinned to the program that is built.

The cache keeps our kernels alone. What is pinned is looked up each time a program becomes a callable, of the cache or not, and
libraries are named by their text. So neither a pin that is gone runs nor a kernel of ours that was replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..ir.contracts.content import Content, changed
from ..ir.contracts.source import Generated, KernelInfo, Source
from ..pins import place, project, texts
from ..pins.records import Unit
from ..record import report
from ..record.diagnostics import make
from .recorder import Recorder, Run

if TYPE_CHECKING:
    from .graph_cache import Program


@dataclass(slots=True)
class Pins:
    """What one compilation of a function knows of its project's kernels."""

    root: Path | None
    owner: str  # the file of the function
    used: set[Path] = field(default_factory=set)
    aside: dict[Path, report.Diagnostic] = field(default_factory=dict)
    _every: list[project.Kept] | None = None

    def is_of(self, unit: Unit) -> bool:
        """Whether a unit is of the file that is compiled."""
        return self.root is not None and (self.root / unit.file).resolve() == Path(self.owner).resolve()

    @property
    def every(self) -> list[project.Kept]:
        if self._every is None:
            self._every = project.every(self.root, self.owner) if self.root is not None else []
        return self._every


def _pins(recorder: Recorder) -> Pins:
    found = recorder.pins
    if found is None:
        file = recorder.report.file
        root = place.root_of(file) if recorder.config.pins and recorder.trial is None else None
        found = recorder.pins = Pins(root if root is not None and place.pins_of(root).is_dir() else None, file)
    return found


def axes(recorder: Recorder) -> dict[str, dict[int, str]]:
    """The sizes of a function that are symbols from the start, because kernels are pinned to its program for any of them."""
    pins, found = _pins(recorder), dict[str, dict[int, str]]()
    for unit in (kept.pin.unit for kept in pins.every if kept.pin is not None):
        if unit.is_of(recorder.report.function) and pins.is_of(unit):
            found |= {name: {int(d): axis for d, axis in dims.items()} for name, dims in unit.axes.items()}
    return found


def chosen(program: Program, run: Run, targets: Sequence[str]) -> Program:
    """The program with the kernels that the project has in the place of ours; itself where it has none. Says nothing."""
    source = built_source(program.generated, run.target)
    generated, _ = _replaced(program.generated, source, program.content, run, targets)
    return dataclasses.replace(program, generated=generated) if generated is not program.generated else program


def placed(
    generated: Generated, source: Source | None, content: Content, run: Run, targets: Sequence[str]
) -> Generated:
    """The sources with the kernels that the project has in the place of ``source``, for any of ``targets``; the report hears of it."""
    made, kept = _replaced(generated, source, content, run, targets)
    if source is None or not content.name:
        return made
    if kept is None:
        _others(content, source, run)
    elif not kept.usable:
        _say(run, kept, kept.code, kept.why)
    else:
        _use(kept, source, run)
    pin = _shown(run, kept.path) if kept is not None and kept.usable else ""
    run.graph.units.append(report.Unit(run.phase, source.language, content.name, content.outline, pin))
    return made


def failed(run: Run, why: str) -> None:
    """What the project has does not build here; ours is built in its place."""
    for k, unit in enumerate(run.graph.units):
        if unit.pin and unit.phase == run.phase:
            root = _pins(run.recorder).root
            assert root is not None
            run.graph.units[k] = dataclasses.replace(unit, pin="")
            run.graph.decisions[:] = [
                d for d in run.graph.decisions if d.code != "FL620" or d.data.get("pin") != unit.pin
            ]
            run.recorder.forget("FL620", unit.pin)
            _say(run, project.Kept(root / unit.pin), "FL625", why)


def built_source(generated: Generated, target: str) -> Source | None:
    """The kernels that are built: on the CPU those in Triton are a document."""
    return generated.triton if target.startswith("cuda") else generated.cpp


def _replaced(
    generated: Generated, source: Source | None, content: Content, run: Run, targets: Sequence[str]
) -> tuple[Generated, project.Kept | None]:
    if source is None or not content.name:
        return generated, None
    trial = run.recorder.trial
    if trial is not None:
        ours = run.in_names_of_axes(source.text, "_size")
        text = trial.text(content.name, run.phase, source.language, ours)
        return generated if text is None else _with_text(generated, source, text, run), None
    pins, kept = _pins(run.recorder), None
    for target in targets if pins.root is not None else ():
        assert pins.root is not None
        kept = project.find(pins.root, pins.owner, content.name, run.phase, source.language, target)
        if kept is None or kept.usable:
            break
    if kept is None or not kept.usable:
        return generated, kept
    return _with_text(generated, source, kept.text, run), kept


def _with_text(generated: Generated, source: Source, text: str, run: Run) -> Generated:
    body = texts.body_of(source.language, text)
    if source.language == "cpp":
        _, host = texts.kernels_of(source.text)
        body = body.rstrip("\n") + "\n" + host
    lines = texts.same_lines(run.in_names_of_axes(source.text, "_size"), body)
    moved = tuple(report.Line(lines[line.line], line.spans) for line in source.lines if line.line in lines)
    kernels = source.kernels if source.language == "cpp" else _called_as_written(source.kernels, body)
    made = dataclasses.replace(source, text=body, lines=moved, kernels=kernels)
    return dataclasses.replace(generated, **{source.language: made})


def _called_as_written(kernels: Sequence[KernelInfo], text: str) -> tuple[KernelInfo, ...]:
    """Triton's kernels with the names of parameters that a text has for them: a size's may be the user's name of an axis."""
    written = {name: texts.types_of("triton", given) for name, given in texts.signatures("triton", text).items()}
    found = []
    for info in kernels:
        types, blocks = info.launch["signature"], info.launch["blocks"]
        names = [n for n in (w.partition(":")[0] for w in written.get(info.function, ())) if n not in blocks]
        named = dict(zip(names, types.values(), strict=True)) if len(names) == len(types) else types
        found.append(dataclasses.replace(info, launch={**info.launch, "signature": named}))
    return tuple(found)


def _use(kept: project.Kept, source: Source, run: Run) -> None:
    pins, shown = _pins(run.recorder), _shown(run, kept.path)
    pins.used.add(kept.path)
    if kept.path in pins.aside:  # it was of a later graph
        run.recorder.take_back(pins.aside.pop(kept.path))
    names = ", ".join(k.name for k in source.kernels if k.same_as is None)
    found = make("FL620", run.captured.span or run.recorder.report.span, what=names, pin=shown)
    run.decided([report.Decision("FL620", "taken", names, found.message, run.captured.span, {"pin": shown})])
    run.say(found)


def _say(run: Run, kept: project.Kept, code: str, why: str) -> None:
    shown = _shown(run, kept.path)
    found = make(code, run.captured.span or run.recorder.report.span, pin=shown, why=why)
    run.decided([report.Decision(code, "refused", shown, found.message, run.captured.span, {"pin": shown})])
    run.say(found)


def _shown(run: Run, path: Path) -> str:
    root = _pins(run.recorder).root
    return path.relative_to(root).as_posix() if root is not None else str(path)


def _others(content: Content, source: Source, run: Run) -> None:
    """Says which pin was made for this place of the function when its program was another."""
    pins, told = _pins(run.recorder), run.recorder.report
    if pins.root is None:
        return
    for kept in pins.every:
        unit = kept.pin.unit if kept.pin is not None else None
        if unit is None or kept.path in pins.used or kept.path in pins.aside:
            continue
        place_of_unit = unit.frame, unit.graph, unit.phase, unit.language
        here = run.graph.frame, run.graph.id, run.phase, source.language
        if place_of_unit != here or not unit.is_of(told.function) or not pins.is_of(unit):
            continue
        why = changed(unit.outline, content.outline) or "it computes something else"
        span = run.captured.span or told.span
        found = make("FL621", span, pin=_shown(run, kept.path), what=told.function, why=why)
        pins.aside[kept.path] = found
        run.say(found)
