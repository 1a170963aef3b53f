"""What is said of two results that should agree."""

from __future__ import annotations

import pytest
import torch

from fuselens.inputs.comparison import differ

LAYOUTS = ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_are_compared_by_their_values(layout: str, dtype: torch.dtype) -> None:
    value = torch.eye(3, dtype=dtype)
    expected, alike, other = (getattr(t, layout)() for t in (value, value.clone(), value.roll(1, 0)))
    assert differ(expected, alike, "result") is None
    told = differ(expected, other, "result")
    assert told is not None and told.startswith("result: 6 of 9 elements differ, first at (0, 0)")
