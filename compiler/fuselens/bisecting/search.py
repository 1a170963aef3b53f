"""The search: the smallest part of a graph that still fails, and the first stage after which it does.

A *probe* compiles a part of a graph in a process of its own and compares it with eager. Each that fails in the same way as the
whole graph is progress; a probe that fails in another way proves nothing. Searches halve where what they look for is likely to
be in one place, and never believe more than a probe has said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import straight
from .straight import Lines, Part

STAGES = ("capture", "joint", "simplify", "lower", "fuse")  # what follows is code generation
LATER = " of a later call"
_ABOUT = {
    "capture": "capture: the graph itself, run operator by operator",
    "joint": "joint: the graph with its backward, as operators of ATen",
    "simplify": "simplify: rewrites of the graph of ATen operators",
    "lower": "lower: loops, before they are fused",
    "fuse": "fuse: loops, fused into kernels",
    "generate": "generate: code of the kernels, and what calls them",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found. ``kind``: "agrees", "differs", "has other memory" (a result, whose values agree), "raised",
    "crashed", "slow", or "invalid" where eager cannot run it."""

    kind: str
    what: str = ""
    where: str = ""  # "result 2", "gradient of x", "x afterwards"; of a later call, where the first is right
    fusions: int = 0
    left_out: str = ""  # the first fusion that was not made, and where
    kernels: Sequence[Sequence[str]] = ()  # the name of each, and what the statements define that it is of

    @property
    def fails(self) -> bool:
        return self.kind not in ("agrees", "invalid")

    @property
    def text(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.kind}{where}{': ' if self.what else ''}{self.what}"


Probe = Callable[[Part, str], Verdict]


@dataclass(slots=True)
class Fault:
    """The first ``stage`` after which a part fails, and the rewrite or the fusion that makes it, where it is one."""

    stage: str
    step: str = ""

    @property
    def text(self) -> str:
        return _ABOUT[self.stage] + (f"; the first that makes it: {self.step}" if self.step else "")


@dataclass(slots=True)
class Search:
    """``over()`` says when to come to an end: what was found by then is told."""

    lines: Lines
    probe: Probe
    kind: str
    over: Callable[[], bool] = lambda: False
    probes: int = 0
    _known: dict[tuple[Part, str], Verdict] = field(default_factory=dict)

    def verdict(self, part: Part, until: str = "") -> Verdict:
        found = self._known.get((part, until))
        if found is None:
            self.probes += 1
            found = self._known[part, until] = self.probe(part, until)
        return found

    def fails(self, part: Part, until: str = "") -> bool:
        return not self.over() and self.verdict(part, until).kind == self.kind

    # --- the smallest part ---------------------------------------------------------------------------------------

    def smallest(self) -> Part:
        part = self._fewer_results(self.lines.whole)
        while True:
            before = part
            part = self._fewer_results(self._later_start(self._earlier_end(part)))
            part = self._fewer_statements(part)
            if part == before or self.over():
                return part

    def _fewer_results(self, part: Part) -> Part:
        where, _, number = self.verdict(part).where.removesuffix(LATER).partition(" ")
        wanted = [part.results[int(number)]] if where == "result" and number.isdigit() else list(part.results)
        for result in wanted if len(wanted) <= 16 else ():
            one = self.lines.part(part.kept, (result,))
            if self.fails(one):
                return one
        same = self.lines.part(part.kept, part.results)
        return same if self.fails(same) else part

    def _earlier_end(self, part: Part) -> Part:
        """Ends with the first statement behind which something is wrong: its value, or one that is still used."""
        statements = self.lines.statements

        def ending(count: int) -> Part:
            kept, rest = part.kept[:count], part.kept[count:]
            used = {name for k in rest for name in statements[k].uses} | straight.names(part.results)
            alive = [name for k in kept if (name := statements[k].name) in used]
            last = statements[kept[-1]].name
            results = tuple(dict.fromkeys([last, *alive] if last else alive)) or part.results[:1]
            return _with_given(self.lines.part(kept, results), part)

        low, high = 1, len(part.kept)
        best = part
        while low < high and not self.over():
            middle = (low + high) // 2
            candidate = ending(middle)
            if candidate.kept and self.fails(candidate):
                best, high = candidate, middle
            else:
                low = middle + 1
        return best

    def _later_start(self, part: Part) -> Part:
        """Begins as late as it can; what came before is given."""
        best, low, high = part, 0, len(part.kept) - 1
        while low < high and not self.over():
            middle = (low + high + 1) // 2
            kept = part.kept[middle:]
            candidate = self.lines.part(kept, part.results, kept[0])
            if self.fails(candidate):
                best, low = candidate, middle
            else:
                high = middle - 1
        return best

    def _fewer_statements(self, part: Part) -> Part:
        """Without statements whose values may as well be given: many at once, then fewer, then one."""
        size = max(1, len(part.kept) // 2)
        while size and not self.over():
            at = 0
            while at < len(part.kept) and len(part.kept) > 1:
                kept = (*part.kept[:at], *part.kept[at + size :])
                candidate = _with_given(self.lines.part(kept, part.results), part)
                if candidate.kept and len(candidate.kept) < len(part.kept) and self.fails(candidate):
                    part = candidate
                else:
                    at += size
            size //= 2
        return part

    # --- the stage -----------------------------------------------------------------------------------------------

    def fault(self, part: Part, rewrites: Sequence[str]) -> Fault:
        """The first stage after which the part fails."""
        # Loops that are interpreted are slow in any case.
        stages = [s for s in STAGES if self.kind != "slow" or s not in ("lower", "fuse")]
        stage = next((s for s in stages if self.fails(part, s)), "generate")
        if stage == "simplify" and (first := self._first(part, "simplify", len(rewrites))) is not None:
            return Fault(stage, rewrites[first - 1])
        if stage in ("fuse", "generate"):
            fusions = self.verdict(part, stage).fusions
            first = self._first(part, stage, fusions)
            if first is not None:
                return Fault(stage, self.verdict(part, f"{stage}:{first - 1}").left_out or "inlining cheap producers")
        return Fault(stage)

    def _first(self, part: Part, stage: str, most: int) -> int | None:
        """The least number of rewrites or fusions with which the part fails; None where it fails without any, or never."""
        if self.fails(part, f"{stage}:0") or not self.fails(part, f"{stage}:{most}"):
            return None
        low, high = 0, most  # fails with high, not with low
        while high - low > 1 and not self.over():
            middle = (low + high) // 2
            if self.fails(part, f"{stage}:{middle}"):
                high = middle
            else:
                low = middle
        return high


def _with_given(made: Part, of: Part) -> Part:
    """``made`` with the values that ``of`` is given for the same names."""
    had = dict(of.given)
    return Part(made.kept, tuple((name, had.get(name, at)) for name, at in made.given), made.results)
