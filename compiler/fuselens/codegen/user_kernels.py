"""The program's own Triton kernels as a text, beside those that are generated: their sources, with the lines that they come from."""

from __future__ import annotations

from ..ir.contracts.source import KernelInfo, Source, Writer
from ..ir.loops import Extern, Graph
from ..ir.user_kernels import LAUNCH, Launch, launch_of, launches
from ..record.report import Span


def user_kernels(graph: Graph) -> Source | None:
    """A function for each kernel that the graph launches; None without any."""
    calls: dict[tuple[str, str], list[tuple[Launch, Extern]]] = {}
    for node in graph.externs():
        if launches(node):
            launch = launch_of(str(node.args[0]))
            calls.setdefault((launch.name, launch.source), []).append((launch, node))
    if not calls:
        return None
    out = Writer("#", "    ")
    out.put(f"# Triton kernels of the program that graph {graph.name} launches. Not written by fuselens.")
    infos: list[KernelInfo] = []
    for (name, text), made in calls.items():
        launch, spans = made[0][0], tuple(dict.fromkeys(s for _, node in made for s in node.spans))
        written = tuple(dict.fromkeys(b for _, node in made for b in (*node.mutates, *node.outputs) if b))
        infos.append(KernelInfo(name, "launch", (), written, (), (str(LAUNCH),), spans))
        out.put()
        head, *body = text.rstrip().split("\n")
        out.put(head, spans)
        for number, line in enumerate(body, launch.line + 1):
            out.put(
                line, (Span(launch.file, number, 0, number, len(line.encode())),) if line.strip() else (), note=False
            )
    return Source("user_triton", out.text(), out.lines(), tuple(infos))
