"""``run``, ``verify`` and ``what_if``: values and times. Measurements are made one after the other."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselens.record import wire
from fuselens.record.printed import tried as tried_text
from fuselens.record.report import Proof, RunResult
from fuselens.source.changes.asking import search

from ..what_if.searching import Asker, answered
from ..work.explaining import explained
from ..work.turns import Urgency
from ..work.worker_pool import StartError, WorkerDiedError
from . import texts
from .arguments import RunArguments, ToolError, VerifyArguments, WhatIfArguments
from .changes import Change, changed, changes
from .experiments import Experiments, Made, Progress, command, tool_command
from .results import Evidence, Ran, Variant, Verified, WhatIf
from .subjects import Places, Subject, function_of

_MOST_KERNELS = 40
_CALLED = "on its example inputs: compared value by value, then timed in calls made in turn. One process"


@dataclass(slots=True)
class Measuring:
    experiments: Experiments
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    folder: Path | None = None  # where programs that show a fault are kept, for whoever reads the finding

    async def run(self, asked: RunArguments, places: Places, progress: Progress) -> Ran:
        subject = await function_of(asked.target, places)
        async with self.turn:
            made = await self._run(subject, asked.gradients, asked.seconds, progress)
        result, cut = _result(made), list[str]()
        if len(result.kernels) > _MOST_KERNELS:
            cut.append(f"{len(result.kernels) - _MOST_KERNELS} kernels of the run")
            result = dataclasses.replace(result, kernels=result.kernels[:_MOST_KERNELS])
        more = () if asked.gradients else ("--no-gradients",)
        repeat = command(subject, "run", *more, seconds=asked.seconds)
        told = made.evidence(_executed(subject, result), repeat, *_unmeasured(made, asked.gradients))
        machine = self.experiments.machine(subject.place)
        return Ran(texts.of_run(result), machine, (told,), tuple(cut), result)

    async def verify(self, asked: VerifyArguments, places: Places, progress: Progress) -> Verified:
        subject = await function_of(asked.target, places)
        function = next(a for a in subject.annotated if a.qualname == subject.function)
        made: list[Made] = []

        async def ask(method: wire.Method, path: str, names: tuple[str, ...], options: dict[str, Any]) -> wire.Event:
            about = dataclasses.replace(subject, path=path, functions=names)
            text = subject.source if path == subject.path else Path(path).read_text(encoding="utf-8")
            given: dict[str, Any] = {"gradients": asked.gradients} | options
            made.append(await self.experiments.make(about, method, asked.seconds, progress, source=text, **given))
            return made[-1].event

        answer = await ask("verify", subject.path, subject.functions, {})
        place = self._kept_folder() / f"{Path(subject.path).stem}-{subject.function}"
        proof = await explained(answer, ask, subject.path, subject.function, function.name_span, place, asked.seconds)
        made[0].seconds = sum(one.seconds for one in made)
        more = () if asked.gradients else ("--no-gradients",)
        repeat = command(subject, "verify", *more, "--format", "json", seconds=asked.seconds)
        told = made[0].evidence(
            _proved(subject, proof, len(made)), repeat, *_unproved(proof), *_ungraded(asked.gradients)
        )
        machine = self.experiments.machine(subject.place)
        return Verified(texts.of_proof(proof, subject.path), machine, (told,), (), proof)

    async def what_if(self, asked: WhatIfArguments, places: Places, progress: Progress) -> WhatIf:
        subject = await function_of(asked.target, places)
        named = changes(asked, subject)
        if not named:
            return await self._searched(asked, subject, progress)
        tried = [Change("as it is"), *named]
        found: list[list[Made]] = [[] for _ in tried]
        sources = [changed(subject, change) for change in tried]
        async with self.turn:
            for _ in range(asked.rounds):
                for change, source, runs in zip(tried, sources, found, strict=True):
                    if change.runs:
                        runs.append(
                            await self._run(subject, asked.gradients, asked.seconds, progress, source, **change.options)
                        )
        variants: list[Variant] = []
        evidence: list[Evidence] = []
        repeat = tool_command(subject.place, "what_if", asked)
        for number, (change, source, runs) in enumerate(zip(tried, sources, found, strict=True)):
            looked = await self.experiments.make(
                subject, "check", asked.seconds, progress, source=source, **change.options
            )
            variants.append(_variant(change, source, subject, runs, looked, number))
            first = runs[0] if runs else looked
            not_tried = (*_unmeasured(first, asked.gradients), *((_APART,) if number else ())) if runs else (_NOT_RUN,)
            told = first.evidence(_varied(change, subject, runs), repeat, *not_tried)
            seconds = sum(made.seconds for made in {id(made): made for made in (*runs, looked)}.values())
            evidence.append(dataclasses.replace(told, seconds=round(seconds, 3)))
        machine = self.experiments.machine(subject.place)
        summary = texts.of_variants(subject.function, variants)
        return WhatIf(summary, machine, tuple(evidence), (), tuple(variants))

    async def _searched(self, asked: WhatIfArguments, subject: Subject, progress: Progress) -> WhatIf:
        """Changes that nobody named, found and measured as the editor does it."""
        began = self.experiments.begin(subject)
        limits = wire.Limits(asked.seconds, subject.place.memory_mib)
        request = wire.Request(
            0, "changes", subject.path, subject.source, subject.functions, dict(subject.place.options), limits
        )
        asker = Asker(self.experiments.pool, subject.place.environment, request, Urgency.FOCUSED, progress)
        async with self.turn:
            try:
                found = await answered(search(subject.function, asked.budget), asker.ask)
            except StartError as error:
                raise ToolError("\n".join((error.diagnostic.message, *error.diagnostic.hints))) from error
            except WorkerDiedError as error:
                raise ToolError(f"the process that runs files ended twice ({error})") from error
        if found.stopped:
            raise ToolError(f"nothing is known of {subject.function}: {found.stopped}")
        began.seconds = time.monotonic() - began.started
        repeat = command(
            subject, "what-if", "--seconds", f"{asked.budget:g}", "--format", "json", seconds=asked.seconds
        )
        executed = (
            f"`{subject.function}` compiled as it is and with each change, in memory: calls in turn, compared with eager. "
            f"A process for each, and one more for what gains; {found.seconds:.1f} s of processor time"
        )
        left = tuple(f"{title}: there was no processor time" for title in found.left)
        told = began.evidence(executed, repeat, *left, "other inputs than the example inputs, for times")
        lines = "\n".join(tried_text.lines(found, subject.path))
        machine = self.experiments.machine(subject.place)
        return WhatIf(
            f"{subject.function}: {lines}", machine, (told,), (), (), dataclasses.replace(found, file=subject.path)
        )

    async def _run(
        self, subject: Subject, gradients: bool, seconds: float, progress: Progress, source: str | None = None, **options: Any
    ) -> Made:  # fmt: skip
        return await self.experiments.make(
            subject, "run", seconds, progress, source=source, gradients=gradients, **options
        )  # fmt: skip

    def _kept_folder(self) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="fuselens-faults-"))
        return self.folder


_ONE_KIND = "other inputs than the example inputs: verify tries many kinds"
_NOT_RUN = "values and times: where a function runs is decided by its inputs, not by what is compiled for"
_APART = "the changed function's values were compared with its own eager ones, not with those of the function as it is"


def _result(made: Made) -> RunResult:
    return made.event.run or RunResult(made.subject.function, False, "it was ended before there was a result")


def _executed(subject: Subject, result: RunResult) -> str:
    if result.error is not None:
        return f"`{subject.function}` was not executed to the end: {result.error.code}"
    if not result.compiled:
        return f"`{subject.function}` was called {_CALLED.partition(':')[0]}; nothing of it is compiled. One process"
    if result.compiled_seconds is None:
        return f"`{subject.function}` was called compiled and eagerly on its example inputs. One process"
    return f"`{subject.function}` was called compiled and eagerly {_CALLED}"


def _varied(change: Change, subject: Subject, runs: list[Made]) -> str:
    if not runs:
        return f"{change.name}: `{subject.function}` was compiled as a check does, in one process; its kernels were not called"
    several = f"{len(runs)} processes, in turn with the other variants" if len(runs) > 1 else "One process"
    executed = _executed(subject, _result(runs[-1])).replace("One process", several)
    return f"{change.name}: {executed}. Then it was checked, in another process"


def _unmeasured(made: Made, gradients: bool) -> tuple[str, ...]:
    """What a run does not show."""
    if _result(made).error is not None:
        return ("any call to its end",)
    loaded = f"times without other load: {made.others} other experiments of this server were under way meanwhile"
    return (*((loaded,) if made.others else ()), *_ungraded(gradients), _ONE_KIND)


def _ungraded(gradients: bool) -> tuple[str, ...]:
    return () if gradients else ("gradients",)


def _proved(subject: Subject, proof: Proof, requests: int) -> str:
    kinds = f"{len(proof.tried)} kinds of calls, three calls of each, compiled, eagerly and in float64"
    if not proof.tried:
        return f"`{subject.function}` was not called to the end"
    more = f"; {requests - 1} more processes looked for the fault" if requests > 1 else ""
    return f"`{subject.function}` on {kinds}. One process{more}"


def _unproved(proof: Proof) -> tuple[str, ...]:
    left = (f"{proof.left} kinds of calls: there was no time",) if proof.left else ()
    return (*left, "calls of other kinds than those that are listed" if proof.tried else "any call to its end")


def _variant(change: Change, source: str, subject: Subject, runs: list[Made], looked: Made, number: int) -> Variant:
    results = [_result(made) for made in runs]

    def middle(name: str) -> float | None:
        values = [value for r in results if (value := getattr(r, name)) is not None]
        return statistics.median(values) if values else None

    report = next((r for r in looked.file.functions if r.function == subject.function), None)
    shorter = tuple(dataclasses.replace(r, kernels=(), values=()) for r in results)
    return Variant(
        change.name, shorter, middle("compiled_seconds"), middle("eager_seconds"), middle("compile_seconds"),
        report.status if report else None, report.summary() if report else "",
        texts.difference(subject.source, source, subject.name), number,
    )  # fmt: skip
