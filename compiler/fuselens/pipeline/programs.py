"""Programs, made by the stages or taken from the cache, become callables; the report gets what their builds say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..capture.hook import tensor_layout
from ..record import report
from ..runtime import program as host_program
from ..runtime.build import BuildFailed
from ..runtime.compile_graph import Built, Call, build
from . import gpu, pinned
from .graph_cache import Program
from .recorder import Run


def has_cpp_hosts() -> bool:
    """Whether this process can run host programs in C++."""
    return host_program.available(tensor_layout.tensor_offset())


def donates() -> bool:
    """Whether C++ host programs can tell that an input's memory is theirs."""
    return has_cpp_hosts() and host_program.donates()


def say(program: Program, run: Run) -> None:
    """Puts what the stages decided into the report."""
    record = run.graph
    run.decided(program.decisions)
    record.memory += program.memory
    record.work += program.work
    record.externs += program.externs
    record.structure += program.structure


def from_cache(program: Program, run: Run) -> Call:
    for stage in program.stages:
        run.keep(stage)
    say(program, run)
    return bound(program, run)


def bound(program: Program, run: Run) -> Call:
    """The callable of a program."""
    record, config, ours = run.graph, run.config, program
    targets = gpu.built_for(run)
    if run.for_absent_gpu:  # the report is about other kernels than those that run
        program = pinned.chosen(ours, run, targets)
    else:
        source = pinned.built_source(ours.generated, run.target)
        program = replace(ours, generated=pinned.placed(ours.generated, source, ours.content, run, targets))
    with run.stage("build"):
        try:
            built = build(program, program.generated, config, run.target, run.phase, run.title, run.when_out)
        except BuildFailed as error:
            if run.recorder.trial is not None:
                run.recorder.trial.failed(ours.content.name, run.phase, error)
            if program.generated is ours.generated or run.recorder.trial is not None:
                raise
            pinned.failed(run, str(error))
            program = ours
            built = build(program, program.generated, config, run.target, run.phase, run.title, run.when_out)
    generated = program.generated
    record.timings += [replace(t, stage=run.named(t.stage)) for t in built.timings]
    record.cached = built.cached and (run.phase == "forward" or record.cached)
    run.looked_up(run.named("kernels"), built.cached, "" if built.cached else "they were not built before")
    for diagnostic in built.diagnostics:
        run.say(diagnostic)
    if run.recorder.follower is not None or run.recorder.probed is not None:
        _offer_kernels(built, program, run)
    if not run.for_absent_gpu:
        run.keep_sources(built.stages)
        record.kernels += gpu.with_resources(built.kernels, generated.triton, run)
    if run.recorder.trial is not None:
        return run.recorder.trial.bound(program.content.name, run.phase, built.call)
    return gpu.recorded(built.call, program.written, run)


def _offer_kernels(built: Built, program: Program, run: Run) -> None:
    """Lets those who ask have the times of a C++ program's kernels taken."""
    from ..runtime.kernel_times import OperatorTimes, Probe, timed

    text = timed(program.generated)
    if text is None:
        alone = program.work and program.generated.cpp is None and not run.target.startswith("cuda")
        if alone and run.recorder.probed is not None and run.config.build:
            built.call = OperatorTimes(built.call, [work.name for work in program.work])
            run.recorder.probed.append((runs(run.graph.id, program.work), built.call))
        return
    events, of_graph = _timed(built, program, run)
    probe = Probe(built.call, text, program.generated, events, run.config)  # type: ignore[arg-type]
    if run.recorder.follower is not None:
        run.recorder.follower.kernels(run.graph.id, [(k.name, k.phase, k.spans, k.bytes or 0) for k in of_graph], probe)
    if run.recorder.probed is not None:
        run.recorder.probed.append((of_graph, probe))


def _timed(built: Built, program: Program, run: Run) -> tuple[list[int], list[report.KernelRun]]:
    """The events of a unit that are timed, by number, and what they are: kernels, and where it is the unit that the report tells of
    operators, too."""
    assert program.generated.program is not None and program.generated.cpp is not None
    labels = [event.partition(" (")[0] for event in program.generated.program.events]
    functions = {info.name: info.function for info in program.generated.cpp.kernels}
    named = [work.name if work.library else functions.get(work.name, "") for work in program.work]
    if not run.for_absent_gpu and named == [label.rpartition("::")[2] for label in labels]:
        return list(range(len(labels))), runs(run.graph.id, program.work)
    kernels = [k for k in built.kernels if k.name in functions]
    events = [number for number, label in enumerate(labels) if label in functions.values()]
    return events, [
        report.KernelRun(k.name, run.graph.id, k.phase, k.spans, k.bytes_read, k.bytes_written) for k in kernels
    ]


def runs(graph: int, work: Sequence[report.Work]) -> list[report.KernelRun]:
    """Kernels and operators of a graph as a run tells of them, before they are timed."""
    return [report.KernelRun(w.name, graph, w.phase, w.spans, w.read, w.written, w.operations, w.library) for w in work]
