"""Which sizes varied is kept between runs: the next run begins with symbols for them, and finds what was compiled for any size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens import cli, config
from fuselens.capture.frame.frame import FrameCompiler
from fuselens.pipeline import graphs
from fuselens.runtime.cache import contents
from fuselens.runtime.cache.store import Cache
from tests.integration.test_symbolic_cache import PROGRAMS

ROWS = (6, 10, 14, 7, 16)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    with config.patch(cache_dir=tmp_path / "cache", keep_sizes=True):
        yield tmp_path / "cache"
    fuselens.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the frames that are traced."""
    found: list[str] = []
    trace = FrameCompiler._trace

    def noted(self: Any, function: Any, code: Any, *args: Any) -> Any:
        found.append(code.co_name)
        return trace(self, function, code, *args)

    monkeypatch.setattr(FrameCompiler, "_trace", noted)
    return found


def report(compiled: Any) -> Any:
    return compiled.__fuselens__.recorder.report


def in_a_new_run(fn: Any, **options: Any) -> Any:
    fuselens.reset()
    return fuselens.compile(fn, **options)


def rows(count: int, grad: bool = False) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count)).requires_grad_(grad)


def flat(value: Any) -> list[Tensor]:
    return [t for v in value for t in flat(v)] if isinstance(value, tuple) else [value]


def agrees(fn: Callable[..., Any], compiled: Callable[..., Any], counts: tuple[int, ...], grad: bool) -> None:
    for count in counts:
        results = []
        for call in (fn, compiled):
            x = rows(count, grad)
            found = flat(call(x))
            if grad:
                sum(t.sum() for t in found).backward()  # type: ignore[union-attr]
            results.append([*found, x.grad])
        torch.testing.assert_close(results[1], results[0])


# --- the next run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_next_run_traces_nothing(name: str, grad: bool, traced: list[str]) -> None:
    fn = PROGRAMS[name]
    first = fuselens.compile(fn)
    agrees(fn, first, ROWS, grad)
    compilations = len(report(first).graphs)
    if compilations != 2:
        assert name == "parts"  # which has two sides
    traced.clear()
    for counts in (ROWS, (20, 12, 8)):  # in the second order its first size is a new one
        second = in_a_new_run(fn)
        agrees(fn, second, counts, grad)
        assert len(report(second).graphs) <= compilations - 1
        assert {g.cache for g in report(second).graphs} == {"found"} and not any(
            g.fallback for g in report(second).graphs
        )
        assert traced == []
    assert report(second).symbols == [s for s in report(first).symbols if s in report(second).symbols] != []


def test_another_process(place: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport torch, fuselens\n\n"
        "@fuselens.compile\ndef f(x):\n    return torch.softmax(x @ x.t(), -1).sum(0)\n\n"
        "for n in map(int, sys.argv[1:]):\n    x = torch.randn(n, 8)\n    torch.testing.assert_close(f(x), torch.softmax(x @ x.t(), -1).sum(0))\n"
        "print(len(f.__fuselens__.recorder.report.graphs), *{g.cache for g in f.__fuselens__.recorder.report.graphs})\n"
    )

    def ran(*sizes: int, keep: str = "1") -> str:

        environment = os.environ | {"FUSELENS_CACHE_DIR": str(place), "FUSELENS_KEEP_SIZES": keep}
        command = [sys.executable, str(program), *map(str, sizes)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert ran(4, 6, 9).startswith("2 ")
    assert ran(12, 4, 5, 6) == "1 found"
    assert ran(12, 13, 5, keep="0").startswith("2 ")


def varied(place: Path) -> list[dict[str, list[int]]]:
    cache = Cache(place)
    return [
        json.loads(cache.get("varied", path.stem, ".json") or b"")
        for path in sorted((place / "varied").rglob("*.json"))
    ]


def test_what_is_kept(place: Path) -> None:
    def fn(x: Tensor, y: Tensor, scale: float, times: int, fixed: Tensor) -> Tensor:
        return (x * y).sum() * scale + times + fixed.sum()

    compiled = fuselens.compile(fn)
    fixed = torch.ones(3)
    for n in (4, 7, 9):
        compiled(torch.ones(n, 2), torch.ones(n, 2), 0.5 + n, n, fixed)
    assert varied(place) == [{"x": [0], "y": [0], "scale": [-1], "times": [-1]}]
    again = in_a_new_run(fn)
    for n in (9, 2, 5):
        given = torch.ones(n, 2), torch.full((n, 2), 2.0), 1.5 * n, n + 3, fixed
        torch.testing.assert_close(again(*given), fn(*given))
    assert len(report(again).graphs) == 1
    assert not report(again).diagnostics


def test_functions_that_resume_others(traced: list[str]) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.tanh()
        print(end="")
        return y.softmax(0) * x.shape[0]

    agrees(fn, fuselens.compile(fn), ROWS, False)
    traced.clear()
    again = in_a_new_run(fn)
    agrees(fn, again, (3, *ROWS), False)
    assert traced == [] and len(report(again).graphs) == 2
    assert [b.code for b in report(again).breaks] == ["FL103"]


def test_a_module_that_trains(traced: list[str]) -> None:
    def losses(compiled: Any, module: nn.Module) -> list[Tensor]:
        optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
        found = []
        for count in ROWS:
            loss = F.mse_loss(compiled(rows(count)), rows(count).flip(0))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(loss.detach())
        return found

    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))

    module = made()
    expected = losses(module, module)
    for run in range(2):
        module = made()
        compiled = in_a_new_run(module)
        torch.testing.assert_close(losses(compiled, module), expected, rtol=1e-4, atol=1e-5)
        assert len(report(compiled).graphs) == 2 - run
        traced.clear() if run == 0 else None
    assert traced == []


# --- what wins over it ------------------------------------------------------------------------------------------------


def softened(x: Tensor) -> Tensor:
    return x.softmax(0) * 2


@pytest.fixture
def seen(place: Path) -> None:
    agrees(softened, fuselens.compile(softened), ROWS, False)
    assert varied(place) == [{"x": [0]}]


def symbols(compiled: Any) -> list[str]:
    return [s.source for s in report(compiled).symbols]


@pytest.mark.usefixtures("seen")
def test_nothing_wins_over_it_by_itself() -> None:
    compiled = in_a_new_run(softened)
    compiled(rows(5))
    assert symbols(compiled) == ["x.shape[0]"]


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("options", [{"dynamic": False}, {"options": {"keep_sizes": False}}, {"backend": "aot_eager"}])
def test_options_win(options: dict[str, Any]) -> None:
    compiled = in_a_new_run(softened, **options)
    agrees(softened, compiled, (5,), False)
    assert symbols(compiled) == []


@pytest.mark.usefixtures("seen")
def test_static_marks_win() -> None:
    compiled = in_a_new_run(softened)
    for count in (5, 9, 11):
        x = rows(count)
        fuselens.mark_static(x, 0)
        torch.testing.assert_close(compiled(x), softened(x))
    assert symbols(compiled) == [] and len(report(compiled).graphs) == 3


@pytest.mark.usefixtures("seen")
def test_the_editors_reports_do_not_depend_on_it() -> None:
    fuselens.reset()
    assert fuselens.explain(softened)(rows(5)).symbols == []


@pytest.mark.usefixtures("seen")
def test_another_program_that_runs_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/elsewhere/other.py", raising=False)
    compiled = in_a_new_run(softened)
    agrees(softened, compiled, (5,), False)
    assert symbols(compiled) == []
    agrees(softened, compiled, (6, 7), False)  # what the cache has for any size serves it, too
    assert [g.cache for g in report(compiled).graphs][1:] == ["found"]


def test_nothing_is_kept_where_it_is_not_wanted(place: Path) -> None:
    for options in ({"dynamic": False}, {"options": {"keep_sizes": False}}):
        agrees(softened, in_a_new_run(softened, **options), ROWS, False)
    assert not (place / "varied").exists()
    assert not list((place / "frame").rglob("*.s?"))


def test_a_size_that_the_program_fixes_is_not_kept(place: Path) -> None:
    def fn(x: Tensor) -> Tensor:
        return x.view(6, 8) + 1 if x.shape[0] == 6 else x

    compiled = fuselens.compile(fn)
    for count in (4, 6):
        torch.testing.assert_close(compiled(rows(count)), fn(rows(count)))
    assert [d.code for d in report(compiled).diagnostics] == ["FL201", "FL203"]
    assert not (place / "varied").exists()


def test_conditions_on_sizes_hold(traced: list[str]) -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x - 1

    agrees(fn, fuselens.compile(fn), (4, 6, 8), False)
    traced.clear()
    compiled = in_a_new_run(fn)
    agrees(fn, compiled, (5, 7, 4), False)
    assert set(traced) == {"fn"}  # the odd side is new
    assert [g.cache for g in report(compiled).graphs][1:] == ["found"]


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("damage", ["a bit", "another content", "no dimensions"])
def test_a_damaged_entry_is_ignored(place: Path, damage: str) -> None:
    (entry,) = (place / "varied").rglob("*.json")
    if damage == "a bit":
        content = bytearray(entry.read_bytes())
        content[3] ^= 1
        entry.write_bytes(content)
    else:
        Cache(place).put("varied", entry.stem, b"[1, 2]" if damage == "another content" else b'{"x": ["0"]}', ".json")
    compiled = in_a_new_run(softened)
    agrees(softened, compiled, (5,), False)
    assert [d.code for d in report(compiled).diagnostics] == ["FL405"]
    assert symbols(compiled) == [] and not entry.exists()


@pytest.mark.usefixtures("seen")
def test_a_damaged_frame_is_made_again(place: Path, traced: list[str]) -> None:
    (entry,) = (place / "frame").rglob("*.s0")
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    for expected in ({"softened"}, set()):
        traced.clear()
        compiled = in_a_new_run(softened)
        agrees(softened, compiled, ROWS, False)
        assert set(traced) == expected and len(report(compiled).graphs) == 1


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("lost", ["programs", "host"])
def test_programs_that_are_not_there(
    place: Path, lost: str, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if lost == "programs":
        for path in (place / "graph").rglob("*.forward"):
            path.unlink()
    else:
        monkeypatch.setattr(graphs, "host_isa", lambda _: "scalar")
    traced.clear()
    compiled = in_a_new_run(softened)
    agrees(softened, compiled, ROWS, False)
    assert "softened" in traced and len(report(compiled).graphs) == 1


@pytest.mark.usefixtures("seen")
def test_the_command_lists_and_clears(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(place))
    assert contents.contents(place).others == []
    assert cli.main(["cache"]) == 0
    assert "varied         1 files" in capsys.readouterr().out
    assert cli.main(["cache", "list", "--kind", "varied"]) == 0
    assert capsys.readouterr().out.startswith("varied ")
    assert cli.main(["cache", "clear"]) == 0
    assert not place.exists()


@pytest.mark.usefixtures("seen")
def test_it_goes_where_the_cache_goes(tmp_path: Path, traced: list[str]) -> None:
    made = fuselens.save_cache_artifacts()
    assert made is not None and made[1].entries["varied"] == 1
    traced.clear()
    with config.patch(cache_dir=tmp_path / "another"):
        fuselens.load_cache_artifacts(made[0])
        compiled = in_a_new_run(softened)
        agrees(softened, compiled, (9, 3), False)
    assert symbols(compiled) == ["x.shape[0]"] and traced == []
