"""Collectives start early and are waited for late, in the order of the program, and nothing touches their memory meanwhile."""

from __future__ import annotations

from fuselens.ir.loops import Extern, Graph, Node
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.schedule.order import order

BUFFERS = "graph g\n  input x: f32[8, 8] strides [8, 1]\n  input w: f32[8, 8] strides [8, 1]\n" + "".join(
    f"  buffer {n}: f32[8, 8] strides [8, 1]\n" for n in "abcdefgh"
)


def neg(name: str, source: str) -> str:
    return (
        f"  kernel {name} [i0 < 8, i1 < 8]\n    phase\n      t0 = load {source}[8*i0 + i1] : f32\n"
        f"      t1 = neg t0 : f32\n      store {name}[8*i0 + i1] = t1\n"
    )


def mm(name: str, a: str, b: str) -> str:
    return f"  extern {name} = aten.mm.default({a}, {b})\n"


def reduce(name: str, source: str, after: str = "None") -> str:
    return f"  extern {name} = fuselens.all_reduce.default({source}, 'sum', '0', {after})\n"


def ordered(text: str) -> Graph:
    graph = parse(BUFFERS + text)
    verify(graph)
    result = order(graph)
    verify(result)
    return result


def steps(graph: Graph) -> str:
    def told(node: Node) -> str:
        kind = node.target.split(".")[1] if isinstance(node, Extern) else ""
        if isinstance(node, Extern) and node.mutates:
            return f"wait {node.mutates[0]}"
        return f"{'start ' if kind.startswith('start') else 'all of ' if kind == 'all_reduce' else ''}{node.name}"

    return ", ".join(map(told, graph.nodes))


def test_what_is_independent_runs_between_start_and_wait() -> None:
    graph = ordered(
        mm("c", "x", "w")
        + mm("a", "x", "x")
        + reduce("b", "a")
        + mm("d", "c", "w")
        + mm("e", "b", "d")
        + "  return e\n"
    )
    assert steps(graph) == "c, a, start b, d, wait b, e"


def test_the_report_tells_what_runs_meanwhile() -> None:
    graph = ordered(
        mm("c", "x", "w")
        + reduce("b", "c")
        + mm("d", "x", "x")
        + neg("e", "d")
        + reduce("f", "b", "b")
        + mm("g", "f", "e")
        + "  return g\n"
    )
    told = [(d.verdict, d.subject, d.reason) for d in graph.decisions if d.code == "FL418"]
    assert told[0] == ("overlapped", "all_reduce of 256 bytes", "1 kernel and 1 call run meanwhile")
    assert told[1] == ("waited", "all_reduce of 256 bytes", "nothing that is independent runs meanwhile")


def test_nothing_independent_leaves_the_collective_whole() -> None:
    graph = ordered(mm("a", "x", "x") + reduce("b", "a") + mm("c", "b", "w") + "  return c\n")
    assert steps(graph) == "a, all of b, c"


def test_a_result_of_the_graph_is_waited_for_at_its_end() -> None:
    graph = ordered(reduce("b", "x") + mm("c", "x", "w") + mm("d", "c", "w") + "  return b, d\n")
    assert steps(graph) == "start b, c, d, wait b"


def test_collectives_start_in_the_order_of_the_program() -> None:
    """The operands of the second are there first."""
    graph = ordered(
        mm("a", "x", "w") + reduce("b", "a") + reduce("c", "x", "b") + mm("d", "x", "x") + "  return b, c, d\n"
    )
    assert steps(graph) == "a, start b, start c, d, wait b, wait c"


def test_one_that_needs_the_result_of_another_waits_for_it() -> None:
    graph = ordered(reduce("b", "x") + reduce("c", "b", "b") + mm("d", "x", "x") + "  return c, d\n")
    assert steps(graph) == "all of b, start c, d, wait c"


def test_memory_is_not_taken_over_while_a_collective_reads_or_writes_it() -> None:
    """The memory of what is communicated would fit what is computed meanwhile."""
    text = mm("h", "x", "x") + reduce("b", "h") + neg("c", "w") + mm("d", "c", "w") + neg("e", "b") + mm("f", "e", "d")
    graph = ordered(text + "  return f\n")
    assert steps(graph) == "h, start b, c, d, wait b, e, f"
    assert graph.reuse.get("c") is None
    assert graph.reuse == {"e": "b"}


def test_what_may_raise_runs_while_no_collective_does() -> None:
    text = reduce("b", "x") + mm("c", "x", "w") + "  extern d = aten.linalg_inv.default(c)\n" + mm("e", "d", "w")
    graph = ordered(text + reduce("f", "x", "b") + "  return b, e, f\n")
    assert steps(graph) == "start b, c, wait b, d, start f, e, wait f"


def test_memory_grows_by_little() -> None:
    """What is communicated is large beside what follows, and would stay until the end."""
    text = "graph g\n  input x: f32[1024, 1024] strides [1024, 1]\n"
    text += "".join(f"  buffer {n}: f32[1024, 1024] strides [1024, 1]\n" for n in ("a", "b", "c", "d", "e"))
    text += (
        mm("a", "x", "x")
        + reduce("b", "a")
        + mm("c", "x", "x")
        + mm("d", "c", "x")
        + mm("e", "b", "d")
        + "  return e\n"
    )
    graph = parse(text)
    assert steps(order(graph)) == "a, all of b, c, d, e"
