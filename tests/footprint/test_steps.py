"""Training steps run without values: what they hold, where, whether it fits, and what would make it fit."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuselens.checking import check, trials
from fuselens.checking.steps import calls, remedies
from fuselens.checking.steps.step import Step, Subject
from fuselens.config import Config, from_environment
from fuselens.record.plain import from_plain, to_plain
from fuselens.record.report import Diagnostic, Report, StepMemory
from fuselens.slices import devices

HEAD = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn
import fuselens
"""
DEEP = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), y)


def batch():
    return torch.randn(512, 64), torch.randint(0, 10, (512,))


model = fuselens.compile(Net(64, 4), example_inputs=batch)


def train():
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        model(*batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
Looks = Callable[..., Report]


@pytest.fixture
def looks(tmp_path: Path, fresh: None) -> Looks:
    def look(text: str, **options: object) -> Report:
        path = tmp_path / "train.py"
        path.write_text(HEAD + text)
        config = from_environment(explore=True, build=False, step_memory=True, **options)
        (report,) = check.check_file(path, config=config).functions
        return report

    return look


def stepped(report: Report) -> StepMemory:
    assert report.step is not None, report.diagnostics
    return report.step


def test_a_step_by_phase_kind_and_line(looks: Looks) -> None:
    step = stepped(looks(DEEP))
    parameters = 4 * (4 * (64 * 256 + 256 + 256 * 64 + 64) + 64 * 10 + 10)
    assert step.kinds["parameters"] == parameters
    assert step.optimizer == "AdamW"
    assert 2 * parameters <= step.kinds["optimizer state"] <= 2 * parameters + 200  # and counts of steps
    assert step.kinds["inputs"] == 512 * 64 * 4 + 512 * 8
    assert set(step.phases) == {"forward", "backward", "optimizer"}
    assert step.peak == sum(step.kinds.values()) == max(step.phases.values())
    assert step.sizes == {"batch": 512}
    lines = {one.span.line: one for one in step.held if one.span is not None and one.kind == "saved for backward"}
    assert lines[13].bytes >= 4 * 512 * 256 * 4  # what a layer keeps of its 256 columns
    assert from_plain(StepMemory, to_plain(step)) == step


def test_no_tensor_is_allocated(looks: Looks) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = stepped(looks(DEEP, step_sizes="batch=20000000"))
    assert step.peak > 100 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20  # KiB


def test_the_largest_batch_and_what_helps(looks: Looks) -> None:
    whole = stepped(looks(DEEP))
    report = looks(DEEP, step_limit=str(int(0.75 * whole.peak)))
    step = stepped(report)
    assert not step.fits
    assert step.largest is not None
    assert 1 < step.largest < 512
    (found,) = (d for d in report.diagnostics if d.code == "FL630")
    assert f"The largest batch that fits is {step.largest}" in found.message
    assert found.span is not None
    assert found.hints
    again = next(r for r in step.remedies if "again in the backward" in r.title)
    assert again.saves > 0
    assert again.slower > 0
    assert again.span is not None
    assert any("checkpoint(block, x, use_reentrant=False)" in edit.replacement for edit in again.edits)
    assert [fix.edits for fix in found.fixes] == [r.edits for r in step.remedies if r.edits]
    costs = [r.slower for r in step.remedies if step.limit and r.peak <= step.limit and not r.changes]
    assert costs == sorted(costs)
    fits = stepped(looks(DEEP, step_limit=str(int(0.75 * whole.peak)), step_sizes=f"batch={step.largest}"))
    assert fits.fits


def test_the_fix_agrees_with_eager(looks: Looks) -> None:
    report = looks(DEEP, step_limit="5MiB")
    findings = (*report.breaks, *report.diagnostics)
    config = from_environment(explore=True)
    (tried,) = trials.try_fixes(report.file, None, "model", findings, config, lambda _: None).functions
    (found,) = (d for d in tried.breaks if d.code == "FL630")
    assert [fix.verified for fix in found.fixes] == [True]


def test_for_a_gpu_blocks_and_libraries_count(looks: Looks) -> None:
    step = stepped(looks(DEEP, card="h100"))
    assert step.kinds["libraries"] == 64 << 20  # cuBLAS has 32 MiB for each of two threads
    assert step.card == "H100"
    assert step.fits
    assert step.reserved is not None
    assert step.reserved >= step.peak


def test_between_graphs(looks: Looks) -> None:
    """What a graph break leaves alive counts, and eager operators are heard."""
    step = stepped(looks(DEEP.replace("x = block(x)", "x = block(x)\n            print(end='')")))
    assert step.peak >= stepped(looks(DEEP)).peak


def test_a_step_that_does_all_by_itself(looks: Looks) -> None:
    step = stepped(
        looks("""
net = nn.Linear(256, 256)
optimizer = torch.optim.Adam(net.parameters())

@fuselens.compile(example_inputs=lambda: (torch.randn(64, 256),))
def step(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
""")
    )
    weights = 4 * (256 * 256 + 256)
    assert step.kinds["parameters"] == weights
    assert step.kinds["optimizer state"] >= 2 * weights
    assert step.peak >= 4 * weights


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        ("for _ in range(3):\n        model(*batch()).backward()\n    optimizer.step()\n    optimizer.zero_grad()", ""),
        (
            "for _ in range(3):\n        loss = model(*batch())\n        optimizer.zero_grad()\n        loss.backward()",
            "drops gradients after",
        ),
        (
            "while True:\n        for _ in range(2):\n            model(*batch()).backward()\n"
            "        optimizer.step()\n        optimizer.zero_grad()",
            "adds gradients up",
        ),
    ],
)
def test_what_the_loop_does_with_gradients(looks: Looks, loop: str, says: str) -> None:
    start = DEEP.index("for _ in range(3):")
    usual, step = stepped(looks(DEEP)), stepped(looks(DEEP[:start] + loop + "\n"))
    told = [note for note in step.notes if "gradients" in note]
    assert [says in note for note in told] == [True] * bool(says)
    more = step.phases["forward"] - usual.phases["forward"]
    assert abs(more - (usual.kinds["parameters"] if says else 0)) < 64


def test_without_a_backward(looks: Looks) -> None:
    step = stepped(
        looks("""
@fuselens.compile(example_inputs=lambda: (torch.randn(64, 1024),))
def f(x):
    return x.sin() @ x.t()
""")
    )
    assert set(step.phases) == {"forward"}
    assert step.peak == 4 * (64 * 1024 + 64 * 1024 + 64 * 64)


def test_sizes_that_data_decides_count_as_large_as_they_can_be(looks: Looks) -> None:
    step = stepped(
        looks("""
@fuselens.compile(example_inputs=lambda: (torch.randn(4096),))
def f(x):
    return x[x > 0].exp().sum()
""")
    )
    assert any("data decides a size" in note for note in step.notes)
    assert step.peak >= 2 * 4096 * 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"step_sizes": "length=4"}, "there is no size 'length': the sizes of this call are batch, x.0, y.0"),
        ({"step_optimizer": "adamx"}, "there is no optimizer 'adamx'"),
    ],
)
def test_what_is_asked_for_is_not_there(looks: Looks, options: dict[str, str], says: str) -> None:
    report = looks(DEEP, **options)
    assert report.step is None
    (found,) = (d for d in report.diagnostics if d.code == "FL633")
    assert says in found.message


@pytest.mark.parametrize(
    "options", [{"card": "h1000"}, {"step_limit": "much"}, {"step_sizes": "batch"}, {"step_limit": "0"}]
)
def test_options_of_another_form(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give|no size"):
        Config(**options)  # type: ignore[arg-type]


def test_a_step_that_raises(looks: Looks) -> None:
    text = DEEP.replace("return F.cross_entropy(self.head(x), y)", "return F.cross_entropy(self.head(x), y).view(1)")
    text = text.replace("def train", "@fuselens.compile(example_inputs=batch)\ndef train").replace(
        "train():", "train(x, y):"
    )
    text = text.replace("model = fuselens.compile(Net(64, 4), example_inputs=batch)", "model = Net(64, 4)")
    report = looks(text.replace("for _ in range(3):", "raise ValueError('no data')\n    for _ in range(3):"))
    assert report.step is None
    assert any(d.code == "FL633" and "ValueError: no data" in d.message for d in report.diagnostics)


def test_what_is_on_the_card_is_looked_at_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a card, which has no memory to spare."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    path = tmp_path / "train.py"
    path.write_text(
        HEAD + DEEP.replace("Net(64, 4)", "Net(64, 4).cuda()").replace("64), torch", '64, device="cuda"), torch')
    )
    with calls.call_of(path, None, "model", from_environment(), "cuda") as (file, call):
        assert not isinstance(call, Diagnostic)
        step = Step(Subject.of(call, file.source), call.config)
        found = step.memory({})
    assert {p.device.type for p in step.parameters} == {"cpu"}
    assert found.target == "cuda:sm_90" and found.kinds["parameters"] > 0
    assert devices.is_here(torch.device("cuda"))


def test_calls_that_work_with_one_size_only_are_told(looks: Looks) -> None:
    square = """
@fuselens.compile(example_inputs=lambda: (torch.randn(64, 64), torch.randn(64, 64)))
def small(x, y):
    return x @ y @ x
"""
    report = looks(square, step_limit="300MiB")
    assert report.step is not None and report.step.fits and report.step.largest is None
    assert not report.diagnostics


@pytest.mark.parametrize(
    ("target", "half"),
    [("cuda:sm_75", "float16"), ("cuda:sm_80", "bfloat16"), ("cuda:sm_100", "bfloat16"), ("cpu", "bfloat16")],
)
def test_half_precision_is_one_that_the_card_computes_in(target: str, half: str) -> None:
    assert remedies._half_of(target) == half
