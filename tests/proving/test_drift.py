"""How far the values of lines are from float64, eagerly and compiled."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F

from fuselens.proving.proof import Prover
from fuselens.record.printed import proved
from fuselens.record.report import Drift, Proof, Span

from .test_kinds import Function

HERE = __file__


def drift(target: Any, *args: Any) -> tuple[Proof, dict[str, Drift]]:
    """The proof, and the drift of each line by what it says in its comment."""
    prover = Prover(Function(target, args), "step", HERE, gradients=False)
    first = prover.tried(next(prover._kinds()))
    found = dataclasses.replace(Proof("step", (first,)), drift=prover._drift())
    source = open(HERE).read().splitlines()
    return found, {source[d.span.line - 1].partition("# ")[2]: d for d in found.drift if d.span.file == HERE}


def cancels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.bfloat16() @ w.bfloat16()  # product
    h = F.gelu(h)  # activation
    large = h + 200  # large
    back = large - 200  # back
    return back.float().tanh()  # result


def test_the_line_that_loses_digits() -> None:
    torch.manual_seed(0)
    found, lines = drift(cancels, torch.randn(64, 32), torch.randn(32, 48))
    assert list(lines) == ["product", "activation", "large", "back", "result"]
    assert all(1e-3 < lines[name].eager < 1e-2 for name in ("product", "activation", "large"))
    assert lines["product"].dtype == "bfloat16" and lines["product"].source is None and lines["product"].growth < 2
    back = lines["back"]
    assert back.eager > 0.02 and back.growth > 5 and back.source == lines["large"].span
    assert all(d.worst_eager >= d.eager and d.worst >= d.compiled for d in found.drift)
    assert proved.steepest(found) is back
    (said,) = (line for line in proved.lines(found, HERE) if "grows most" in line)
    assert f"at line {back.span.line}: " in said and f"that of line {back.span.line - 1}" in said
    first = found.tried[0]
    assert first.eager_error is not None and abs(first.eager_error - lines["result"].eager) < 1e-3, (
        "it is told, far as it is"
    )
    table = list(proved.drift_table(found, HERE))
    assert len(table) == 7 and table[5].endswith(": it grows most here")


def smooth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.gelu(x.bfloat16() @ w.bfloat16())
    h = h * 0.3 + 1
    return h.tanh() / 3  # result


def test_the_last_line_is_as_far_as_the_compiled_function() -> None:
    torch.manual_seed(0)
    found, lines = drift(smooth, torch.randn(64, 32), torch.randn(32, 48))
    first, result = found.tried[0], lines["result"]
    assert first.exact_error is not None and first.eager_error is not None
    assert abs(result.eager - first.eager_error) < 0.05 * result.eager
    assert abs(result.compiled - first.exact_error) < 0.3 * result.compiled


def writes(x: torch.Tensor) -> torch.Tensor:
    h = x.half() / 3  # third
    h.mul_(1.7)  # in place
    h[1:] = h[:-1] * 0.3  # assignment
    print(end="")  # a break
    return h.exp()  # after a break


def test_writes_and_several_graphs() -> None:
    found, lines = drift(writes, torch.randn(9, 8))
    assert {"third", "in place", "assignment", "after a break"} <= set(lines), lines
    assert all(1e-5 < d.eager < 2e-3 and 1e-5 < d.compiled < 2e-3 for d in lines.values()), lines
    assert lines["in place"].source == lines["third"].span


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers:
                y = layer(x)  # layer
                x = x + torch.tanh(y)  # sum
        return x


def test_a_line_of_a_loop_under_autocast() -> None:
    torch.manual_seed(0)
    found, lines = drift(Layers(), torch.randn(8, 16))
    assert set(lines) == {"layer", "sum"} and lines["layer"].dtype == "bfloat16" and lines["sum"].dtype == "float32"
    assert found.tried[0].agrees and all(1e-4 < d.compiled < 2e-2 for d in found.drift)


def test_single_precision_has_none() -> None:
    found, _ = drift(lambda x: (x / 3).tanh(), torch.randn(4))
    assert found.drift == () and list(proved.drift_table(found, HERE)) == []


def test_words() -> None:
    one = Drift(Span("a.py", 3, 0, 3, 1), "bfloat16", 3.1e-3, 0.0, 1e-2, 0.0, 0.0)
    assert proved.drift_text(one, "a.py") == "3.1e-03 eager, 0 compiled, 0.0 × rounding to bfloat16"
    two = Drift(Span("b.py", 4, 0, 4, 1), "bfloat16", 3.1e-3, 6e-3, 1e-2, 1e-2, 4.2, one.span)
    assert proved.drift_text(two, "b.py") == "3.1e-03 eager, 6.0e-03 compiled, 4.2 × that of a.py:3"
    assert proved.steepest(Proof("f", drift=(one, two))) is two and proved.steepest(Proof("f", drift=(one,))) is None
