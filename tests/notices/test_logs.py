"""What compilations say through ``logging``: names, levels, formats, and that nobody who did not ask hears anything."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens import config
from fuselens.record import logs


@pytest.fixture(autouse=True)
def _quiet_afterwards(tmp_path: Path) -> Iterator[None]:
    with config.patch(cache_dir=tmp_path / "cache"):
        yield
    fuselens.set_logs()
    fuselens.reset()


def step(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.softmax(x @ x.t(), dim=1)
    if y.sum() < 0:
        y = y.neg()
    return y.tanh() + 1


def train(**options: Any) -> None:
    fuselens.reset()
    compiled = fuselens.compile(step, **options)
    for rows in (4, 4, 6, 7):
        compiled(torch.ones(rows, 8, requires_grad=True)).sum().backward()


def heard(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Those that this program gives rise to on a CPU. Triton's compilers, recordings and fallbacks are named in other tests.
HERE = sorted(logs.ARTEFACTS.keys() - {"assembly", "cudagraphs", "diagnostics", "autotuning"})


def test_every_artefact_has_records_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fuselens.set_logs(all=logging.DEBUG, format="json", out=out)
    train()
    found = heard(out)
    assert sorted({one["artefact"] for one in found}) == HERE
    for one in found:
        assert (
            one["message"] and one["time"] > 0 and one["process"] == os.getpid() and one["level"] in ("info", "debug")
        )
        assert one["function"]


@pytest.mark.parametrize("artefact", HERE)
def test_one_artefact_alone(tmp_path: Path, artefact: str) -> None:
    out = tmp_path / "out.txt"
    fuselens.set_logs(out=out, **{artefact: True})
    train()
    lines = out.read_text().splitlines()
    assert lines
    assert all(re.match(rf"\d\d:\d\d:\d\d\.\d{{3}} fuselens {artefact}: ", line) for line in lines)


@pytest.mark.parametrize(
    ("artefact", "text"),
    [
        ("graph_breaks", "FL101: graph break: `y.sum() < 0` branches on a tensor's value"),
        ("graph_breaks", "if y.sum() < 0:"),
        ("recompiles", "FL201: recompiled: `step`, because of x: expected f32[4, 8], found f32[6, 8]"),
        ("recompiles", "compilation 0 does not serve this call"),
        ("guards", "x: float32[4, 8] on cpu"),
        ("dynamic", "x.shape[0]"),
        ("trace_source", "y = torch.nn.functional.softmax(x @ x.t(), dim=1)  (in step)"),
        ("bytecode", "and what replaces it"),
        ("graph_code", "softmax("),
        ("aot_joint_graph", "aten.mm"),
        ("aot_graphs", "def backward0("),
        ("ir_pre_fusion", "graph graph0"),
        ("fusion", "taken: "),
        ("kernel_code", 'extern "C"'),
        ("partition", "saved: "),
        ("perf_hints", "aten.mm.default (FL401"),
        ("cache", "graph not found: it was not compiled before"),
        ("timings", "lower took "),
    ],
)
def test_what_is_said(tmp_path: Path, artefact: str, text: str) -> None:
    out = tmp_path / "out.txt"
    fuselens.set_logs(out=out, **{artefact: logging.DEBUG})
    train()
    assert text in out.read_text()


def test_levels(tmp_path: Path) -> None:
    """INFO leaves out what DEBUG adds, and False switches off one of all."""
    out = tmp_path / "out.json"
    fuselens.set_logs(all=True, recompiles=True, guards=False, format="json", out=out)
    train()
    found = heard(out)
    assert {one["level"] for one in found} == {"info"}
    assert "guards" not in {one["artefact"] for one in found}
    assert not any("does not serve" in one["message"] for one in found)


def test_records_of_reports_are_in_the_objects(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fuselens.set_logs(graph_breaks=True, guards=True, format="json", out=out)
    train()
    first = next(one for one in heard(out) if one["artefact"] == "graph_breaks")
    assert first["record"]["code"] == "FL101" and first["line"] == step.__code__.co_firstlineno + 2
    assert first["file"] == __file__ and first["function"] == "step"
    assert {"kind", "source", "expression"} <= next(one for one in heard(out) if one["artefact"] == "guards")["record"][
        0
    ].keys()


def test_a_program_that_debugs_itself_asks_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)  # of the root logger
    assert not logs.wants_texts()
    train()
    assert not [one for one in caplog.records if one.name.startswith("fuselens.")]


def test_a_handler_and_a_level_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fuselens.graph_breaks")
    train()
    said = [one for one in caplog.records if one.name.startswith("fuselens.")]
    assert said and {one.name for one in said} == {"fuselens.graph_breaks"}
    assert said[0].fuselens["record"]["code"] == "FL101"  # type: ignore[attr-defined]


def test_what_was_asked_for_before_holds_no_more(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    fuselens.set_logs(graph_breaks=True, out=first)
    fuselens.set_logs(guards=True, out=second)
    train()
    assert first.read_text() == "" and "guards" in second.read_text()
    assert len([h for h in logging.getLogger("fuselens").handlers if type(h).__module__.startswith("fuselens")]) == 1


def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    text, lines = tmp_path / "text", tmp_path / "lines"
    fuselens.set_logs(graph_breaks=True, out=text)
    train()
    assert all(" rank 3 fuselens graph_breaks: " in line for line in text.read_text().splitlines())
    fuselens.set_logs(graph_breaks=True, out=lines, format="json")
    train()
    assert {one["rank"] for one in heard(lines)} == {3}


@pytest.mark.parametrize(
    ("given", "said"),
    [({"graph_brakes": True}, "there is no log graph_brakes"), ({"guards": True, "format": "xml"}, "format is 'xml'")],
)
def test_wrong_names(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fuselens.set_logs(**given)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fuselens.set_logs(guards=True, out=tmp_path / "nowhere" / "out")


# --- the environment --------------------------------------------------------------------------------------------

PROGRAM = """
import torch, fuselens
fuselens.compile(lambda x: (x.sum() < 0, x.exp())[1] if x.sum() < 0 else x + 1)(torch.ones(4))
print("done")
"""


def ran(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = {k: v for k, v in os.environ.items() if not k.startswith("FUSELENS_")}
    variables = {"FUSELENS_CACHE_DIR": str(tmp_path / "cache"), **variables}
    done = subprocess.run([sys.executable, program], env=own | variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done


def test_nothing_is_said_without_being_asked(tmp_path: Path) -> None:
    assert ran(tmp_path).stderr == ""


def test_variables(tmp_path: Path) -> None:
    said = ran(tmp_path, FUSELENS_LOGS="all,-guards, -trace_source,-bytecode").stderr
    assert " fuselens graph_breaks: " in said and " fuselens kernel_code: " in said
    assert not re.search(" fuselens (guards|trace_source|bytecode): ", said)


def test_lines_of_objects_in_a_file(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    variables = {"FUSELENS_LOGS": "+graph_breaks", "FUSELENS_LOGS_FORMAT": "json", "FUSELENS_LOGS_OUT": str(out)}
    assert ran(tmp_path, **variables).stderr == ""
    before = len(heard(out))
    ran(tmp_path, **variables)
    assert before and len(heard(out)) == 2 * before, "it is appended to"


def test_unknown_names_are_one_warning_and_the_rest_holds(tmp_path: Path) -> None:
    said = ran(tmp_path, FUSELENS_LOGS="graph_brakes,graph_breaks", FUSELENS_LOGS_FORMAT="xml").stderr
    assert said.count("FL925") == 1 and "graph_brakes, the format xml" in said
    assert " fuselens graph_breaks: " in said


def test_a_file_of_the_environment_that_cannot_be_opened(tmp_path: Path) -> None:
    said = ran(tmp_path, FUSELENS_LOGS="graph_breaks", FUSELENS_LOGS_OUT=str(tmp_path / "no" / "out")).stderr
    assert "FL917" in said and " fuselens graph_breaks: " in said
