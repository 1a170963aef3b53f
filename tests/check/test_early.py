"""What a check says before it knows the kernels, and that it builds none when it need not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens.checking import check
from fuselens.checking.isolation import config_of
from fuselens.record import plain
from fuselens.record.report import FileReport, Report

Written = Callable[..., Path]
BODY = """\
def example():
    return torch.ones(8, requires_grad=True), torch.full((8,), 2.0)


@fuselens.compile(example_inputs=example)
def branches(a, b):
    b.mul_(2)
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        return x
    return x.sin() * b.norm()


@fuselens.compile(example_inputs=lambda: (torch.ones(4),))
def other(a):
    return a + torch.rand(4)


@fuselens.compile
def without_inputs(a):
    return a
"""


@pytest.fixture
def early(written: Written, tmp_path: Path) -> tuple[list[dict], FileReport, Path]:
    said: list[dict] = []
    cache = tmp_path / "cache"
    config = config_of({"build": False, "cache_dir": str(cache)})
    file = check.check_file(written(BODY), config=config, early=lambda report: said.append(plain.to_plain(report)))
    return said, file, cache


def test_what_running_shows_comes_first(early: tuple[list[dict], FileReport, Path]) -> None:
    (said,), file, _ = early
    first = plain.from_plain(FileReport, said)
    assert [r.function for r in first.functions] == ["branches", "other", "without_inputs"]
    for before, after in zip(first.functions, file.functions, strict=True):
        assert before.breaks == after.breaks
        assert before.guards == after.guards
        assert before.shapes == after.shapes
        assert [g.outputs for g in before.graphs] == [g.outputs for g in after.graphs]
        assert before.kernels == []
    assert [d.code for d in first.functions[0].breaks] == ["FL101"]
    assert all(r.kernels for r in file.functions[:2])


def test_kernels_are_not_built(early: tuple[list[dict], FileReport, Path]) -> None:
    _, file, cache = early
    assert not [p for p in cache.rglob("*") if p.suffix == ".so"]
    assert not any(g.cached for r in file.functions for g in r.graphs)


def test_the_report_is_that_of_a_check_that_builds(
    early: tuple[list[dict], FileReport, Path], written: Written, tmp_path: Path
) -> None:
    _, file, _ = early
    said: list[FileReport] = []
    built = check.check_file(
        written(BODY), config=config_of({"build": True, "cache_dir": str(tmp_path / "other")}), early=said.append
    )
    assert said == []
    assert [_comparable(r) for r in file.functions] == [_comparable(r) for r in built.functions]
    again = check.check_file(written(BODY), config=config_of({"build": False, "cache_dir": str(tmp_path / "other")}))
    assert all(g.cached for r in again.functions for g in r.graphs)


def _comparable(report: Report) -> dict:
    made = plain.to_plain(report)
    made.pop("fingerprint", None)  # the configurations differ
    for timed in (made, *made.get("graphs", ())):
        timed.pop("timings", None)
    return made


def test_no_compiler_is_said(written: Written, tmp_path: Path) -> None:
    config = config_of({"build": False, "cxx": "no-such-compiler", "cache_dir": str(tmp_path / "cache")})
    file = check.check_file(written(BODY), config=config)
    assert "FL403" in [d.code for d in file.functions[1].diagnostics]


def test_warming_tells_what_could_not_be_built(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\necho "error: no" >&2; exit 1\n')
    compiler.chmod(0o755)
    for name, value in {"CXX": str(compiler), "FUSELENS_CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    file = check.warm_file(written(BODY))
    assert [r.function for r in file.functions] == ["branches", "other"]
    (found,) = file.functions[1].diagnostics
    assert found.code == "FL403"  # it builds nothing at all
    assert "error: no" in found.explanation
