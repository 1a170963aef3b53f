"""Inputs recorded in a user's run: what is kept of them, and what a check makes of that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuselens.checking.check import check_file
from fuselens.inputs import recorded_inputs
from fuselens.inputs.recorded_inputs import NotRecordable, Recording, described, made, varying


def f(x, n=1, *more, flag, **others): ...


def method(self, x): ...


def call_of(*args, **kwargs) -> dict:
    given = dict(zip(("x", "n"), args)) | {"flag": True} | kwargs
    values = [given.pop(name, 1) for name in ("x", "n", "flag")]
    return described(f.__code__, [*values, args[2:], given])


TENSORS = [
    torch.ones(2, 3),
    torch.ones(2, 3).t(),
    torch.ones(6)[::2],
    torch.ones(1, 3).expand(4, 3),
    torch.ones((), dtype=torch.float64),
    torch.ones(0, 3, dtype=torch.bfloat16),
    torch.ones(2, dtype=torch.int64),
    torch.ones(2, dtype=torch.bool),
    torch.ones(2, dtype=torch.complex64),
    torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
    torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last),
    torch.ones(2, requires_grad=True) * 2,
]
with torch.inference_mode():
    TENSORS.append(torch.ones(3))


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype} {tuple(t.shape)} {t.stride()}")
def test_tensors_come_back_alike(tensor: torch.Tensor):
    (back, n), kwargs, *_ = made(call_of(tensor))
    assert (n, kwargs) == (1, {"flag": True})
    for name in ("dtype", "shape", "device", "requires_grad", "is_leaf", "is_inference", "__class__"):
        kept, given = getattr(back, name), getattr(tensor, name)
        assert kept() == given() if name == "is_inference" else kept == given
    assert back.stride() == tensor.stride()
    assert back.shape == tensor.shape


def test_other_values_come_back_equal():
    values = {"t": (1, [2.5, None]), "s": "mean", "d": {"a": True}, "e": ()}
    args, kwargs, *_ = made(call_of(3, 4, -1, 2.0, flag=False, **values))
    assert args == (3, 4, -1, 2.0)
    assert kwargs == {"flag": False, **values}
    assert isinstance(kwargs["t"], tuple)


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), "long" * 100, {1: 2}, {1}, torch.ones(2).to_sparse(), torch.nn.Linear(1, 1), 1j, range(3)],
    ids=lambda v: type(v).__name__,
)
def test_what_metadata_does_not_describe(value: object):
    for nested in (value, [value], {"a": (value,)}):
        with pytest.raises(NotRecordable):
            call_of(nested)


@pytest.mark.parametrize(
    "plain",
    [
        None, {}, [], {"args": [{}], "kwargs": {}}, {"args": 3, "kwargs": {}}, {"args": [{"set": [1]}], "kwargs": 5},
        {"args": [{"dtype": "nothing", "shape": [1], "stride": [1], "device": "cpu", "requires_grad": False}], "kwargs": {}},
        {"args": [{"dtype": "float32", "shape": [1 << 40], "stride": [1], "device": "cpu", "requires_grad": False}], "kwargs": {}},
        {"args": [{"dtype": "float32", "shape": [2], "stride": [1], "device": "moon", "requires_grad": False}], "kwargs": {}},
        {"args": [{"dtype": "int64", "shape": [2], "stride": [1], "device": "cpu", "requires_grad": True}], "kwargs": {}},
        {"args": [{"self": True}], "kwargs": {}},
    ],
    ids=repr,
)  # fmt: skip
def test_what_cannot_be_made(plain: object):
    with pytest.raises(NotRecordable):
        made(plain)


def test_modes_come_back():
    def modes(call: recorded_inputs.Call) -> tuple[bool, bool]:
        return call.of(lambda *_, **__: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    assert modes(made(call_of(1))) == (True, False)
    with torch.no_grad():
        assert modes(made(call_of(1))) == (False, False)
    with torch.inference_mode():
        assert modes(made(call_of(1))) == (False, True)
    assert torch.is_grad_enabled()


def test_self_is_given():
    owner = object()
    call = described(method.__code__, [owner, torch.ones(2)])
    assert made(call, owner)[0][0] is owner


def test_recordings_are_private_and_short(tmp_path: Path):
    recording = Recording(tmp_path / "cache", "/project/f.py", "f", "/project/train.py")
    assert recording.calls() == []
    recording.keep([call_of(i) for i in range(20)])
    assert [made(c)[0][0] for c in recording.calls()] == list(range(recorded_inputs.CALLS))
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    assert Recording(tmp_path / "cache", "/project/f.py", "g", "/project/train.py").calls() == []


def test_those_of_a_library_are_of_one_program(tmp_path: Path):
    """Other programs give its modules other inputs."""
    for file, shared in (("/project/model.py", True), (torch.nn.Linear.forward.__code__.co_filename, False)):
        Recording(tmp_path, file, "f", "/project/train.py").keep([call_of(1)])
        assert bool(Recording(tmp_path, file, "f", "/project/other.py").calls()) is shared


def test_sizes_that_vary():
    calls = [call_of(torch.ones(n, 4), torch.ones(2)) for n in (2, 3)]
    assert varying(calls, ("x", "n")) == {"x": {0: "x_0"}}
    assert varying([*calls, call_of(torch.ones(2))], ("x", "n")) == {}
    assert varying(calls[:1], ("x", "n")) == {}


BODY = """
@fuselens.compile
def f(x, parts, *, scale):
    return x * scale + parts[0]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @fuselens.compile
    def forward(self, x):
        return self.linear(x).relu()


class Net(nn.Module):
    def forward(self, x):
        return x.sin()


net = fuselens.compile(Net())

if __name__ == "__main__":
    for n in (3, 5):
        f(torch.ones(n, 4), [torch.ones(4)], scale=2.0)
    Layer()(torch.ones(2, 4))
    net(torch.ones(7))
"""


def test_a_check_uses_what_a_run_recorded(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "cache"))
    path = written(BODY)
    assumed = check_file(path).functions
    assert [d.code for r in assumed for d in r.diagnostics] == ["FL921"] * 3  # the program's own calls
    subprocess.run([sys.executable, str(path)], check=True, timeout=120)  # nobody asked for a recording
    assert [d.code for r in check_file(path).functions for d in r.diagnostics] == ["FL921"] * 3
    subprocess.run([sys.executable, str(path)], env=os.environ | {"FUSELENS_LIVE": "1"}, check=True, timeout=120)
    known = {r.function: r.fingerprint for r in assumed}
    assert [r.unchanged for r in check_file(path, known=known).functions] == [False] * 3  # not assumed any more
    reports = {r.function: r for r in check_file(path).functions}
    assert [str(t) for t in reports["f"].graphs[0].inputs] == ["f32[x_0, 4]", "f32[4]"]
    assert "f32[2, 4]" in [str(t) for t in reports["Layer.forward"].graphs[0].inputs]
    assert [str(t) for t in reports["net"].graphs[0].inputs] == ["f32[7]"]
    assert [d.code for r in reports.values() for d in r.diagnostics] == []
