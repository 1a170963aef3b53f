"""Several calls of one function: eager's values each time, and no more compilations than ``torch.compile`` needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens

from .program import Program
from .programs import recompiles
from .test_peers import agree, parts, same


def outcomes(call: Callable[..., Any], program: Program) -> list[Any]:
    """What each call gives or raises, and leaves of its arguments."""
    torch.manual_seed(0)
    found = []
    for arguments in program.arguments():
        try:
            found.append(("gives", parts(call(*arguments)), parts(arguments)))
        except Exception as error:  # noqa: BLE001
            found.append(("raises", (type(error), str(error))))
    return found


def compilations(compile: Callable[..., Any], program: Program) -> tuple[int, list[Any]]:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    found = outcomes(compile(program.call, backend=backend), program)
    return len(graphs), found


def _case(program: Program) -> Any:
    marks = [pytest.mark.xfail(reason=program.gap, strict=True)] if program.gap else []
    return pytest.param(program, id=program.name, marks=marks)


@pytest.mark.parametrize("program", map(_case, recompiles.programs.all))
def test_recompiles(program: Program) -> None:
    wanted = outcomes(program.call, program)
    torch._dynamo.reset()
    most, peers = compilations(torch.compile, program)
    fuselens.reset()
    count, found = compilations(fuselens.compile, program)
    same(found, wanted)
    assert count <= most or not most or not agree(peers, wanted), (
        f"{count} compilations, where torch.compile has {most}"
    )
