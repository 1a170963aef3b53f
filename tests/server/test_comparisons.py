"""Two compilations of one function side by side: in a sentence, and stage by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pygls.exceptions import JsonRpcException

from fuselens.record import diagnostics
from fuselens.record.report import Graph, Kernel, MemoryStep, Report, Span, Stage
from fuselens_server.documents import changes

HERE = Span("/w/toy.py", 3, 7, 3, 18)


def report(graphs: int = 1, breaks: int = 0, peak: int = 64, text: str = "void kernel();", name: str = "cpp") -> Report:
    made = Report("toy", "/w/toy.py")
    for number in range(graphs):
        graph = Graph(number, "toy", None, 1)
        graph.stages = [Stage("capture", "py", "x\n"), Stage(name, "cpp", text), Stage("ptx", "ptx", "", later=True)]
        graph.kernels = [Kernel("kernel", "cpp", "forward", "pointwise", (), (), 128, 64)]
        graph.memory = [MemoryStep("kernel", "forward", peak)]
        made.graphs.append(graph)
    made.breaks = [diagnostics.make("FL101", replace(HERE, line=n + 1), what="x") for n in range(breaks)]
    return made


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (report(), report(), "nothing differs"),
        (report(), report(peak=128), "peak +64 B"),
        (report(peak=4096), report(peak=1024), "peak −3 KiB"),
        (report(breaks=2), report(breaks=1), "−1 break"),
        (
            report(), report(text="void other();"),
            "as many graphs, breaks and kernels, and the same memory; the text of 1 stage differs",
        ),
        (report(), report(3, 1, 128), "1 → 3 graphs; +1 break; 1 → 3 kernels; peak +64 B; memory traffic +384 B"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_changed(before: Report, after: Report, words: str) -> None:
    assert changes.sentence(before, after) == words


def test_stages_stand_side_by_side_and_one_that_is_missing_is_empty() -> None:
    found = changes.pairs(report(), report(2, text="other"))
    assert [(pair.title, pair.differs) for pair in found] == [
        ("graph 0 · capture", False), ("graph 0 · cpp", True), ("graph 1 · capture", True), ("graph 1 · cpp", True),
    ]  # fmt: skip
    assert (found[1].name, found[1].language, found[1].kind) == ("cpp.cpp", "fuselens-cpp", "kernel")
    assert (found[2].before, found[2].after) == ("", "x\n")


def plainly(value: Any) -> dict[str, Any]:
    """What a command returned, whose objects this client makes named tuples of."""
    return value if isinstance(value, dict) else value._asdict()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_last_save_is_compared_with_this_one(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "compared.py", good)
    with pytest.raises(JsonRpcException, match="was not compiled before the last save"):
        await editor.execute("fuselens.server.compare", file.uri, "toy", "save")
    assert "if b.sum() < 0:" in good
    await file.save(good.replace("if b.sum() < 0:", "if b.ndim == 7:"))
    told = plainly(await editor.execute("fuselens.server.compare", file.uri, "toy", "save"))
    assert told["sentence"].startswith("3 → 1 graph; −1 break"), told["sentence"]
    assert (told["before"], told["after"]) == ("last save", "now")
    stages = [plainly(stage) for stage in told["stages"]]
    assert {"capture", "lower", "cpp"} <= {stage["name"].partition(".")[0] for stage in stages}
    assert any(stage["before"] and stage["after"] and stage["differs"] for stage in stages)
    await file.save()  # the same text once more: what was before it stays
    again = plainly(await editor.execute("fuselens.server.compare", file.uri, "toy", "save"))
    assert again["sentence"] == told["sentence"]
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_targets_are_compared(editor, tmp_path, good):
    pytest.importorskip("triton")
    file, _ = await editor.open(tmp_path / "targets.py", good)
    told = plainly(await editor.execute("fuselens.server.compare", file.uri, "toy", "targets"))
    assert (told["before"], told["after"]) == ("cpu", "cuda:sm_90")
    stages = {stage["title"]: stage for stage in map(plainly, told["stages"])}
    assert stages["graph 0 · cpp"]["before"]
    assert "@triton.jit" in stages["graph 0 · triton"]["after"]
    file.close()


MODES = """import fuselens
import torch
from jaxtyping import Float32
from torch import Tensor


@fuselens.compile(mode="max-autotune")
def product(x: Float32[Tensor, "8 16"], y: Float32[Tensor, "16 4"]):
    return (x @ y).relu()
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_modes_are_compared_whichever_the_author_states(editor, tmp_path):
    file, _ = await editor.open(tmp_path / "modes.py", MODES)
    told = plainly(await editor.execute("fuselens.server.compare", file.uri, "product", "mode", "reduce-overhead"))
    assert (told["before"], told["after"]) == ("default", "reduce-overhead")
    assert told["sentence"]
    for wrong in (("mode",), ("mode", "fastest"), ("colour",)):
        with pytest.raises(JsonRpcException, match="compare with save, targets or mode"):
            await editor.execute("fuselens.server.compare", file.uri, "product", *wrong)
    with pytest.raises(JsonRpcException, match="`missing` is not defined"):
        await editor.execute("fuselens.server.compare", file.uri, "missing", "targets")
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_functions_are_listed_with_their_places(editor, tmp_path):
    text = MODES.replace("    return", '    """A docstring\n    of two lines."""\n    return')
    file, _ = await editor.open(tmp_path / "listed.py", text)
    (found,) = [plainly(f) for f in await editor.execute("fuselens.server.functions", file.uri)]
    line = text.split("\n").index('def product(x: Float32[Tensor, "8 16"], y: Float32[Tensor, "16 4"]):')
    assert found == {"name": "product", "line": line, "start": 4, "end": 11}
    first = await editor.execute("fuselens.server.firstLine", file.uri, "product")
    assert text.split("\n")[first - 1] == "    return (x @ y).relu()"
    assert await editor.execute("fuselens.server.firstLine", file.uri, "nobody") is None
    assert await editor.execute("fuselens.server.functions", (tmp_path / "closed.py").as_uri()) == []
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_values_of_each_node(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "valued.py", good)
    text = await editor.execute("fuselens.server.values", file.uri, "toy")
    assert "# --- graph 0 of toy" in text and "# --- graph 1 of " in text and text.endswith("# The call returned.\n")
    with pytest.raises(JsonRpcException, match="`missing` is not defined"):
        await editor.execute("fuselens.server.values", file.uri, "missing")
    file.close()
