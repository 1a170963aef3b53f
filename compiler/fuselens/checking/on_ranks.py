"""What the functions of a file communicate on ranks that are not there, and whether all ranks communicate alike.

The file is opened once for each rank that is looked at, as that rank finds it. There a function runs eagerly, once, with its backward:
compiled, it communicates in the same order. The ranks that can differ are looked at, and others while that is quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import api, sandbox, torch_private
from ..capture.classify import is_installed
from ..config import Config
from ..inputs.weightless import Weightless
from ..ranks import world
from ..ranks.costs import Network
from ..ranks.held import Held, modules_of
from ..ranks.listening import Heard, Listening
from ..record import diagnostics, live_memory, views
from ..record.report import Collective, Communication, Diagnostic, RankMemory, Report, Span
from ..runtime.ranks import difference
from .function_check import Call, planned
from .opening import Progress, opened, silent
from .parsing import FileRefused
from .user_code import describe

_MESSAGES = ("send", "recv")  # between two ranks, which do not do the same
_SECONDS = 2.0  # for ranks that need not be looked at


@dataclass(slots=True)
class _Seen:
    """What one function did on one rank. ``raised`` ended it; ``call`` is which of the program's calls it was."""

    heard: list[Heard] = field(default_factory=list)
    memory: RankMemory | None = None
    raised: str = ""
    call: object = None


@dataclass(slots=True)
class _Rank:
    rank: int
    mesh: dict[str, int]
    functions: dict[str, _Seen]


def look(
    path: str | Path, source: str | None, reports: list[Report], config: Config, say: Progress, until: float = float("inf")
) -> None:  # fmt: skip
    """Completes the reports of functions that were called: what they communicate, what ranks hold, and where ranks differ. No
    rank is begun that would not be done ``until`` then (``time.monotonic()``)."""
    reports = [r for r in reports if r.inputs is not None and not r.unchanged]
    if not reports:
        return
    names = tuple(r.function for r in reports)

    def seen_by(rank: int) -> _Rank:
        say(f"{names[0]}: rank {rank} of {config.world_size}")
        return _look_as(rank, str(path), source, names, config)

    start = time.monotonic()
    ranks = [seen_by(0)]
    must = world.telling(ranks[0].mesh, config.world_size)
    others = [rank for rank in range(config.world_size) if rank not in must]
    quickly = time.monotonic() + _SECONDS
    for rank in (*must[1:], *others):
        now = time.monotonic()
        if now + (now - start) / len(ranks) > (until if rank in must else min(until, quickly)):
            break
        ranks.append(seen_by(rank))
    ranks.sort(key=lambda r: r.rank)
    for report in reports:
        of = {r.rank: r.functions.get(report.function, _Seen()) for r in ranks}
        _complete(report, of, ranks[0].mesh, config)


@contextlib.contextmanager
def as_rank(config: Config, rank: int) -> Iterator[world.World]:
    """Inside, the process is that rank; modules of the program's other files are gone then, since what they hold is a rank's."""
    before = set(sys.modules)
    try:
        with world.entered(config, rank) as here:
            yield here
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not is_installed(file):
                del sys.modules[name]


def _look_as(rank: int, path: str, source: str | None, names: tuple[str, ...], config: Config) -> _Rank:
    functions: dict[str, _Seen] = {}
    with as_rank(config, rank) as here:
        try:
            with opened(path, source, names, None, config) as file:
                for annotated in file.annotated:
                    call = planned(file, annotated, config, silent)
                    if isinstance(call, Diagnostic):
                        functions[annotated.qualname] = _Seen(raised=f"{call.code}: {call.message}")
                    else:
                        functions[annotated.qualname] = _run(call, here)
        except FileRefused as refused:
            functions = {name: _Seen(raised=refused.diagnostic.message) for name in names}
        sandbox.take()
        return _Rank(rank, here.mesh, functions)


def _run(call: Call, here: world.World) -> _Seen:
    """One call, eagerly, with its backward."""
    target = here.around(call.found.target)
    held = Held(modules_of(target, (*call.inputs.args, *call.inputs.kwargs.values())))
    listening = Listening(here, held.gathers)
    seen = _Seen(listening.heard)
    around = call.evaluated.around if call.evaluated is not None else None
    surroundings = around.again() if around else contextlib.nullcontext()
    with surroundings, api.set_stance("force_eager"), _lines_are_kept(), Weightless(), listening:
        seen.call = call.stated.origin, call.stated.file, call.stated.line, torch.is_grad_enabled()
        try:
            _backward(target(*call.inputs.args, **call.inputs.kwargs))
        except (Exception, sandbox.Refused, SystemExit) as error:  # noqa: BLE001  the program may raise anything
            seen.raised = describe(error)
    seen.memory = held.told(here.rank)
    return seen


@contextlib.contextmanager
def _lines_are_kept() -> Iterator[None]:
    """Inside, nodes of autograd know the lines of the forward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is slow, and where a node was made that raises
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield


def _backward(result: Any) -> None:
    """Gradients of all that the function returns, where there are any."""
    leaves = [t for t in torch_private.PYTREE.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if leaves and torch.is_grad_enabled():
        torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])


# --- what is told -----------------------------------------------------------------------------------------------------


def _complete(report: Report, ranks: dict[int, _Seen], mesh: dict[str, int], config: Config) -> None:
    network = Network.of(config)
    graphs = sum(max((step.bytes for step in graph.memory), default=0) for graph in report.captured)
    held = (seen.memory for seen in ranks.values() if seen.memory is not None)
    memory = tuple(dataclasses.replace(m, graphs=graphs) for m in held)
    found = Communication(config.world_size, mesh, tuple(ranks), _collectives(ranks[0].heard, network), memory)
    report.communication = found
    looked = f"{len(ranks)} of {found.ranks} ranks were looked at"
    if ranks[0].raised:
        looked += f", until rank 0 raised {ranks[0].raised}"
    report.diagnostics += [_told(c, report, network) for c in found.collectives]
    report.diagnostics += _differences(report, ranks, looked)
    if memory and (found.collectives or any(m.parameters for m in memory)):
        report.diagnostics.append(_held(report, found, looked))


def _collectives(heard: list[Heard], network: Network) -> tuple[Collective, ...]:
    """Those at one place that are alike as one."""
    found: dict[Collective, int] = {}
    for h in heard:
        seconds = network.seconds(h.name, h.size, h.ranks)
        hosts = network.hosts(h.ranks)
        one = Collective(
            h.name, h.group, len(h.ranks), hosts, h.of, h.phase, h.sent, h.received, seconds, h.span
        )  # fmt: skip
        found[one] = found.get(one, 0) + 1
    return tuple(dataclasses.replace(one, calls=calls) for one, calls in found.items())


def _told(one: Collective, report: Report, network: Network) -> Diagnostic:
    sent, received = (live_memory.bytes_text(one.calls * n) for n in (one.sent, one.received))
    alike = f"each rank sends and receives {sent}"
    moved = alike if sent == received else f"rank 0 sends {sent} and receives {received}"
    hosts = "all ranks of it are on one host" if one.hosts == 1 else f"its ranks are on {one.hosts} hosts"
    return diagnostics.make(
        "FL931", one.span or report.span, what=one.text, phase=" in the backward" if one.phase == "backward" else "",
        moved=moved, seconds=views.seconds_text(one.calls * one.seconds), hosts=hosts,
    )  # fmt: skip


def _held(report: Report, found: Communication, looked: str) -> Diagnostic:
    """Of the rank that holds most."""
    text, most = live_memory.bytes_text, max(found.memory, key=lambda m: m.peak)
    whole = f" (of {text(most.whole)})" if most.whole != most.parameters else ""
    parts = {
        f"of parameters{whole}": most.parameters, "of gradients": most.gradients, "of buffers": most.buffers, "in graphs": most.graphs,
    }  # fmt: skip
    told = ", ".join(f"{text(count)} {what}" for what, count in parts.items() if count)
    sends = f"; it sends {text(found.sent)}, predicted {views.seconds_text(found.seconds)}" if found.collectives else ""
    return diagnostics.make(
        "FL933", report.span, rank=most.rank, ranks=found.ranks, peak=text(most.peak), memory=f": {told}" if told else "",
        sends=sends, looked=looked,
    )  # fmt: skip


# --- where ranks differ -------------------------------------------------------------------------------------------------


def _differences(report: Report, ranks: dict[int, _Seen], looked: str) -> list[Diagnostic]:
    """The first place at which two ranks of a group would not do the same, each place once."""
    found: dict[Span | None, Diagnostic] = {}
    for rank, mine in ranks.items():
        for other, theirs in ranks.items():
            if other <= rank or mine.call != theirs.call:  # a program may call it for something else on the first rank
                continue
            why, span = _difference(rank, mine, other, theirs)
            if why and span not in found:
                where = span or report.span
                found[span] = diagnostics.make("FL932", where, what=report.function, why=why, looked=looked)
    return list(found.values())


def _difference(rank: int, mine: _Seen, other: int, theirs: _Seen) -> tuple[str, Span | None]:
    """How two ranks differ in the groups that have both, and where; "" where they do not."""
    ours, others = (
        [h for h in seen.heard if {rank, other} <= set(h.ranks) and h.name not in _MESSAGES] for seen in (mine, theirs)
    )
    for number in range(max(len(ours), len(others))):
        a, b = (side[number] if number < len(side) else None for side in (ours, others))
        if a is None or b is None or (a.about, a.ranks) != (b.about, b.ranks):
            one = next(h for h in (a, b) if h is not None)
            place = f"collective {number + 1} of those that both take part in"
            texts = [
                f"{h.about} over {h.group}" if h is not None else _ended(seen) for h, seen in ((a, mine), (b, theirs))
            ]
            return f"{difference(rank, texts[0], other, texts[1])}, as {place}", one.span
    if mine.raised != theirs.raised:
        return difference(rank, _ended(mine), other, _ended(theirs)), None
    return "", None


def _ended(seen: _Seen) -> str:
    return f"raise {seen.raised}" if seen.raised else ""
