"""Products of quantised matrices: one graph, scales in kernels, and eager's values."""

from __future__ import annotations

import re

import pytest
import torch

import fuselens
from benchmarks.quantised import PROGRAMS, inputs

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]
# of the largest result: products whose operands are the same to the bit, and those in which a library sums otherwise
CLOSE = {"int8 dynamic by rows": 0.0, "fp8 dynamic by rows": 0.0, "fp8 dynamic, one scale": 0.0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees(name: str, device: str) -> None:
    function, given = PROGRAMS[name].function, inputs(name, 64, 256, 128, device)
    compiled = fuselens.compile(function, fullgraph=True)
    with torch.no_grad():
        try:
            wanted = function(*given)
        except RuntimeError as refused:  # some releases scale by rows on a GPU only
            with pytest.raises(RuntimeError, match=re.escape(str(refused)[:40])):
                compiled(*given)
            return
        found = compiled(*given)
    assert found.dtype is torch.bfloat16 and found.stride() == wanted.stride()
    limit = CLOSE.get(name, 2**-7) * wanted.abs().max().item()
    torch.testing.assert_close(found, wanted, atol=limit, rtol=0)
    (graph,) = compiled.__fuselens__.recorder.report.graphs
    assert not graph.fallback
    assert (
        device == "cuda" or sum("mm" in operator for operator in graph.externs) == 1
    )  # there products may be kernels of ours
