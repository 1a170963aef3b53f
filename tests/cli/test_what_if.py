"""``fuselens what-if``: all that was tried as JSON, a change that is written, and what is asked wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from .test_comparing import ran

MODEL = """import fuselens
import torch


@fuselens.compile(example_inputs=lambda: (torch.randn(64, 1024), torch.randn(1024, 1024)))
def project(x, weight):
    return torch.mm(x, weight.t().contiguous()).relu()


@fuselens.compile(example_inputs=lambda: (torch.randn(8),))
def small(x):
    kept = x.clone()
    kept += 1
    return kept
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_as_json(model: Path) -> None:
    status, text = ran("what-if", "model.py", "--format", "json", "--seconds", "40", cwd=model.parent)
    project, small = json.loads(text)
    assert status == 0 and model.read_text() == MODEL
    (copy,) = (change for change in project["changes"] if change["kind"] == "contiguous")
    assert (
        "why" not in copy and copy["bytes"] < copy["bytes_before"] and copy["edits"][0]["replacement"] == "weight.t()"
    )
    assert project["seconds"] <= 40 and project["budget"] == 40
    (clone,) = (change for change in small["changes"] if change["kind"] == "clone")
    assert clone["why"] == "`kept` is written to in line 13"
    jsonschema.validate(json.loads(text), json.loads(ran("schema", "what-if", cwd=model.parent)[1]))


def test_a_change_is_written(model: Path) -> None:
    arguments = ("what-if", "model.py", "--line", "7", "--seconds", "40", "--apply", "1")
    status, text = ran(*arguments, cwd=model.parent)
    assert status == 0 and text.startswith("model.py: "), text
    after = model.read_text()
    assert after != MODEL and after.endswith(
        MODEL[MODEL.index("@fuselens.compile(example_inputs=lambda: (torch.randn(8)") :]
    )
    compile(after, "model.py", "exec")


def test_agents_ask_the_same(model: Path) -> None:
    asked = json.dumps({"target": "model.py::small", "budget": 20})
    status, text = ran("tool", "what_if", asked, cwd=model.parent)
    answer = json.loads(text)
    assert status == 0 and answer["found"]["function"] == "small" and answer["found"]["budget"] == 20
    (evidence,) = answer["evidence"]
    assert "what-if model.py::small --seconds 20" in evidence["command"] and "processor time" in evidence["executed"]


def test_what_is_asked_wrongly(model: Path) -> None:
    status, text = ran("what-if", "model.py", "--line", "3", cwd=model.parent)
    assert status == 2 and "line 3 of model.py is in no function that is compiled" in text
    status, text = ran("what-if", "model.py", "--seconds", "0", cwd=model.parent)
    assert status == 2 and "more than 0" in text
    status, text = ran("what-if", "model.py::small", "--apply", "9", "--seconds", "15", cwd=model.parent)
    assert status == 2 and ("there is no change 9" in text or "no change is offered" in text)
    assert model.read_text() == MODEL


def test_a_budget_that_is_too_small(model: Path) -> None:
    status, text = ran("what-if", "model.py::project", "--seconds", "0.2", cwd=model.parent)
    assert status in (0, 1) and ("processor time" in text), text
