"""The JSON Schema of reports: it is the one that is published, and reports follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import fuselens
from fuselens.record.plain import to_plain
from fuselens.record.printed import schema
from fuselens.record.report import FileReport

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "report.schema.json"


def test_the_published_one_is_up_to_date() -> None:
    assert json.loads(PUBLISHED.read_text()) == schema.of_files(), "fuselens schema > docs/reference/report.schema.json"


def breaks(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x @ x
    print("here")
    return x.softmax(0)


def _trained(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).tanh().sum()


def _symbolic(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[0]


@pytest.mark.parametrize("function", [breaks, _trained, _symbolic], ids=lambda f: f.__name__)
def test_reports_follow_it(function: Any) -> None:
    x = torch.randn(4, 4, requires_grad=function is _trained)
    if function is _symbolic:
        fuselens.mark_dynamic(x, 0)
    report = fuselens.explain(function)(x)
    plain = json.loads(json.dumps(to_plain([FileReport(__file__, [report])])))
    jsonschema.Draft202012Validator.check_schema(schema.of_files())
    jsonschema.validate(plain, schema.of_files())
    plain[0]["functions"][0]["graphs"][0]["kernels"][0]["bytes_read"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain, schema.of_files())
