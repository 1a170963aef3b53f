"""When a difference of times counts, and which commit made it; the times are read off the text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuselens.history import blaming, comparing, timing
from fuselens.history.folder import Folder
from fuselens.history.git import Repository
from fuselens.history.snapshots import Snapshots, Wanted
from fuselens.record.report import FileReport, Graph, Kernel, KernelRun, Report, RunResult, Span
from fuselens.source import discovery

from .repositories import Repo, run


@pytest.mark.parametrize(
    ("had", "has", "direction"),
    [
        ([10, 11, 12, 11, 10], [13, 14, 15, 14, 13], "worse"),
        ([13, 14, 15, 14, 13], [10, 11, 12, 11, 10], "better"),
        ([10, 11, 12, 11, 13.5], [13, 14, 15, 14, 13], None),
        ([10, 10, 10, 10, 10], [10.2, 10.2, 10.2, 10.2, 10.2], None),
        ([10, 10, 10, 10], [20, 20, 20, 20, 20], None),
        ([], [], None),
    ],
)
def test_what_counts(had: list[float], has: list[float], direction: str | None) -> None:
    assert timing.differs(had, has) == direction


def model(microseconds: int) -> str:
    return f"import fuselens\n\n\n@fuselens.compile\ndef step(x):\n    return x * {microseconds}\n"


def answer(noise: Iterator[float], asked: list[str], one: Wanted) -> Any:
    """Three graphs' worth of nothing, but for a kernel whose bytes, and time, are the number in the text."""
    text = Path(one.path).read_text()
    number = int(re.findall(r"x \* (\d+)", text)[0])
    place = Span(one.path, 6, 4, 6, 10)
    if one.run:
        asked.append(one.about)
        seconds = number * 1e-6 * next(noise)
        return RunResult(
            one.run,
            True,
            "",
            compiled_seconds=seconds,
            kernels=(KernelRun("mul_0", 0, "forward", seconds=seconds / 2),),
        )
    (annotated,) = discovery.discover(text, one.path)
    kernel = Kernel("mul_0", "cpp", "forward", "pointwise", ("mul",), (place,), number, number)
    graph = Graph(0, "step", None, 1, kernels=[kernel])
    return FileReport(one.path, [Report("step", one.path, annotated.name_span, graphs=[graph])])


def test_a_slower_kernel_and_its_commit(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    first = repo.commit("first", model=model(10))
    for subject, microseconds in (("a little", 11), ("slow", 40), ("as slow", 41)):
        repo.commit(subject, model=model(microseconds))
    noise, asked = itertools.cycle([1.0, 1.02, 0.99]), list[str]()
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        snapshots = Snapshots(repository, folder)

        def ask(work: Any) -> Any:
            return run(work, lambda one: answer(noise, asked, one))

        found = ask(comparing.compare(snapshots, repository.sides(f"{first}..")))
        found.functions = ask(timing.measure(snapshots, found))
        assert [name.partition(" at ")[2] for name in asked] == [first[:8], found.new.short] * timing.PROCESSES
        blamed = ask(blaming.blame(snapshots, found))
    slower = {b.change.what: b for b in blamed if b.change.kind == "time"}
    assert slower.keys() == {"", "mul_0 (forward)"}
    assert all([s.commit.subject for s in b.steps] == ["slow"] for b in slower.values())
    assert slower["mul_0 (forward)"].change.text.startswith("kernel mul_0 (forward): 5")
