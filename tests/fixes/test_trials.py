"""Fixes tried out: what is verified compiles without the break and agrees with eager; what differs is taken out."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fuselens.checking import check, trials
from fuselens.checking.isolation import config_of
from fuselens.record import diagnostics
from fuselens.record.report import Diagnostic, Fix, Span
from fuselens.source import fixes

IMPORTS = "import fuselens, torch, numpy as np\nimport torch.nn.functional as F\nfrom jaxtyping import Float32\nfrom torch import Tensor\n"
COMPILED = '@fuselens.compile\ndef f(x: Float32[Tensor, "n"]):\n'


@pytest.fixture
def tried(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The findings of a file's first function, with their fixes, before and after these were tried out."""

    caplog.set_level("INFO", "fuselens")  # a test that fails shows why fixes were taken out

    def run(text: str) -> tuple[list[Diagnostic], list[Diagnostic]]:
        path = tmp_path / "tried_out.py"
        path.write_text(IMPORTS + text)
        file = check.check_file(path, config=config_of({}))
        assert not file.diagnostics
        report = file.functions[0]
        findings = [*report.breaks, *report.diagnostics]
        outcome = trials.try_fixes(str(path), None, report.function, findings, config_of({}), lambda _: None)
        assert not outcome.diagnostics
        return findings, outcome.functions[0].breaks

    return run


def verdicts(findings: list[Diagnostic]) -> list[tuple[str, bool]]:
    return [(fix.edits[-1].replacement.strip(), fix.verified) for d in findings for fix in d.fixes]


def only(findings: list[Diagnostic]) -> list[Fix]:
    (found,) = [d for d in findings if d.fixes]
    return list(found.fixes)


def test_a_branch_is_verified_when_its_inputs_took_both_sides(tried):
    _, after = tried(COMPILED + "    return x * 2 if x.sum() > 1e9 else x + 1\n")
    (fix,) = only(after)
    assert (fix.verified, fix.trial) == (False, "no inputs were found that take both sides")


ALONE = """
import logging
import sys
from fuselens.checking import check, trials
from fuselens.checking.isolation import config_of

logging.basicConfig(level="INFO")  # says why a fix was taken out
(report,) = check.check_file(sys.argv[1], config=config_of({})).functions
outcome = trials.try_fixes(sys.argv[1], None, report.function, report.breaks, config_of({}), lambda _: None)
print([(fix.edits[-1].replacement.strip(), fix.verified, fix.trial) for d in outcome.functions[0].breaks for fix in d.fixes])
"""


def test_one_side_is_run_by_cond(tmp_path: Path) -> None:
    """In a process of its own, in which torch compiles what torch.cond is given: without that, eager has no gradient of it."""
    path = tmp_path / "tried_out.py"
    path.write_text(IMPORTS + COMPILED + "    if x.sum() > 0:\n        x = x * 2\n    return x + 1\n")
    others = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}
    command = [sys.executable, "-W", "ignore", "-c", ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=others)
    found = ast.literal_eval(done.stdout.splitlines()[-1])
    assert len(found) == 2, done.stderr
    where, cond = found
    assert where[:2] == ("x = torch.where(x.sum() > 0, x * 2, x)", True)
    assert where[2].startswith("agrees with eager on ")
    assert cond[:2] == ("x = torch.cond(x.sum() > 0, lambda: x * 2, lambda: x.clone())", True)
    assert cond[2].startswith("agrees with eager on ")


def test_gradients_tell_numbers_from_tensors(tried):
    before, after = tried(COMPILED + "    return x / x.max().item()\n")
    assert verdicts(before) == [("x.max()", False), ("x.max().detach()", False)]
    assert verdicts(after) == [("x.max().detach()", True)]  # the other one has another gradient


def test_positions_may_be_tensors(tried):
    _, after = tried(COMPILED + "    return x[int(x.argmax())] * 2\n")
    assert verdicts(after) == [("x[x.argmax().long().reshape(1)].squeeze(0)", True)]


def test_types_shapes_and_other_values_count(tried):
    _, after = tried(
        COMPILED + "    return torch.arange(3) * float(x.argmax())\n"
    )  # integers times a float, or an integer
    assert ("x.argmax().detach().float()", True) in verdicts(after)
    assert "x.argmax()" not in [text for text, _ in verdicts(after)]
    _, after = tried(COMPILED + "    return x[:3] + (torch.ones(2, 3) if x.sum() > 0 else torch.ones(3))\n")
    assert verdicts(after) == []


def test_what_a_fix_leaves_is_said(tried):
    _, after = tried(COMPILED + "    return F.one_hot(x.argsort())\n")
    (fix,) = only(after)
    assert not fix.verified
    assert "NameError" in fix.trial
    _, after = tried("NUM_CLASSES = 16\n" + COMPILED + "    return F.one_hot(x[:16].argsort())\n")
    assert only(after)[0].verified


def test_one_break_of_several_is_removed(tried):
    _, after = tried(COMPILED + "    print(x)\n    y = sorted([x.sum(), x.max()])\n    return y[0] * x\n")
    assert [(d.code, [f.verified for f in d.fixes]) for d in after if d.fixes] == [
        ("FL103", [True, True]),
        ("FL102", [True]),
    ]


def test_a_context_manager_outside_is_verified(tried):
    text = (
        "import threading\nlock = threading.Lock()\n" + COMPILED + "    with lock:\n        x = x * 2\n    return x\n"
    )
    _, after = tried(text)
    found = [(f.title, f.verified) for d in after for f in d.fixes]
    assert ("Enter lock around the compiled function", True) in found


def test_masked_reductions_keep_the_shape(tried):
    _, after = tried(COMPILED + "    return x[x > 0].sum() + x\n")
    assert verdicts(after) == [("torch.where(x > 0, x, 0).sum()", True)]


def test_two_edits_make_one_fix(tried):
    _, after = tried(COMPILED + "    center = np.nanmean(x.detach().numpy())\n    return x - float(center)\n")
    (fix,) = only(after)
    assert fix.title == "Compute with torch instead of numpy; keep a tensor instead of float(center)"
    assert [e.replacement for e in fix.edits] == ["torch.nanmean(x.detach())\n    return x - center"]
    assert fix.verified
    assert [e.replacement for e in fix.base] == ["torch.nanmean", ""]


def test_what_the_program_keeps_counts(tried):
    _, after = tried(
        "LOSSES = []\n" + COMPILED + "    loss = x.mean()\n    LOSSES.append(loss.item())\n    return loss\n"
    )
    assert not any(f.verified for d in after for f in d.fixes)  # numbers, not tensors with their graphs
    _, after = tried("""
class Averaged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.last = 0.0

    def forward(self, x: Float32[Tensor, "n"]):
        loss = x.square().mean()
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        self.last = 0.5 * self.last + loss.item()
        return loss

model = fuselens.compile(Averaged())
""")
    assert verdicts(after) == [("loss.detach()", True)]  # no gradient is kept, and a number stays one


def test_gradients_of_the_side_not_taken_count(tried):
    body = "    t = x[0]\n    if t > 0:\n        x = x / t\n    return x * 2\n"
    _, after = tried(COMPILED + body)
    assert "torch.where(t > 0, x / t, x)" not in str(verdicts(after))  # 0 / 0 in the backward, where t is 0


def test_branches_on_what_is_not_finite(tried):
    body = "    if torch.isnan(x).any():\n        x = torch.nan_to_num(x)\n    return x * 2\n"
    _, after = tried(COMPILED + body)
    assert verdicts(after)[0] == ("x = torch.where(torch.isnan(x).any(), torch.nan_to_num(x), x)", True)


def test_fixes_that_hold_together_are_marked(tried):
    body = "    print(x)\n    a = x / x.max().item()\n    if x.sum() > 0:\n        a = a * 2\n    return a\n"
    _, after = tried(COMPILED + body)
    marked = [f.title.partition(" ")[0] for d in after for f in d.fixes if f.together]
    assert marked == ["Call", "Keep", "Compute"]


def test_fixes_that_are_wrong_together_are_not_marked_together(tried):
    text = textwrap.indent(textwrap.dedent("""
        a = x.max().item() * 2
        b = x.min().item() * 2
        c = x + a * b
        return c * (2 if isinstance(a, float) or isinstance(b, float) else 3)
    """).strip(), "    ")  # fmt: skip
    _, after = tried(COMPILED + text + "\n")
    fixes = [f for d in after for f in d.fixes if f.verified]
    assert len({f.edits for f in fixes}) >= 2
    assert len({f.edits for f in fixes if f.together}) == 1


def test_modules_keep_their_parameters_and_state(tried):
    _, after = tried("""
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Float32[Tensor, "n 8"]):
        y = self.norm(self.linear(x))
        if x.mean() > 0:
            y = y / y.abs().max().item()
        return y

model = fuselens.compile(Scaled())
""")
    found = {d.code: [(f.edits[-1].replacement, f.verified) for f in d.fixes] for d in after if d.fixes}
    assert ("y.abs().max().detach()", True) in found["FL102"]


def test_inputs_that_are_written_to_are_compared(tried):
    _, after = tried(COMPILED + "    y = x\n    if x.sum() > 0:\n        y += 1\n    return y * 1\n")
    assert verdicts(after) == []  # `y` is `x`, which the caller sees change


def test_a_file_that_no_longer_imports_is_refused(tmp_path: Path):
    outcome = trials.try_fixes(str(tmp_path / "gone.py"), "1 / 0\n", "f", [], config_of({}), lambda _: None)
    assert [d.code for d in outcome.diagnostics] == ["FL912"]


def test_when_time_is_up_the_rest_is_not_tried(tmp_path: Path):
    path = tmp_path / "tried_out.py"
    path.write_text(IMPORTS + COMPILED + "    print(x)\n    return x\n")
    (report,) = check.check_file(path, config=config_of({})).functions
    outcome = trials.try_fixes(str(path), None, "f", report.breaks, config_of({}), lambda _: None, seconds=0)
    assert [(f.verified, f.trial) for f in only(outcome.functions[0].breaks)] == [
        (False, "there was no time to try it out")
    ] * 2


EXPERTS = """
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x, chosen, weights):
        total = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hit:
            slot, token = torch.where(mask[expert].squeeze(0))
            state = x[None, token].reshape(-1, x.shape[-1])
            state = (state @ self.w[expert[0]]) * weights[token, slot, None]
            total.index_add_(0, token, state)
        return total


experts = Experts()


@fuselens.compile(example_inputs=lambda: (torch.randn(6, 8), torch.rand(6, 4)))
def f(x, scores):
    weights, chosen = scores.topk(2)
    return experts(x, chosen, weights)
"""


def test_experts_that_tokens_choose_are_all_computed(tried):
    _, after = tried(EXPERTS)
    fixes = [fix for d in after for fix in d.fixes if fix.title.startswith("Compute every expert")]
    assert [fix.verified for fix in fixes] == [True], after
    replaced = [edit.replacement for edit in fixes[0].edits]
    assert "zip(range(mask.shape[0]))" in replaced
    assert "chosen_2 = mask[expert] != 0" in replaced or "chosen = mask[expert] != 0" in replaced


def test_numbers_of_numpy_in_shapes_are_pythons() -> None:
    text = "import numpy as np\n\ndef f(plan):\n    return np.zeros((2, np.sum(plan[:1]), np.prod(plan)))\n"
    place = Span("f.py", 4, 11, 4, len("    return np.zeros((2, np.sum(plan[:1]), np.prod(plan)))"))
    finding = diagnostics.make("FL102", place, what="`numpy.zeros`")
    first = fixes.propose(fixes.Source(text, "f.py"), finding)[0]
    assert "np.zeros((2, sum(plan[:1]), math.prod(plan)))" in fixes.applied(text, first.edits)


def test_writing_by_a_mask_under_a_condition(tried):
    _, after = tried(
        "@fuselens.compile(example_inputs=lambda: (torch.randn(4, 4),))\n"
        "def f(x):\n    y = x + 1\n    if y.sum() > 0:\n        y[y.lt(0)] = 7\n    return y * 2\n"
    )
    (found,) = [d for d in after if d.code == "FL101"]
    assert found.fixes[0].title == "Write where both the condition and the mask hold" and found.fixes[0].verified
