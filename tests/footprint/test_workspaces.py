"""The scratch memory of libraries, beside what an H200 was seen to take."""

from __future__ import annotations

import pytest

from fuselens.footprint import workspaces


def image(*sizes: int, last: bool = False) -> workspaces.Tensor:
    n, c, h, w = sizes
    return sizes, (h * w * c, 1, w * c, c) if last else (c * h * w, h * w, w, 1), 4


@pytest.mark.parametrize("last", [False, True])
def test_convolutions(last: bool) -> None:
    x, w, y = image(64, 64, 56, 56, last=last), image(64, 64, 3, 3, last=last), image(64, 64, 56, 56, last=last)
    seen = {False: 155_337_216 - 52_428_800, True: 512}  # peak above what is kept
    assert workspaces.taken("convolution", [x, w], [y]) == pytest.approx(seen[last], rel=1e-3, abs=1024)
    seen = {False: 156_500_992 - 51_527_680, True: 54_641_664 - 52_576_256}
    found = workspaces.taken("convolution_backward", [y, x, w], [x, w])
    assert found == pytest.approx(seen[last], abs=3 << 20)


def test_a_result_that_is_laid_out_otherwise_is_copied() -> None:
    x, w, grad = image(64, 64, 128, 128, last=True), image(32, 64, 3, 3), image(64, 32, 128, 128, last=True)
    made = image(64, 64, 128, 128)
    assert workspaces.taken("convolution_backward", [grad, x, w], [made], settles=True) == 256 << 20
    assert workspaces.taken("convolution_backward", [grad, x, w], [made]) == 0


def test_a_product_of_onednn_copies_a_transposed_operand() -> None:
    plain, turned = ((4096, 2048), (2048, 1), 4), ((2048, 4096), (1, 2048), 4)
    assert workspaces.copied("_linear_pointwise", [plain, plain]) == 0
    assert workspaces.copied("_linear_pointwise", [turned, plain]) == 32 << 20


def test_a_workspace_of_cublas() -> None:
    assert workspaces.kept(90) == 37_748_736 - 4_194_304
    assert workspaces.kept(80) == 8_519_680
