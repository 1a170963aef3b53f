"""``fuselens run``, ``verify``, ``what-if``, ``bench`` and ``record``: functions and programs run."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bisecting.bisection import Bisection
from ..bisecting.faults import Faults
from ..checking.isolation import Supervisor, name_span
from ..record import plain, views, wire
from ..record.limits import distance
from ..record.printed import distance as printed_distance
from ..record.printed import proved, tried
from ..record.report import Machine, Proof, RunResult, WhatIf
from ..source import discovery
from ..source.changes import asking
from ..source.fixes import writing
from ..system import console, source_text
from .compiled import limits, options_of, supervisor
from .progress import Progress, progress, say
from .targets import Target, UsageError, named

_BISECTING = 4  # times what a function may take


def run(arguments: argparse.Namespace) -> int:
    """Status 1 where a function differs from eager, or was not compiled in whole for a reason that is not its own."""
    chosen = _named(arguments.target)
    with progress(len(chosen)) as shown, supervisor(arguments, shown) as children:
        results = [event.run for event in _asked("run", chosen, arguments, children, shown) if event.run is not None]
    for result in results:
        say(views.run_text(result))
    return int(not all(r.agrees and r.gradients_agree is not False and not r.uncompiled for r in results))


def machine_limits(arguments: argparse.Namespace) -> int:
    """What the machine can do, and its card; of functions, how far their kernels are from what they ran on. Status 1 where a function was
    not run."""
    chosen = _named(arguments.target) if arguments.target else []
    with progress(len(chosen) + 1) as shown, supervisor(arguments, shown) as children:
        machines = _measured(arguments, children, shown) if arguments.again or not chosen else []
        results = [event.run for event in _asked("run", chosen, arguments, children, shown) if event.run is not None]
        machines = machines or list({r.machine.name: r.machine for r in results if r.machine is not None}.values())
    if arguments.format == "json":
        distances = [{phase: plain.to_plain(distance(r, phase)) for phase in ("forward", "backward")} for r in results]
        functions = [plain.to_plain(r) | {"distance": d} for r, d in zip(results, distances, strict=True)]
        console.say(json.dumps({"machines": plain.to_plain(machines), "functions": functions}, indent=2))
    else:
        for result in results:
            say(views.run_text(result))
        for machine in machines:
            say("\n".join(printed_distance.machine_lines(machine)))
    return int(any(r.error is not None for r in results))


def _measured(arguments: argparse.Namespace, children: Supervisor, shown: Progress) -> list[Machine]:
    """What the processors can do, and the card, if there is one; or one of them, if the arguments say which. Raises UsageError."""
    stated = (arguments.device or "auto").partition(":")[0]
    found = []
    for device in ("cpu", "cuda") if stated == "auto" else (stated,):
        options = options_of(arguments) | {"device": device, "again": arguments.again}
        asked = wire.Request(0, "machine", options=options, limits=limits(arguments))
        answer = children.call(asked, shown.saying("this machine"))
        if answer.text:
            found.append(plain.from_plain(Machine, json.loads(answer.text)))
        elif answer.file is not None or stated == "cuda":
            raise UsageError(f"this machine was not measured: {_why(answer, 'there is no card')}")
    shown.done()
    return found


def _why(answer: wire.Event, otherwise: str = "no answer") -> str:
    return answer.file.diagnostics[0].message if answer.file is not None and answer.file.diagnostics else otherwise


def _named(target: str) -> list[Target]:
    """The functions that an argument names. Raises UsageError."""
    found = named(target)
    if not found:
        raise UsageError(f"{target} has no annotated functions")
    return found


def _asked(
    method: Any, chosen: list[Target], arguments: argparse.Namespace, children: Supervisor, shown: Progress, **options: Any
) -> Iterator[wire.Event]:  # fmt: skip
    """The answers of a child for each function, in order."""
    gradients, effects = not arguments.no_gradients, arguments.allow_effects
    given = options_of(arguments) | {"gradients": gradients, "allow_effects": effects} | options
    for number, target in enumerate(chosen, start=1):
        path = str(target.path)
        request = wire.Request(number, method, path, None, (target.function,), given, limits(arguments))
        yield children.call(request, shown.saying(path))
        shown.done()


def verify(arguments: argparse.Namespace) -> int:
    """Status 1 where a function differs from eager on any kind of call, was not compiled for a reason that is not its own, or where a
    limit ended the proof."""
    chosen = [target for path in arguments.paths for target in _named(path)]
    folder = arguments.output or Path("fuselens_verify")
    proofs: list[Proof] = []
    with progress(len(chosen)) as shown, supervisor(arguments, shown) as children:
        events = _asked("verify", chosen, arguments, children, shown)
        for target, event in zip(chosen, events, strict=True):
            proofs.append(proof := _explained(target, event, arguments, children, shown, folder))
            if arguments.format == "text":  # at once: the next one may take a minute
                say(_proof_text(target, proof))
    if arguments.format == "json":
        console.say(json.dumps([plain.to_plain(proof) for proof in proofs], indent=2))
    return int(any(not p.agrees or p.fault is not None or p.uncompiled or p.stopped for p in proofs))


def _proof_text(target: Target, proof: Proof) -> str:
    path = str(target.path)
    said = *proved.lines(proof, path), *proved.drift_table(proof, path)
    fault = [] if proof.fault is None else [views.diagnostic_text(proof.fault, full=True)]
    return "\n".join((f"{path}::{target.function}", *(f"  {line}" for line in said), *fault))


def _explained(
    target: Target, event: wire.Event, arguments: argparse.Namespace, children: Supervisor, shown: Progress, folder: Path
) -> Proof:  # fmt: skip
    """The proof with what is wrong, found by bisection, where something is."""

    def ask(method: Any, path: str, names: tuple[str, ...], options: dict[str, Any]) -> wire.Event:
        return next(iter(_asked(method, [Target(Path(path), *names[:1])], arguments, children, shown, **options)))

    until = time.monotonic() + arguments.timeout * _BISECTING if arguments.timeout else float("inf")
    search = Bisection(ask, (folder / target.function).absolute(), until)
    path = str(target.path)
    name = name_span(path, views.read_text(path) or "", target.function)
    return Faults(search, path, target.function, name).explained(event)


# --- changes ----------------------------------------------------------------------------------------------------------


def what_if(arguments: argparse.Namespace) -> int:
    """Status 1 where nothing is known of a function, or a change could not be applied."""
    chosen = _at_line(_named(arguments.target), arguments.line)
    texts = {target.path: views.read_text(str(target.path)) or "" for target in chosen}
    with progress(len(chosen)) as shown, supervisor(arguments, shown) as children:
        found = [_searched(target, texts[target.path], arguments, children, shown) for target in chosen]
    if arguments.apply is not None:
        return _apply(chosen, found, texts, arguments.apply)
    if arguments.format == "json":
        console.say(json.dumps([plain.to_plain(one) for one in found], indent=1))
    else:
        for target, one in zip(chosen, found, strict=True):
            say(
                "\n".join(
                    (f"{target.path}::{target.function}", *(f"  {line}" for line in tried.lines(one, str(target.path))))
                )
            )
    return int(any(one.stopped for one in found))


def _at_line(chosen: list[Target], line: int | None) -> list[Target]:
    """The function that has a line, with its decorator. Raises UsageError."""
    if line is None:
        return chosen
    path = chosen[0].path
    every = discovery.discover(views.read_text(str(path)) or "", str(path))
    names = [a.qualname for a in every if min(a.decorator_span.line, a.span.line) <= line <= a.span.end_line]
    found = [target for target in chosen if target.function in names[-1:]]
    if not found:
        raise UsageError(f"line {line} of {path} is in no function that is compiled")
    return found


def _line_in(target: Target, text: str, line: int | None) -> int | None:
    """A line of a function's body; None for all of it, which its head stands for."""
    found = next(a for a in discovery.discover(text, str(target.path)) if a.qualname == target.function)
    return line if line is not None and line > found.name_span.line else None


def _searched(
    target: Target, text: str, arguments: argparse.Namespace, children: Supervisor, shown: Progress
) -> WhatIf:  # fmt: skip
    path, given = str(target.path), options_of(arguments)
    search = asking.search(target.function, arguments.seconds, _line_in(target, text, arguments.line))
    question = next(search)
    number = 0
    while True:
        number += 1
        used = question.processor_seconds
        most = replace(limits(arguments), seconds=arguments.timeout + 2 * used, processor_seconds=used)
        request = wire.Request(number, question.method, path, text, (target.function,), given | question.options, most)
        try:
            question = search.send(children.call(request, shown.saying(path)))
        except StopIteration as end:
            shown.done()
            return replace(end.value, file=path)


def _apply(chosen: list[Target], found: list[WhatIf], texts: dict[Path, str], number: int) -> int:
    """Writes a change that is offered into its file, if that is still the one that was measured. Raises UsageError."""
    offered = [
        (target, change) for target, one in zip(chosen, found, strict=True) for change in one.offered if change.edits
    ]
    if not 0 < number <= len(offered):
        raise UsageError(
            f"there is no change {number}: {len(offered)} are offered" if offered else "no change is offered"
        )
    target, change = offered[number - 1]
    try:
        data = source_text.read_bytes(target.path)
        if source_text.decode(data) != texts[target.path]:
            raise writing.ChangedError
        writing.write(target.path, data, writing.encoded(data, change.edits))
    except writing.ChangedError:
        raise UsageError(f"{target.path} was not changed: it is no longer the file that was measured") from None
    except (OSError, UnicodeEncodeError) as error:
        raise UsageError(f"{target.path} was not changed: {error}") from None
    say(f"{target.path}: {tried.title(change)}")
    return 0


# --- times ------------------------------------------------------------------------------------------------------------


def bench(arguments: argparse.Namespace) -> int:
    """Times each function in each mode, every time in a process of its own; calls of the compiled and the eager function are made in
    turn. Status 1 where one cannot be run, or differs from eager."""
    chosen = _named(arguments.target)
    modes = [mode.strip() for mode in arguments.modes.split(",") if mode.strip()] or [""]
    wrong = False
    with progress(len(chosen) * len(modes) * arguments.rounds) as shown, supervisor(arguments, shown) as children:
        for target in chosen:
            found: dict[str, list[RunResult]] = {mode: [] for mode in modes}
            for _ in range(arguments.rounds):
                for mode in modes:
                    options = {"as_mode": mode} if mode else {}
                    for event in _asked("run", [target], arguments, children, shown, **options):
                        found[mode] += [event.run] if event.run is not None else []
            say("\n".join(_table(target, found, arguments.rounds)))
            wrong |= any(not r.agrees for results in found.values() for r in results)
    return int(wrong)


_COLUMNS = ("", "first call", "call", "eager", "speed-up", "memory", "eager's")


def _table(target: Target, found: dict[str, list[RunResult]], rounds: int) -> Iterator[str]:
    yield f"{target.path}::{target.function} (medians{f' of {rounds} processes' if rounds > 1 else ''})"
    rows: list[tuple[str, ...]] = [_COLUMNS]
    notes: list[str] = []
    for mode, results in found.items():
        name = mode or "as annotated"
        failed = next((r for r in results if not r.agrees or not r.compiled), None)
        if failed is not None:
            notes.append(f"  {name}: {views.run_text(failed)}")
        if timed := [r for r in results if r.compiled_seconds and r.eager_seconds]:
            rows.append(_row(name, timed))
    widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
    for row in rows if len(rows) > 1 else ():
        yield (
            "  "
            + "  ".join(
                cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        ).rstrip()
    yield from notes


def _row(name: str, results: list[RunResult]) -> tuple[str, ...]:
    def middle(field: str) -> float | None:
        values = [value for r in results if (value := getattr(r, field)) is not None]
        return statistics.median(values) if values else None

    speedup, least = middle("speedup"), [r.speedup_quartiles for r in results if r.speedup_quartiles]
    spread = f" ({min(q[0] for q in least):.2f} to {max(q[1] for q in least):.2f})" if least else ""
    memory = [middle("compiled_bytes"), middle("eager_bytes")]
    return (
        name, views.seconds_text(middle("compile_seconds")), views.seconds_text(middle("compiled_seconds")),
        views.seconds_text(middle("eager_seconds")), f"{speedup:.2f} ×{spread}" if speedup else "–",
        *("–" if m is None else views.bytes_text(int(m)) for m in memory),
    )  # fmt: skip


def record(arguments: argparse.Namespace) -> int:
    from .. import own_run

    if not Path(arguments.program).is_file():
        raise UsageError(f"{arguments.program} is not a file")
    own_run.run(arguments.program, arguments.arguments)
    return 0
