"""Programs as people write them: which breaks have fixes, which of those are verified, and what these do when applied.

What is expected of each program is in ``programs/expected.txt``: every break, and the fix that is preferred for it (none:
``-``). Applied, a preferred fix removes its break and leaves what eager leaves, on inputs that the trial does not know.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens import api
from fuselens.checking import check, trials
from fuselens.checking.isolation import config_of
from fuselens.inputs import comparison
from fuselens.proving.kinds import seeded
from fuselens.source import discovery, fixes, predictions

PROGRAMS = Path(__file__).parent / "programs"
FAST = (
    "detection::best_box", "detection::counted", "detection::largest_of_two", "losses::numpy_mean", "losses::label_smoothing",
    "preprocessing::first_value", "preprocessing::masked_fill", "shapes::multiline", "training::warned",
)  # fmt: skip
CONFIG = config_of({})


def table() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (PROGRAMS / "expected.txt").read_text().splitlines():
        if line.startswith(" "):
            found[name].append(line.strip())
        else:
            name = line
            found[name] = []
    return found


EXPECTED = table()


def cases() -> list[Any]:
    return [pytest.param(name, marks=() if name in FAST else (pytest.mark.sweep,), id=name) for name in EXPECTED]


@pytest.mark.parametrize("name", cases())
def test_what_is_preferred_is_right(name: str):
    file, _, function = name.partition("::")
    path = str(PROGRAMS / f"{file}.py")
    text = Path(path).read_text()
    with contextlib.redirect_stdout(io.StringIO()):
        (report,) = check.check_file(path, functions=(function,), config=CONFIG).functions
    findings = [*report.breaks, *report.diagnostics]
    outcome = trials.try_fixes(path, None, function, findings, CONFIG, lambda _: None)
    assert not outcome.diagnostics
    lines, applied = [], {}
    for finding in outcome.functions[0].breaks:
        if finding.severity != "warning":
            continue
        preferred = next((fix for fix in finding.fixes if fix.verified), None)
        assert finding.span is not None
        title = " ".join(preferred.title.split()) if preferred else "-"
        lines.append(f"{finding.span.line} {finding.code}: {title}")
        if preferred is not None:
            applied[preferred.edits] = preferred
    if EXPECTED[name] != ["?"]:
        assert lines == EXPECTED[name]
    for fix in applied.values():
        assert differences(path, function, text, fixes.applied(text, fix.edits)) == [], fix.title


@pytest.mark.sweep
def test_predictions_of_these_programs_come_true():
    right, wrong, missed = 0, [], []
    for path in sorted(PROGRAMS.glob("*.py")):
        predicted = predictions.predict(discovery.SourceModule(path.read_text(), str(path)))
        with contextlib.redirect_stdout(io.StringIO()):
            file = check.check_file(path, config=CONFIG)
        for report in file.functions:
            found = {(d.code, d.span.line) for d in report.breaks if d.span}
            said = {(d.code, d.span.line) for d in predicted[report.function] if d.span}
            right += len(found & said)
            wrong += sorted(said - found)
            missed += sorted(found - said)
    assert wrong == []
    assert right / (right + len(missed)) > 0.85, missed


def differences(path: str, function: str, text: str, edited: str) -> list[str]:
    """Between the text in eager mode and the edited one compiled."""
    seeded()
    with check.opened_function(path, function, text, CONFIG) as original:
        inputs = original.inputs()
        calls = [changed((inputs.args, inputs.kwargs), k) for k in range(9)]
        for gradients in (True, False):  # without where a call writes to its inputs
            expected = [left(original.file.module, original.target, *copy.deepcopy(c), gradients) for c in calls]
            if not any("raised" in outcome for outcome in expected):
                break
    found = []
    seeded()
    with check.opened_function(path, function, edited, CONFIG) as shadow:
        config = dataclasses.replace(shadow.config, explore=False, fallback_random=True)
        compiled = api.wrap(shadow.target, config, owner=object())
        for call, before in zip(calls, expected, strict=True):
            after = left(shadow.file.module, compiled, *call, gradients)
            if "raised" in before or "raised" in after:
                found += [str(after)] if ("raised" in before) != ("raised" in after) else []
                continue
            after["state"] = {k: after["state"].get(k) for k in before["state"]}
            values = ((what, before[what], after[what]) for what in comparison.VALUES)
            found += [d for what, one, other in values if (d := comparison.differ(one, other, what))]
    return found


def left(module: Any, fn: Any, args: Any, kwargs: Any, gradients: bool) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        return comparison.observe(fn, args, kwargs, gradients=gradients, keeping=module)


def changed(value: Any, k: int) -> Any:
    """Numbers of another size and sign; labels in another order, so that each class stays."""
    generator = torch.Generator().manual_seed(100 + k)
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point():
            return value.flatten()[torch.randperm(value.numel(), generator=generator)].reshape(value.shape)
        noise = torch.randn(value.shape, generator=generator)
        return [value, noise * 0.1, noise, noise * 3, noise * 30, noise.abs(), -noise.abs(), noise.round(),
                torch.rand(value.shape, generator=generator)][k]  # fmt: skip
    if isinstance(value, dict):
        return {name: changed(v, k) for name, v in value.items()}
    return type(value)(changed(v, k) for v in value) if isinstance(value, list | tuple) else value
