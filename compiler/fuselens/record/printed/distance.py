"""How far a run is from what the machine allows, in words: a sentence for the function, a row for each kernel, the machine's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from ..limits import ALLOWED_BY, BETWEEN, WAITS_FOR, Distance, Place, distance, longest, next_gain, with_limit
from ..live_memory import bytes_text, seconds_text
from ..report import KernelRun, Machine, Report, RunResult, Span

_MOST_ROWS = 20
PHASES = (("forward", "a call"), ("backward", "its backward"))


def percent(share: float) -> str:
    """``71 %``; ``< 1 %`` for less than that."""
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 else "< 1 %"


def sentence(result: RunResult, phase: str = "forward") -> str:
    """``6.1 ms, 71 % of what memory allows; the next gain is `clone_0` in line 40: 1.2 ms, and its bytes need 0.3 ms``; "" where that is
    not known."""
    found = distance(result, phase)
    if found is None:
        return ""
    return f"{seconds_text(found.seconds)}, {allowed(found)}; {gain(found)}"


def allowed(found: Distance) -> str:
    """``71 % of what memory allows``."""
    verb = "allows" if found.bound == "traffic" else "allow"
    return f"{percent(found.share)} of what {ALLOWED_BY[found.bound]} {verb}"


def gain(found: Distance) -> str:
    """``the next gain is …``"""
    place = next_gain(found)
    if place is None:
        return "no kernel is far from its limit"
    if place.names == (BETWEEN,):
        return f"the next gain is what is between kernels: {seconds_text(place.seconds)} for launches, allocations and checks"
    return f"the next gain is {place_text(place)}: {seconds_text(place.seconds)}, where {seconds_text(place.least)} would do"


def place_text(place: Place) -> str:
    """`` `clone_0` in line 40``, with the file where it is not the function's own."""
    names = ", ".join(f"`{name}`" for name in place.names[:2]) + (" and others" if len(place.names) > 2 else "")
    return f"{names} in line {place.span.line}" if place.span is not None else names


def amounts(kernel: KernelRun) -> str:
    """``1.5 MiB, 2.1 G operations of products``."""
    said = [bytes_text(kernel.bytes)] if kernel.bytes else []
    products = sum(n for kind, n in kernel.operations.items() if kind.startswith("product "))
    others = sum(n for kind, n in kernel.operations.items() if not kind.startswith("product "))
    said += [f"{_count(products)} operations of products"] if products else []
    said += [f"{_count(others)} other operations" if products else f"{_count(others)} operations"] if others else []
    return ", ".join(said)


def kernel_text(kernel: KernelRun) -> str:
    """``0.31 ms, 82 % of what memory allows``, or what it waits for where it is far from every limit."""
    if kernel.seconds is None:
        return "not timed"
    text = seconds_text(kernel.seconds)
    if kernel.share is None or kernel.least is None:
        return text
    if kernel.bound == "latency":
        return f"{text}, where {seconds_text(kernel.least)} would do: {WAITS_FOR['latency']}"
    return f"{text}, {percent(kernel.share)} of its limit: {WAITS_FOR[kernel.bound]}"


def lines(result: RunResult) -> list[str]:
    """The sentences of a call and of its backward, and a row for each kernel, the slowest first."""
    out = [f"{title}: {said}" for phase, title in PHASES if (said := sentence(result, phase))]
    timed = sorted((k for k in result.kernels if k.seconds is not None), key=lambda k: -(k.seconds or 0.0))
    rows = [
        (k.name + (" (library)" if k.library else ""), _where(k.spans), _when(k), amounts(k), kernel_text(k))
        for k in timed
    ]
    out += _table(rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        out.append(f"  and {len(rows) - _MOST_ROWS} faster ones")
    untimed = sum(k.seconds is None for k in result.kernels)
    if timed and untimed:
        out.append(f"  {untimed} {'others' if untimed > 1 else 'other'} could not be timed")
    return out


def needed_lines(report: Report, machine: Machine) -> list[str]:
    """A row for each kernel and operator of a function: what it moves and does, and how long the machine needs for that at least."""
    rows: list[tuple[float, tuple[str, ...]]] = []
    for graph in report.graphs:
        for work in graph.work:
            run = with_limit(
                KernelRun(work.name, graph.id, work.phase, work.spans, work.read, work.written, work.operations),
                machine,
            )
            least = run.least or 0.0
            bound = longest(run.limits)
            name = work.name + (" (library)" if work.library else "")
            rows.append(
                (
                    least,
                    (name, _where(work.spans), work.phase, amounts(run), f"{seconds_text(least)}: {WAITS_FOR[bound]}"),
                )
            )
    rows.sort(key=lambda row: -row[0])
    more = [f"  and {len(rows) - _MOST_ROWS} shorter ones"] if len(rows) > _MOST_ROWS else []
    return [*_table(row for _, row in rows[:_MOST_ROWS]), *more]


def machine_lines(machine: Machine) -> list[str]:
    """What a machine can do."""
    how = f"measured on {machine.measured}" if machine.measured else "of its maker's figures"
    out = [f"{machine.name} ({how})"]
    for name, curve in (("reads", machine.reads), ("copies", machine.copies), ("writes", machine.writes)):
        several = len(curve) > 1
        told = (f"{f'{bytes_text(size)} ' * several}{_count(speed)}B/s" for size, speed in curve)
        out.append(f"  {name}: {', '.join(told)}")
    products = {kind.partition(" ")[2]: n for kind, n in machine.operations.items() if kind.startswith("product ")}
    others = {kind: n for kind, n in machine.operations.items() if not kind.startswith("product ")}
    out.append("  products, operations a second: " + ", ".join(f"{k} {_count(n)}" for k, n in products.items()))
    out.append("  other operations a second: " + ", ".join(f"{k} {_count(n)}" for k, n in others.items()))
    return [*out, f"  the smallest kernel takes {seconds_text(machine.start)}"]


def _when(kernel: KernelRun) -> str:
    return "forward, training" if kernel.trains and kernel.phase == "forward" else kernel.phase


def _where(spans: Sequence[Span]) -> str:
    return f"{PurePath(spans[0].file).name}:{spans[0].line}" if spans else ""


def _table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    rows = list(rows)
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _count(number: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f}"
