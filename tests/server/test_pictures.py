"""What pictures are drawn from, as a function of a view, and the request for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fuselens.live import Event, KernelTime
from fuselens.record import diagnostics as codes
from fuselens.record.limits import with_limits
from fuselens.record.report import KernelRun, Machine, MemoryStep, Operation, RunResult, Timing
from fuselens_server.pictures.data import Pictures, pictures
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.observed import MOST_MOMENTS, Observed
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import KeptRun

LINE = 3  # of the toy's decorator: where its code begins


def shown(toy: Any, *events: Event, machine: Machine | None = None, edits: tuple[Any, ...] = ()) -> Pictures:
    """Of a report whose first graph has a structure, a memory curve and timings."""
    file = toy.file()
    graph = file.functions[0].graphs[0]
    divide, product = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "x * b")
    kernel = graph.kernels[0].name
    graph.structure = [
        Operation("a", "", "forward", "f32[n]", 512),
        Operation("t0", "aten.abs.default", "forward", "f32[n]", 512, ("a",), (kernel,), False, (divide,)),
        Operation("t1", "aten.div.Tensor", "forward", "f32[n]", 512, ("a", "t0"), (kernel,), True, (divide,)),
        Operation("t2", "aten.mm.default", "forward", "f32[n]", 512, ("t1",), ("t2",), True, (product,)),
        Operation("g", "aten.neg.default", "backward", "f32[n]", 512, (), ("neg_0",), True, (product,)),
    ]
    graph.memory = [MemoryStep("fused_0", "forward", 1024, (divide,)), MemoryStep("t2", "forward", 2048, (product,))]
    graph.timings += [Timing("build.cpp.backward", 0.02), Timing("build.backward", 0.01)]
    file.functions[0].timings.append(Timing("total", 0.5))
    seen = Observed("run", "train.py")
    for event in events:
        seen.take(1, dataclasses.replace(event, file=toy.path, function="toy", line=LINE))
    ran = {"observed": seen, "ran": TrackedText.unedited(SourceText(toy.text))} if events else {}
    return pictures(toy.view(report=file, edits=edits, **ran), "toy", machine)


def test_a_graph_is_nodes_and_edges_by_kernel(toy: Any):
    forward, backward, other = shown(toy)["graphs"]
    assert [n["operator"] for n in forward["nodes"]] == ["", "abs", "div", "mm"]
    assert [n["reads"] for n in forward["nodes"]] == [[], [0], [0, 1], [2]]
    assert [n["kernel"] for n in forward["nodes"]] == [None, 0, 0, 1]
    assert [(k["name"], k["backend"], k["read"]) for k in forward["kernels"]] == [
        ("fused_0", "cpp", 4096),
        ("t2", "", None),
    ]
    assert [n["name"] for n in backward["nodes"]] == ["g"]
    assert (other["id"], other["nodes"]) == (1, [])


def test_places_follow_edits(toy: Any):
    data = shown(toy, edits=((0, 0, "# one more line\n"),))
    place = data["places"][data["graphs"][0]["nodes"][1]["place"] or 0]
    assert (place["name"], place["range"].start.line) == ("toy.py:6", 5)
    assert data["stale"]


def test_each_place_is_there_once(toy: Any):
    data = shown(toy)
    assert len({str(p) for p in data["places"]}) == len(data["places"])


def test_memory_has_each_step(toy: Any):
    (curve,) = shown(toy)["memory"]
    assert [(s["name"], s["bytes"]) for s in curve["steps"]] == [("fused_0", 1024), ("t2", 2048)]


def test_time_is_a_tree_whose_parts_fit(toy: Any):
    timing = shown(toy)["timing"]
    assert timing is not None
    assert timing["name"] == "toy"
    assert timing["seconds"] == 0.5
    load, graph = timing["parts"]
    assert load["name"] == "load"
    assert [p["name"] for p in graph["parts"]] == ["capture", "build", "backward"]
    backward = graph["parts"][2]
    assert [(p["name"], p["seconds"]) for p in backward["parts"]] == [("build", 0.02)]  # at least its compiler's
    assert [p["name"] for p in backward["parts"][0]["parts"]] == ["cpp"]

    def fits(part: Any) -> None:
        assert sum(p["seconds"] for p in part["parts"]) <= part["seconds"] + 1e-9
        for inner in part["parts"]:
            fits(inner)

    fits(timing)


LINE = ((1, 2e10),)
MACHINE = Machine(
    "a machine", LINE, LINE, LINE, {"plain": 1e9, "exp": 1e8, "product float32": 1e11}, 1e-8, "2026-01-31"
)


def test_without_a_run_there_are_no_times(toy: Any):
    data = shown(toy, machine=MACHINE)
    assert data["run"] is None
    assert data["rooflines"] == []


def test_recompilations_are_told_with_their_guard(toy: Any):
    what = "`toy`, because of a: expected f32[3], found f32[4]"
    events = [
        Event("graph", graph=0, seconds=0.25),
        Event("finding", diagnostic=codes.make("FL201", toy.span(toy.text, "a.abs()"), what=what)),
        Event("graph", graph=1, seconds=0.5),
    ]
    run = shown(toy, *events)["run"]
    assert run is not None
    assert [m["kind"] for m in run["moments"]] == ["compiled", "recompiled", "compiled"]
    assert "expected f32[3], found f32[4]" in run["moments"][1]["text"]
    assert run["moments"][1]["place"] is not None
    assert run["missed"] == 1
    assert [m["at"] for m in run["moments"]] == sorted(m["at"] for m in run["moments"])


def test_a_run_that_compiles_for_ever_is_counted(toy: Any):
    run = shown(toy, *[Event("graph", graph=n, seconds=0.1) for n in range(MOST_MOMENTS + 3)])["run"]
    assert run is not None
    assert (len(run["moments"]), run["dropped"]) == (MOST_MOMENTS, 3)


def test_timed_kernels_have_bytes(toy: Any):
    place = toy.span(toy.text, "a / (a.abs() + 1)")
    times = (KernelTime("fused_0", "forward", (place,), 40, 0.004, 6144),)
    data = shown(toy, Event("graph"), Event("kernels", kernels=times), machine=MACHINE)
    (roofline,) = data["rooflines"]
    assert roofline["source"] == "The last run of train.py"
    (timed,) = roofline["kernels"]
    assert (timed["seconds"], timed["bytes"]) == (0.0001, 6144)
    assert timed["share"] == pytest.approx(6144 / 2e10 / 0.0001)
    assert roofline["roof"] is not None and roofline["roof"]["memory"] == 2e10


def test_run_times_kernels_too(toy: Any):
    place = toy.span(toy.text, "x * b")
    kernels = (
        KernelRun("quick", 0, "forward", (place,), 64, 0, seconds=1e-7),
        KernelRun("slow", 0, "forward", (place,), 10**7, 10**7, {"exp": 5e4}, seconds=2e-3),
        KernelRun("unknown", 0, "forward"),
    )
    result = with_limits(RunResult("toy", True, "", kernels=kernels, compiled_seconds=3e-3), MACHINE)
    (roofline,) = pictures(toy.view(report=toy.file(), runs={"toy": KeptRun(result, "")}), "toy")["rooflines"]
    assert [(k["name"], k["seconds"], k["share"], k["operations"]) for k in roofline["kernels"]] == [
        ("slow", 2e-3, 0.5, 5e5),
        ("quick", 1e-7, 0.1, 0.0),
    ]
    assert roofline["sentences"] == []  # one kernel could not be timed
    result.kernels = result.kernels[:2]
    (roofline,) = pictures(toy.view(report=toy.file(), runs={"toy": KeptRun(result, "")}), "toy")["rooflines"]
    assert roofline["sentences"] == [
        "a call: 3 ms, 33 % of what memory allows; the next gain is `slow`, `quick` in line 11: 2 ms, where 1 ms would do"
    ]


@pytest.mark.asyncio(loop_scope="module")
async def test_over_lsp(editor: Any, tmp_path: Any, good: str):
    file, _ = await editor.open(tmp_path / "pictured.py", good)
    data = await editor.client.protocol.send_request_async("fuselens/pictures", {"uri": file.uri, "function": "toy"})
    assert data.functions == ["toy"]
    assert [n.operator for n in data.graphs[0].nodes if n.operator] == ["abs", "add", "div", "sum", "lt"]
    divided = next(n for n in data.graphs[0].nodes if n.operator == "div")
    line = data.places[divided.place].range.start.line
    assert file.text.split("\n")[line].strip() == "x = a / (a.abs() + 1)"
    assert data.memory[0].steps[0].bytes > 0
    assert data.timing.name == "toy"
    file.close()


def test_a_graph_that_is_compiled_in_parts_is_its_parts(toy: Any):
    file = toy.file()
    whole, part = file.functions[0].graphs[:2]
    whole.structure, part.part_of = [], whole.id
    part.structure = [Operation("t0", "aten.abs.default", "forward", "f32[n]", 512)]
    part.runs = 48
    (only,) = pictures(toy.view(report=file), "toy")["graphs"]
    assert only["id"] == part.id
    assert only["frame"] == f"{part.frame}, runs 48 times"
