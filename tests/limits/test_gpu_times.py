"""Which times of a GPU belong to which kernel: by the ranges of graphs, in their order, or by names."""

from __future__ import annotations

from fuselens.inputs.kernel_pass import _GRAPH, _LABEL, Profile
from fuselens.record.report import KernelRun


def kernels(*names: str, graph: int = 0) -> list[KernelRun]:
    return [KernelRun(name, graph, "forward", library=name == "mm") for name in names]


def times(profile: Profile, *names: str, graph: int = 0) -> list[list[float]]:
    return profile.times((graph, "forward"), kernels(*names, graph=graph))


def test_ranges_are_kernels_in_their_order() -> None:
    """Kernels that are alike are launched by the name of one of them."""
    ranges = [("mm", 3.0), ("tanh_0", 1.0), ("mm", 4.0), ("tanh_0", 2.0)]
    profile = Profile(2, {}, {(0, "forward"): [ranges, ranges]})
    assert times(profile, "mm", "tanh_0", "mm", "tanh_1") == [[3.0, 3.0], [1.0, 1.0], [4.0, 4.0], [2.0, 2.0]]


def test_names_decide_where_a_kernel_has_no_range() -> None:
    profile = Profile(1, {}, {(0, "forward"): [[("mm", 3.0), ("exp_0", 1.0)]]})
    assert times(profile, "mm", "copy_0", "exp_0") == [[3.0], [], [1.0]]
    assert times(profile, "mm", "mm", "exp_0", "exp_1") == [[], [], [1.0], []]  # one of two: which is not known


def test_a_graph_that_did_not_run_has_no_times() -> None:
    """Although another graph has a kernel of the same name."""
    profile = Profile(1, {"exp_0": [1.0]}, {(1, "forward"): [[("exp_0", 1.0)]]})
    assert times(profile, "exp_0") == [[]]
    assert times(profile, "exp_0", graph=1) == [[1.0]]


def test_a_recording_is_one_range() -> None:
    profile = Profile(1, {"exp_0": [1.0, 2.0]}, {(0, "forward"): [[]]})
    assert times(profile, "exp_0", "mm") == [[1.0, 2.0], []]
    assert times(Profile(1, {"exp_0": [1.0]}, {}), "exp_0") == [[1.0]]  # a graph without a host program


def test_names_of_ranges() -> None:
    found = _GRAPH.search("Net.forward graph 12 backward (train.py:12)")
    assert found is not None and (found[1], found[2]) == ("12", " backward")
    assert _GRAPH.search("step graph 0") and not _GRAPH.search("aten::mm (graph 0.py:3)")
    assert [_LABEL.sub("", name) for name in ("aten::mm (a.py:3)", "exp_0 (a.py:3)", "exp_0")] == [
        "mm",
        "exp_0",
        "exp_0",
    ]
