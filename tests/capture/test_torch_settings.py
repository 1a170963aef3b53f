"""torch._dynamo.config: what is followed, what is said not to be, and filters of guards."""

from __future__ import annotations

import re
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

import fuselens
from fuselens.capture.breaks import BackendError, RecompileError
from fuselens.capture.program import torch_settings
from fuselens.record import notices

settings: Any = torch._dynamo.config


@pytest.fixture(autouse=True)
def _said_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())


def fresh(function: types.FunctionType) -> Callable[..., Any]:
    """A function that nobody has compiled."""
    return types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__
    )


def scaled(x: Any, k: Any) -> Any:
    return x * k


def shown(x: Any) -> Any:
    print("rows", x.shape[0])
    return x + 1


def report(compiled: Any) -> Any:
    return compiled.__fuselens__.recorder.report


def test_the_table_has_each_setting_of_this_torch() -> None:
    public = {n for n, e in settings._config.items() if e.alias is None and not n.startswith("_")} - {"TYPE_CHECKING"}
    assert sorted(public - torch_settings.table().keys()) == []


def test_the_page_has_each_row() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "torch-settings.md"
    assert set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.M)) == torch_settings.table().keys()


def test_sizes() -> None:
    with settings.patch(assume_static_by_default=False):
        compiled = fuselens.compile(fresh(scaled), backend="eager")
        compiled(torch.ones(4), 2)
    assert any(s.source == "x.shape[0]" for s in report(compiled).symbols)
    with settings.patch(automatic_dynamic_shapes=False):
        compiled = fuselens.compile(fresh(scaled), backend="eager")
        for n in (3, 4, 5):
            compiled(torch.ones(n), 2)
    assert len(report(compiled).captured) == 3


@pytest.mark.parametrize(("name", "values"), [("specialize_int", (2, 3, 4)), ("specialize_float", (0.5, 1.5, 2.5))])
def test_numbers_that_are_constants(name: str, values: tuple[Any, ...]) -> None:
    counts = []
    for on in (False, True):
        with settings.patch(**{name: on}):
            compiled = fuselens.compile(fresh(scaled), backend="eager")
            for k in values:
                assert torch.equal(compiled(torch.ones(3), k), torch.ones(3) * k)
        counts.append(len(report(compiled).captured))
    assert counts == [2, 3]


def test_an_option_wins_over_a_setting() -> None:
    with settings.patch(cache_size_limit=2, specialize_int=True):
        compiled = fuselens.compile(fresh(scaled), backend="eager", options={"recompile_limit": 4})
        for k in range(4):
            compiled(torch.ones(3), k)
        with pytest.warns(fuselens.FuselensWarning, match="FL202"):
            compiled(torch.ones(3), 4)
    assert len(report(compiled).captured) == 4


def test_limits_that_are_errors() -> None:
    with settings.patch(recompile_limit=2, specialize_int=True, fail_on_recompile_limit_hit=True):
        compiled = fuselens.compile(fresh(scaled), backend="eager")
        compiled(torch.ones(3), 1), compiled(torch.ones(3), 2)
        with pytest.raises(RecompileError, match="FL202"):
            compiled(torch.ones(3), 3)
    assert torch.equal(compiled(torch.ones(3), 1), torch.ones(3))
    with settings.patch(error_on_recompile=True):
        compiled = fuselens.compile(fresh(scaled), backend="eager")
        compiled(torch.ones(3), 1)
        with pytest.raises(RecompileError, match="FL201"):
            compiled(torch.ones(3), 2)


def test_nothing_is_compiled_while_it_is_disabled() -> None:
    compiled = fuselens.compile(fresh(scaled), backend="eager", fullgraph=True)
    with settings.patch(disable=True):
        assert torch.equal(compiled(torch.ones(3), 2), torch.full((3,), 2.0))
        assert not report(compiled).captured
    compiled(torch.ones(3), 2)
    assert len(report(compiled).captured) == 1


def test_the_first_calls_run_eagerly() -> None:
    with settings.patch(minimum_call_count=3):
        compiled = fuselens.compile(fresh(scaled), backend="eager")
        counts = [(compiled(torch.ones(3), 2), len(report(compiled).captured))[1] for _ in range(4)]
    assert counts == [0, 0, 1, 1]


def test_errors_of_backends() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise ValueError("no such kernel")

    with pytest.raises(BackendError, match="no such kernel"):
        fuselens.compile(fresh(scaled), backend=broken)(torch.ones(3), 2)
    with settings.patch(suppress_errors=True):
        compiled = fuselens.compile(fresh(scaled), backend=broken)
        assert torch.equal(compiled(torch.ones(3), 2), torch.full((3,), 2.0))
    assert [d.code for d in report(compiled).diagnostics if d.code == "FL112"]


def test_functions_that_only_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.patch(reorderable_logging_functions={print}):
        compiled = fuselens.compile(fresh(shown), backend="eager", fullgraph=True)
        compiled(torch.ones(3)), compiled(torch.ones(3))
    assert capsys.readouterr().out == "rows 3\nrows 3\n"
    with settings.patch(ignore_logging_functions={print}):
        compiled = fuselens.compile(fresh(shown), backend="eager", fullgraph=True)
        compiled(torch.ones(3))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trace_numpy": False}, "trace_numpy = False` is not followed: functions of numpy are captured"),
        ({"repro_after": "dynamo"}, "`fuselens bisect` makes a small program"),
        ({"recompile_limit": 0}, "recompile_limit = 0` is not followed: it takes an integer from 1 on"),
        ({"specialize_int": 1}, "specialize_int = 1` is not followed: it takes a bool"),
    ],
)
def test_what_is_not_followed_says_so_once(changes: dict[str, Any], told: str) -> None:
    with settings.patch(**changes):
        with pytest.warns(fuselens.FuselensWarning, match=re.escape(told)):
            fuselens.compile(fresh(scaled), backend="eager")(torch.ones(3), 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fuselens.compile(fresh(scaled), backend="eager")(torch.ones(3), 2)


def test_what_changes_nothing_says_nothing() -> None:
    with settings.patch(verbose=True, inline_inbuilt_nn_modules=False, allow_rnn=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        fuselens.compile(fresh(scaled), backend="eager", fullgraph=True)(torch.ones(3), 2)


def test_what_torch_calls_inside_of_compiled_code() -> None:
    def asks(x: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        if torch.compiler.is_compiling() and torch._dynamo.is_compiling():
            return torch.compile(lambda v: v + 1)(x)
        return x

    assert torch.equal(fuselens.compile(asks, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))


# --- filters of guards ------------------------------------------------------------------------------------------

SCALE = 2


def of_a_global(x: Any) -> Any:
    return x * SCALE


def guards(keep: Any, function: Any, *args: Any) -> list[Any]:
    compiled = fuselens.compile(function, backend="eager", options={"guard_filter_fn": keep})
    compiled(*args)
    return list(report(compiled).guards)


def test_torchs_own_filters() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    every = guards(None, module, torch.ones(3, 2))
    tensors = guards(torch.compiler.keep_tensor_guards_unsafe, module, torch.ones(3, 2))
    assert [g.kind for g in tensors] == ["TENSOR"] and tensors[0].source == "input"
    unowned = guards(torch.compiler.skip_guard_on_all_nn_modules_unsafe, module, torch.ones(3, 2))
    assert 0 < len(unowned) < len(every) and not any("_modules" in g.source for g in unowned)
    assert guards(torch.compiler.skip_all_guards_unsafe, module, torch.ones(3, 2)) == []
    kept = guards(torch.compiler.skip_guard_on_globals_unsafe, fresh(of_a_global), torch.ones(3))
    assert kept and not any(g.source == "SCALE" for g in kept)


def test_a_filter_sees_what_is_checked_and_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def keep(entries: Any) -> list[bool]:
        seen.update({e.name: (e.guard_type, e.has_value, e.value, e.is_global) for e in entries})
        return [e.name != "SCALE" for e in entries]

    compiled = fuselens.compile(fresh(of_a_global), backend="eager", options={"guard_filter_fn": keep})
    x = torch.ones(3)
    compiled(x)
    assert seen["SCALE"] == ("EQUALS_MATCH", True, 2, True)
    assert seen["x"][:2] == ("TENSOR_MATCH", True) and seen["x"][2] is x
    monkeypatch.setitem(globals(), "SCALE", 5)
    assert torch.equal(compiled(x), x * 2), "the program took it upon itself that this does not change"


def test_a_filter_that_does_not_answer() -> None:
    with pytest.raises(RuntimeError, match="gave 0 answers for"):
        guards(lambda entries: [], fresh(of_a_global), torch.ones(3))
    with pytest.raises(TypeError, match="takes a function"):
        fuselens.compile(of_a_global, options={"guard_filter_fn": 3})
