"""Every ``nn.Module`` that torch's own test suite knows, in training and evaluation, compared with eager.

For each sample: outputs, gradients of inputs and parameters, buffers and the random state, cold, from the cache, and with
twice the batch. A seeded part runs always, all of it in ``make sweep``.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fuselens
from fuselens.inputs import comparison
from fuselens.record import report

from .databases import database

MODULES = {info.name: info for info in database("common_modules").module_db}
CASES = [(name, mode) for name in sorted(MODULES) for mode in ("train", "eval")]
IN_CI = sorted(random.Random(3).sample(CASES, 16))
SAMPLES = 3  # of each in CI
FALLBACKS = ("FL301", "FL402", "FL404")

# what must break the graph, and the code of the break
EXPECTED = {
    "FL102": ("BatchNorm", "GaussianNLLLoss", "TransformerEncoder", "Transformer"),  # data decides what is computed
    "FL103": ("InstanceNorm", "LinearCrossEntropyLoss"),  # warn
    "FL104": ("LinearCrossEntropyLoss",),
    "FL105": ("Lazy",),  # tensors without a shape
    "FL107": ("Bilinear", "FractionalMaxPool"),  # no symbolic batch; raises
    "FL108": ("CTCLoss",),
    "FL110": ("Lazy", "LinearCrossEntropyLoss"),
    "FL116": ("FractionalMaxPool",),
}


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def copied(value: Any) -> Any:
    def copy_leaf(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return v.detach().clone().requires_grad_(v.requires_grad)
        return copy.deepcopy(v)

    return pytree.tree_map(copy_leaf, value)


def twice(value: Any) -> Any:
    """The inputs with twice the batch."""
    size = next((t.shape[0] for t in tensors(value) if t.dim()), None)

    def double(v: Any) -> Any:
        if isinstance(v, torch.Tensor) and v.dim() and v.shape[0] == size:
            return torch.cat([v.detach(), v.detach().flip(0)]).requires_grad_(v.requires_grad)
        return v

    return pytree.tree_map(double, value)


def once(function: Callable[..., Any], module: torch.nn.Module, given: Any) -> Any:
    """All that a forward and a backward do."""
    torch.manual_seed(7)
    args, kwargs = copied(given)
    try:
        result = function(*args, **kwargs)
    except Exception as e:  # noqa: BLE001 - compared
        return type(e), str(e)
    roots = [v for v in tensors(result) if v.requires_grad]
    torch.autograd.backward(roots, [torch.linspace(0.5, 1.5, v.numel()).to(v.dtype).view(v.shape) for v in roots])
    gradients = [v.grad for v in (*tensors((args, kwargs)), *module.parameters())]
    module.zero_grad()
    detached = pytree.tree_map(lambda v: v.detach() if isinstance(v, torch.Tensor) else v, result)
    requires = [v.requires_grad for v in tensors(result)]
    buffers = {k: v.clone() for k, v in module.state_dict().items()}
    return detached, requires, gradients, buffers, torch.get_rng_state(), tensors((args, kwargs))


def check_sample(name: str, sample: Any, training: bool, backend: str = "eager") -> list[report.Diagnostic]:
    """Asserts that a sample agrees with eager; what the report says of graphs that ran eagerly."""
    torch.manual_seed(0)
    info, made, given = MODULES[name], sample.constructor_input, sample.forward_input
    eager = info.module_cls(*made.args, **made.kwargs).train(training)
    module = copy.deepcopy(eager)
    fuselens.reset()
    compiled = fuselens.compile(module, backend=backend, options={"fallback_random": True})
    inputs = [(given.args, given.kwargs)] * 2
    doubled = twice(inputs[0])
    probe = copy.deepcopy(eager)
    if not any(isinstance(once(probe, probe, g)[0], type) for g in (inputs[0], doubled)):
        inputs += [doubled] * 2
    for i, args in enumerate(inputs):
        expected, actual = once(eager, eager, args), once(compiled, module, args)
        difference = comparison.differ(expected, actual, f"call {i} of {sample.desc or name}")
        assert difference is None, difference
    record = compiled.__fuselens__.recorder.report
    for found in (*record.breaks, *(d for d in record.diagnostics if d.code in ("FL109", "FL112", "FL202"))):
        assert any(part in name for part in EXPECTED.get(found.code, ())), (
            f"{sample.desc}: {found.code} {found.message}"
        )
    return [d for d in record.diagnostics if d.code in FALLBACKS]


def check_all(
    name: str, mode: str, limit: int | None, backend: str = "eager", dtype: torch.dtype = torch.float32
) -> list[report.Diagnostic]:
    info, training = MODULES[name], mode == "train"
    torch.manual_seed(0)
    samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    found = []
    for sample in samples[:limit]:
        if sample.forward_input is not None:
            found += check_sample(name, sample, training, backend)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "mode"), IN_CI)
def test_agrees_with_eager(name: str, mode: str) -> None:
    check_all(name, mode, SAMPLES)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_all_agree_with_eager(name: str, mode: str) -> None:
    check_all(name, mode, None)


# what the default backend runs as it was captured, and why
REFUSED = {"LSTM": "runs otherwise where autograd records"}


def check_trained(name: str, mode: str, limit: int | None, dtype: torch.dtype) -> None:
    for refusal in check_all(name, mode, limit, "fuselens", dtype):
        assert any(part in name and why in refusal.message for part, why in REFUSED.items()), refusal.message


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "mode"), IN_CI[::2])
def test_trained_by_default(name: str, mode: str) -> None:
    check_trained(name, mode, 2, torch.float32)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_all_trained_by_default(name: str, mode: str, dtype: torch.dtype) -> None:
    check_trained(name, mode, None, dtype)
