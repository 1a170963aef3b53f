"""What a child does for a search: it runs a part of a graph's program eagerly and compiled, and says whether they agree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from .. import api
from ..config import Config, from_environment
from ..inputs import agreement
from ..inputs.comparison import copied
from ..ir.graphs import program_text
from ..pipeline import Recorder
from ..record import wire
from ..record.diagnostics import raised
from ..record.report import Span
from . import straight
from .search import LATER, Verdict
from .straight import Lines, NoProgram, Part

_CALLS = 3  # memory that is used again, and threads that meet in it, show in a later one


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A program that was executed: ``names`` are its globals."""

    path: Path
    lines: Lines
    names: dict[str, Any]

    @property
    def owner(self) -> Any:
        """What holds the graph's constants."""
        return self.names.get("OWNER")

    def values(self, part: Part) -> list[Any]:
        """What the part is given: the whole graph runs eagerly until they are known. Copies, detached from what made them."""
        wanted: dict[int, list[str]] = {}
        for name, at in part.given:
            wanted.setdefault(at, []).append(name)
        known: dict[str, Any] = {"self": self.owner}
        known.update(zip(self.lines.parameters, self.names["inputs"](), strict=True))
        found: dict[str, Any] = {}
        torch.manual_seed(0)
        for count in range(max(wanted, default=0) + 1):
            if count:
                exec(self.lines.statements[count - 1].text, self.names, known)
            found |= {name: copied(known[name], False) for name in wanted.get(count, ())}
        return [found[name] for name, _ in part.given]

    def function(self, part: Part) -> Any:
        """The part as a function of what it is given."""
        text = self.lines.text(part)
        names = dict(self.names)
        exec(compile(text, str(self.path), "exec"), names)
        graph, owner = names["graph"], self.owner

        def called(*given: Any) -> Any:
            return graph(owner, *given)

        return called


def opened(path: str | Path) -> Opened:
    """Raises :class:`.straight.NoProgram`, and whatever the program raises."""
    place = Path(path).absolute()
    source = place.read_text(encoding="utf-8")
    lines = straight.read(source)
    names: dict[str, Any] = {"__name__": "fuselens_graph_program", "__file__": str(place)}
    exec(compile(source, str(place), "exec"), names)
    return Opened(place, lines, names)


def probe(program: Opened, part: Part, until: str, config: Config, slower_than: float | None = None) -> Verdict:
    """Compares one part, compiled ``until`` a stage; times it where ``slower_than`` times eager is asked for."""
    function, given = program.function(part), program.values(part)
    names = [name for name, _ in part.given]
    try:
        expected, memory = agreement.observed_with_memory(function, given, names)
    except Exception as error:  # noqa: BLE001 - the part proves nothing
        return Verdict("invalid", raised(error).splitlines()[0])
    changes = {"mode": program.names.get("MODE", "default"), **program.names.get("OPTIONS", {})}
    config = dataclasses.replace(config, **{**changes, "until": until, "fallback_random": True, "explore": False})
    recorder = Recorder("graph", str(program.path), None, config, texts=False)
    text = program.lines.text(part)
    compiled = api.wrap(function, config, recorder=recorder, owner=object())
    try:
        count = 1 if slower_than is not None else _CALLS
        calls = [agreement.observed_with_memory(compiled, given, names) for _ in range(count)]
    except Exception as error:  # noqa: BLE001 - what a wrong compiler raises is what is looked for
        return Verdict("raised", raised(error).splitlines()[0], **_facts(recorder, text))
    if slower_than is not None:
        eager, ours = agreement.seconds(function, compiled, given)
        slow = ours > slower_than * eager
        return Verdict("slow" if slow else "agrees", _times(eager, ours), **_facts(recorder, text))
    exact = agreement.in_double(function, given, names)  # what float32 leaves open, float64 decides
    for kind, right, of_calls, reference in (
        ("differs", expected, [values for values, _ in calls], exact),
        ("has other memory", memory, [lies for _, lies in calls], None),
    ):
        for number, found in enumerate(of_calls):
            if differs := agreement.difference(right, found, reference):
                where, how = differs
                return Verdict(kind, how, f"{where}{LATER if number else ''}", **_facts(recorder, text))
    return Verdict("agrees", **_facts(recorder, text))


def _times(eager: float, compiled: float) -> str:
    return f"{compiled * 1e3:.3g} ms, eager {eager * 1e3:.3g} ms: {compiled / eager:.2f} times"


def _facts(recorder: Recorder, text: str) -> dict[str, Any]:
    """How many steps fusing took at most, the first that was left out (its loops, and the statement that they come from), and of
    which statements the kernels are."""
    lines = text.splitlines()

    def statement(span: Span | None) -> str:
        return lines[span.line - 1].strip() if span and 0 < span.line <= len(lines) else ""

    decisions = [d for graph in recorder.report.graphs for d in graph.decisions]
    made = [d for d in decisions if d.code == "FL410"]
    left = next((d for d in decisions if d.data.get("rule") == "limit"), None)
    kernels = [k for graph in recorder.report.graphs for k in graph.kernels]
    named = [[k.name, *(found.split(" = ")[0] for s in k.spans if (found := statement(s)))] for k in kernels]
    facts: dict[str, Any] = {"fusions": 1 + 2 * len(made), "kernels": named}
    if left is None:
        return facts
    at = statement(left.span)
    return facts | {"left_out": f"{left.subject}, for `{at}`" if at else left.subject}


def write(program: Opened, part: Part, place: Path, about: str) -> None:
    """Writes the part as a program of its own; inputs that are large are in a file beside it."""
    given, file = program.values(part), place.with_suffix(".pt")
    source = program.path.read_text(encoding="utf-8")
    text = program_text.changed(source, program.lines.text(part), given, about=about, file=file.name)
    if repr(file.name) in text:
        torch.save(given, file)
    place.write_text(text, encoding="utf-8")


def of_probe(request: wire.Request, config: Config) -> str:
    """JSON of a :class:`.search.Verdict`; of ``{}`` where the part was to be written."""
    options = request.options
    config = dataclasses.replace(config, dump=None)
    try:
        program = opened(request.path)
    except (NoProgram, OSError, SystemExit) as error:
        return json.dumps(dataclasses.asdict(Verdict("invalid", str(error))))
    part = program.lines.whole
    if options["part"] is not None:
        kept, given, results = options["part"]
        part = Part(tuple(kept), tuple((name, at) for name, at in given), tuple(results))
    if options["write"]:
        write(program, part, Path(options["write"]), options["about"])
        return "{}"
    verdict = probe(program, part, options["until"], config, options["slower_than"])
    return json.dumps(dataclasses.asdict(verdict))


def main(path: str) -> int:
    """What a program of a graph does when it is run: compares, and says what it found. Status 1 where something is wrong."""
    program = opened(path)
    verdict = probe(program, program.lines.whole, "", from_environment())
    words = {"agrees": "agrees with eager", "differs": f"differs from eager: {verdict.where}: {verdict.what}"}
    print(f"the compiled graph {words.get(verdict.kind, f'{verdict.kind}: {verdict.what}')}")
    return int(verdict.fails)
