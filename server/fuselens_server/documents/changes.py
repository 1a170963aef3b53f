"""Two compilations of one function side by side: one sentence, and the texts of each stage. Pure functions of two reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuselens.record.report import Report, Stage

from .stages import kind, language


@dataclass(frozen=True, slots=True)
class StagePair:
    """A stage in both compilations; "" where one lacks it. ``name`` ends in the extension that tells an editor the language."""

    title: str
    name: str
    graph: int
    kind: str
    language: str
    before: str
    after: str

    @property
    def differs(self) -> bool:
        return self.before != self.after


def sentence(before: Report, after: Report) -> str:
    """``1 → 3 graphs; +1 break; peak +64 B``."""
    parts = [
        _from_to(len(before.captured), len(after.captured), "graph"),
        _more(len(before.breaks), len(after.breaks), "break"),
        _from_to(len(before.kernels), len(after.kernels), "kernel"),
        _more(_externs(before), _externs(after), "call of a library", "calls of libraries"),
        _bytes("peak", _peak(before), _peak(after)),
        _bytes("memory traffic", _traffic(before), _traffic(after)),
        _more(len(before.guards), len(after.guards), "guard"),
        _more(len(before.diagnostics), len(after.diagnostics), "finding"),
    ]
    said = "; ".join(filter(None, parts))
    if said:
        return said
    changed = sum(pair.differs for pair in pairs(before, after))
    same = "as many graphs, breaks and kernels, and the same memory"
    return f"{same}; the text of {_count(changed, 'stage')} differs" if changed else "nothing differs"


def pairs(before: Report, after: Report) -> list[StagePair]:
    """Every stage that either has, in the order in which they ran."""
    left, right = dict(_stages(before)), dict(_stages(after))
    found = []
    for graph, name, suffix in dict.fromkeys([*left, *right]):
        one, other = left.get((graph, name, suffix)), right.get((graph, name, suffix))
        stage = one or other
        assert stage is not None
        found.append(
            StagePair(
                f"graph {graph} · {name}", f"{name}.{suffix}", graph, kind(stage), language(suffix),
                one.text if one else "", other.text if other else "",
            )
        )  # fmt: skip
    return sorted(found, key=lambda pair: pair.graph)


def _stages(report: Report) -> Iterator[tuple[tuple[int, str, str], Stage]]:
    """Those that have a text: one that is made only for who opens it has none."""
    for graph in report.graphs:
        for stage in graph.stages:
            if stage.text:
                yield (graph.id, stage.name, stage.suffix), stage


def _externs(report: Report) -> int:
    return sum(len(graph.externs) for graph in report.graphs)


def _peak(report: Report) -> int:
    """The most bytes that one of its graphs holds."""
    return max((step.bytes for graph in report.graphs for step in graph.memory), default=0)


def _traffic(report: Report) -> int:
    return sum((kernel.bytes_read or 0) + (kernel.bytes_written or 0) for kernel in report.kernels)


def _from_to(before: int, after: int, noun: str) -> str:
    return "" if before == after else f"{before} → {_count(after, noun)}"


def _more(before: int, after: int, noun: str, plural: str = "") -> str:
    if before == after:
        return ""
    return f"{'+' if after > before else '−'}{_count(abs(after - before), noun, plural)}"


def _bytes(what: str, before: int, after: int) -> str:
    if before == after:
        return ""
    size = float(abs(after - before))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{what} {'+' if after > before else '−'}{size:.4g} {unit}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
