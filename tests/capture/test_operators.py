"""Every operator that torch's own test suite knows, captured whole and compared with eager.

For each ``OpInfo`` with its first samples: the function, the method and the in-place method, cold and from the cache, in
values, dtypes, strides, aliasing of results with arguments and with each other, and gradients. A seeded part of it runs
always, all of it with ``-m slow``. The same with the default backend, and torch's ``gradcheck``: a seeded part always, all
of it in ``make sweep``.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fuselens
from fuselens.inputs import comparison

from .operator_samples import NOT_SHARED, OPERATORS, RESHAPING, UNINITIALISED, observe, tensors

SAMPLES = 2
IN_CI = sorted(random.Random(2).sample(sorted(OPERATORS), 60))
TRAINED_IN_CI = sorted(
    {*random.Random(6).sample(sorted(OPERATORS), 24), "fft.hfft2", "linalg.eig", "nn.functional.one_hot"}
)

# what must break the graph, and the code of the break
DATA_DEPENDENT = {
    "FL102": {"allclose", "equal", "istft", "nn.functional.one_hot"},
    "FL107": {"tensor_split"},
    "FL108": {"linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss"},
    "FL104": {"to_sparse", "torch._scaled_mm_v2"},
    "FL105": {"sparse.mm.reduce", "sparse.sampled_addmm"},
}  # fmt: skip
PYTHON = ("masked.", "jiterator", "nn.functional.linear_cross_entropy")  # their Python code is not traced yet
EXPECTED = {name: code for code, names in DATA_DEPENDENT.items() for name in names}
# what the default backend runs as it was captured, and why
REFUSED = {
    "chalf": "torch.complex32", "hash_tensor": "torch.uint64", "torch._scaled_mm": "torch.float8_e4m3fn",
    "index_fill": "aten._unique.default", "index_put": "aten.nonzero.default", "nn.functional.dropout3d": "in place",
    **dict.fromkeys(("linalg.eig", "linalg.eigvals"), "checks values"),
    **dict.fromkeys(("norm", "linalg.norm.subgradients_at_zero"), "reaches none of its inputs"),
}  # fmt: skip
ROUNDED = {"nn.functional.scaled_dot_product_attention"}  # in float32 eager's own error is as large as the difference
FALLBACKS = ("FL301", "FL302", "FL402", "FL404")


def variants(op: Any, wanted: torch.dtype) -> list[tuple[str, Callable[..., Any], list[Any], bool]]:
    """(kind, function, samples, whether it works in place), of ``wanted`` where the operator takes it."""
    dtypes = op.supported_dtypes("cpu")
    if not dtypes:
        return []
    dtype = wanted if wanted in dtypes else sorted(dtypes, key=str)[0]
    grad = op.supports_autograd and dtype.is_floating_point
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES))
    found = [("function", op.op, samples, False)]
    if op.method_variant is not None:
        found.append(("method", op.method_variant, samples[:1], False))
    if op.inplace_variant is not None:
        found.append(("in place", op.inplace_variant, samples[:1], True))
    return found


def failure(
    name: str, backend: str = "eager", dtype: torch.dtype = torch.float32, fallbacks: dict[str, str] | None = None
) -> str | None:
    """What differs from eager for any variant of an operator, in words; a break's code and message.

    ``fallbacks``, where given, takes what the report says of graphs that ran eagerly; then breaks are no failures.
    """
    options = {"fallback_random": True} if backend == "fuselens" else {}
    for kind, fn, samples, in_place in variants(OPERATORS[name], dtype):
        for n, sample in enumerate(samples):
            fuselens.reset()

            reshapes = getattr(fn, "__name__", "") in RESHAPING

            def call(first: Any, *args: Any, fn: Any = fn, reshapes: bool = reshapes, **kwargs: Any) -> Any:
                return fn(first.clone() if reshapes else first, *args, **kwargs)

            expected = observe(call, sample, in_place)
            compiled = fuselens.compile(call, backend=backend, fullgraph=fallbacks is None, options=options)
            for attempt in ("cold", "cached"):
                where = f"{name} ({kind}, sample {n}, {attempt})"
                try:
                    actual = observe(compiled, sample, in_place)
                except fuselens.GraphBreakError as error:
                    if error.diagnostic.code == "FL107" and "exception" in expected:
                        break  # eager raises the operator's error
                    return f"{error.diagnostic.code}: {error.diagnostic.message} in {where}"
                if name in UNINITIALISED:
                    expected, actual = ({"layout": seen.get("layout")} for seen in (expected, actual))
                if name in NOT_SHARED and fallbacks is not None:
                    expected, actual = ({**seen, "layout": None} for seen in (expected, actual))
                difference = comparison.differ(expected, actual, where)
                if difference is not None:
                    return difference
            if fallbacks is not None:
                found = compiled.__fuselens__.recorder.report.diagnostics
                fallbacks |= {
                    f"{d.code}: {d.message}": f"{name} ({kind}, sample {n})" for d in found if d.code in FALLBACKS
                }
    return None


def gradcheck(name: str) -> str | None:
    """What torch's ``gradcheck`` finds in the compiled operator, and not in eager's."""
    op = OPERATORS[name]
    if torch.float64 not in op.supported_backward_dtypes("cpu") or not op.supports_autograd:
        return None
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), SAMPLES):
        leaves = [t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
        if sum(t.numel() for t in leaves) > 60:
            continue

        def call(*given: torch.Tensor, fn: Any = op.op, sample: Any = sample, leaves: Any = leaves) -> Any:
            known = dict(zip(map(id, leaves), given, strict=True))
            place = lambda leaf: known.get(id(leaf), leaf)  # noqa: E731
            args, kwargs = pytree.tree_map(place, ((sample.input, *sample.args), sample.kwargs))
            results = [t for t in tensors(sample.output_process_fn_grad(fn(*args, **kwargs))) if t.requires_grad]
            return tuple(results)

        compiled = fuselens.compile(call, options={"fallback_random": True})
        outcomes = []
        for function in (call, compiled):

            def seeded(*given: torch.Tensor, function: Any = function) -> Any:
                torch.manual_seed(0)
                return function(*given)

            try:
                torch.autograd.gradcheck(seeded, [t.detach().clone().requires_grad_() for t in leaves], nondet_tol=1e-9)
                outcomes.append("")
            except Exception as error:  # noqa: BLE001 - compared
                outcomes.append(f"{type(error).__name__}: {error}")
        if outcomes[1] and not outcomes[0]:
            return outcomes[1]
    return None


def verify(name: str) -> None:
    if name.startswith(PYTHON):
        pytest.skip("Python that is not traced yet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = failure(name)
    expected = EXPECTED.get(name)
    if expected is None:
        assert found is None, found
    else:
        assert found is not None and found.startswith(expected), (
            found or f"{name} is captured: it is listed as breaking"
        )


@pytest.mark.parametrize("name", IN_CI)
def test_operator(name: str) -> None:
    verify(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(OPERATORS) - set(IN_CI)))
def test_every_operator(name: str, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.option.markexpr:
        pytest.skip("four minutes: pytest -m slow")
    verify(name)


def verify_trained(name: str, dtype: torch.dtype) -> None:
    """The default backend: values, gradients and aliasing, and what runs eagerly for which reason."""
    refusals: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = failure(name, "fuselens", dtype, refusals)
        found = found or gradcheck(name)
    assert found is None, found
    assert all(REFUSED.get(name, "?") in why for why in refusals), refusals


@pytest.mark.parametrize("name", TRAINED_IN_CI)
def test_operator_trained(name: str) -> None:
    verify_trained(name, torch.float64)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_trained(name: str, dtype: torch.dtype) -> None:
    if dtype is torch.float64 or name not in ROUNDED:
        verify_trained(name, dtype)
