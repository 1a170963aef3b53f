"""From a call that differs to the line, the stage and the kernel that make it differ: one finding for a function.

A graph is asked first, because what is found there is the most exact. Where no graph alone fails, the call is made again in a
process of its own: what then agrees needed an earlier call (a guard is missing), or a cache (an entry of it is wrong).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..record import plain, wire
from ..record.diagnostics import make
from ..record.report import Diagnostic, Proof, Span, Tried
from .bisection import Bisection, Smallest
from .search import LATER
from .straight import NoProgram

_DEATHS = frozenset({"FL906"})
_LIMITS = frozenset({"FL905", "FL910"})  # eager may be what takes so long, or so much


@dataclass(frozen=True, slots=True)
class Faults:
    """``place`` is where findings are that no line can be named for; ``left_out`` are kinds of calls that are not tried."""

    search: Bisection
    path: str
    function: str
    place: Span | None
    left_out: tuple[str, ...] = ()

    def explained(self, answer: wire.Event) -> Proof:
        """The proof that a ``verify`` answers with, and what is wrong where something is."""
        proof = proof_of(answer.text)
        found = next(iter(answer.file.diagnostics), None) if answer.file else None
        if proof is not None and found is None:
            return replace(proof, fault=self.of_proof(proof))
        if found is None:
            return Proof(self.function, compiled=False, uncompiled="it was not asked to the end")
        known = proof or Proof(self.function)
        if found.code in _LIMITS:
            why, at = found.message, known.at
            if at is not None and at.inputs not in why:  # it mostly says what was being done
                why += f" ({at.inputs}, {at.what})"
            return replace(known, stopped=why, fault=self.of_proof(known))
        if found.code in _DEATHS and known.at is not None and known.at.eager:
            return self._of_others(known.at.inputs, found.message)
        if found.code in _DEATHS:
            inputs = known.at.inputs if known.at else "the example inputs"
            crashed = Tried(inputs, False, found.message, how="raised")
            fault = self.of_proof(known) or self.of_crash(crashed, found.span)  # what differs tells more than a crash
            return replace(known, tried=(*known.tried, crashed), fault=fault)
        return Proof(self.function, compiled=False, uncompiled=found.message)

    def _of_others(self, inputs: str, why: str) -> Proof:
        """The proof without a kind of call with which eager itself ends the process: there is nothing to compare with."""
        left_out = (*self.left_out, inputs)
        answer = self.search.asked("verify", self.path, (self.function,), left_out=list(left_out))
        found = replace(self, left_out=left_out).explained(answer)
        crashed = Tried(inputs, True, f"nothing to compare with, as eager ends the process: {why}", raises=True)
        return replace(found, tried=(*found.tried, crashed))

    def of_proof(self, proof: Proof) -> Diagnostic | None:
        """The finding of the first call that differs; None where all agree."""
        failing = [tried for tried in proof.tried if not tried.agrees]
        if not failing:
            return None
        first = failing[0]
        written = self.search.graphs(self.path, self.function, (first.inputs,), first.where)
        if first.how == "drawn":
            return self._make("FL601", _nearest(written), first, made="the random numbers that it draws in a run")
        if found := self._of_graphs(written, first):
            return found
        names = [tried.inputs for tried in proof.tried]
        if found := self._of_guards(names[: names.index(first.inputs)], first, _span(written.get("left_at"))):
            return found
        again = self._again(first.inputs)
        if again is None or not again.agrees:
            uncached = self._again(first.inputs, cache=False)
            if uncached is not None and uncached.agrees:
                return self._make("FL604", _nearest(written), first)
            code = "FL605" if first.how == "raised" else "FL601"
            return self._make(code, _nearest(written), first)
        if first.how == "unsteady":
            return self._make("FL603", _nearest(written), first)
        return self._make("FL602", _nearest(written), first, before="another call")

    def _of_guards(self, before: Sequence[str], tried: Tried, left_at: Span | None) -> Diagnostic | None:
        """That the call runs what was compiled for one of those ``before``: captured anew, it does so only after that one.
        ``left_at`` is the line of eager that leaves what differs."""
        for earlier in before:
            written = self.search.graphs(self.path, self.function, (earlier, tried.inputs))
            if written.get("differs"):
                told = replace(tried, detail=written["how"] or written["differs"])
                return self._make("FL602", _span(written.get("span")) or left_at, told, before=earlier)
        return None

    def of_crash(self, tried: Tried, place: Span | None) -> Diagnostic:
        """The finding of a proof whose process ended in a compiled call, at a ``place`` if one is known."""
        written = self.search.graphs(self.path, self.function, (tried.inputs,))
        return self._of_graphs(written, tried) or self._make("FL605", place, tried)

    # --- graphs ----------------------------------------------------------------------------------------------------

    def _of_graphs(self, written: dict[str, Any], tried: Tried) -> Diagnostic | None:
        if written["raised"]:
            return None
        if written["differs"] and written["span"]:
            told = replace(tried, detail=written["how"])
            return self._make(
                "FL601", _span(written["span"]), told, made="capture: the graph itself, run operator by operator"
            )
        for told in written["programs"]:
            if told["why"]:
                continue
            program = Path(told["path"])
            try:
                whole = self.search.whole(program)
                if whole.fails:
                    smallest = self.search.smallest(program, whole, tuple(written["rewrites"]))
                    return self._of_part(smallest, whole.kernels, told["lines"], tried)
            except NoProgram:
                continue
        return None

    def _of_part(
        self, found: Smallest, kernels: Sequence[Sequence[str]], lines: dict[str, Any], tried: Tried
    ) -> Diagnostic:  # fmt: skip
        named = [name for name in reversed(found.names) if name in lines]
        span = _span(lines[named[0]]) if named else self.place
        kernel = next((k for k, *of in kernels if named and named[0] in of), "")
        raises = found.verdict.kind in ("raised", "crashed")
        unsteady = found.verdict.where.endswith(LATER)
        code = "FL605" if raises else "FL603" if unsteady else "FL601"
        told = replace(tried, detail=found.verdict.what)
        made = found.fault.text + (f"; kernel {kernel}" if kernel else "")
        program = str(found.program) if found.program is not None else ""
        return self._make(code, span, told, made=made, program=program)

    # --- the call, alone -------------------------------------------------------------------------------------------

    def _again(self, kind: str, cache: bool = True) -> Tried | None:
        """What comes of the call in a process of its own; None where that process ended."""
        options: dict[str, Any] = {"kinds": [kind]}
        if not cache:
            options["cache_dir"] = str(self.search.folder / "cache")
        event = self.search.asked("verify", self.path, (self.function,), **options)
        found = proof_of(event.text)
        return next(iter(found.tried), None) if found else None

    def _make(
        self, code: str, span: Span | None, tried: Tried, made: str = "", program: str = "", before: str = ""
    ) -> Diagnostic:  # fmt: skip
        written = f" The smallest program that shows it: {program}" if program else ""
        return make(
            code, span or self.place, what=self.function, how=tried.detail, on=tried.inputs, before=before,
            made=made or "what is around its graphs", program=written,
        )  # fmt: skip


def proof_of(text: str) -> Proof | None:
    """The answer to a ``verify``; None of a child that died."""
    return plain.from_plain(Proof, json.loads(text)) if text else None


def _nearest(written: dict[str, Any]) -> Span | None:
    """The first line whose value differs, or the one that leaves what differs."""
    return _span(written.get("span")) or _span(written.get("left_at"))


def _span(value: Any) -> Span | None:
    return Span(**value) if isinstance(value, dict) else None
