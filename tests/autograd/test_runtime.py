"""The autograd node at run time: what callers of backward can do, and what must not leak."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compile_case
from torch import Tensor

from fuselens import torch_private
from tests.support.functions import mlp
from tests.support.tensors import leaf


def mlp_inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [leaf(4, 6, dtype=dtype), leaf(5, 6, dtype=dtype), leaf(5, dtype=dtype)]


def double(*shape: int) -> Tensor:
    return leaf(*shape, dtype=torch.float64)


FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "mlp": (mlp, lambda: [double(2, 3), double(4, 3), double(4)]),
    "layer-norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), lambda: [double(2, 6), double(6), double(6)]),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1).tanh(), lambda: [double(1, 1, 3, 3), double(2, 1, 3, 3)]),
    "matmul": (lambda x, y: (x @ y).exp() / 10, lambda: [double(3, 4), double(4, 2)]),
    "log-softmax": (lambda x: x.log_softmax(1), lambda: [double(3, 4)]),
    "silu-mul": (lambda x, y: F.silu(x) * y, lambda: [double(3, 4), double(3, 4)]),
    "batch-norm": (lambda x: F.batch_norm(x, None, None, training=True), lambda: [double(5, 3)]),
    "indexing": (lambda x: x[[0, 2, 2]].sin().cumsum(0), lambda: [double(4, 3)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name: str) -> None:
    fn, make = FUNCTIONS[name]
    inputs = make()
    compiled = compile_case(fn, inputs)
    assert torch.autograd.gradcheck(lambda *a: compiled.run(a), inputs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_backward(name: str) -> None:
    fn, make = FUNCTIONS[name]
    inputs = make()
    compiled = compile_case(fn, inputs)
    assert torch.autograd.gradgradcheck(lambda *a: compiled.run(a), inputs)
    assert compiled.doubles


def test_gradient_penalty_agrees() -> None:
    def penalty(run: Any, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        h = x * 2  # the graph's input is not a leaf
        (out,) = run((h, w, b))
        (g,) = torch.autograd.grad(out.square().sum(), h, create_graph=True)
        (g.square().sum() + out.sum()).backward()
        return [x.grad, w.grad, b.grad]

    torch.manual_seed(0)
    inputs = mlp_inputs()
    compiled = compile_case(mlp, inputs)
    actual = penalty(compiled.run, *[t.detach().clone().requires_grad_() for t in inputs])
    expected = penalty(lambda a: (mlp(*a),), *[t.detach().clone().requires_grad_() for t in inputs])
    torch.testing.assert_close(actual, expected)


def test_double_backward_repeats_the_dropout_mask() -> None:
    x = leaf(64, dtype=torch.float64)
    compiled = compile_case(lambda x: F.dropout(x * x, 0.5), [x])
    (out,) = compiled.run((x,))
    kept = out.detach() != 0
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.equal(g != 0, kept)
    (gg,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(gg, kept.double() * 4)


def test_double_backward_refuses_modified_inputs() -> None:
    x, y = leaf(3), leaf(3)
    h = y * 1
    compiled = compile_case(lambda x, h: x.sin() + h, [x, h])
    (out,) = compiled.run((x, h))
    h.add_(1)  # the first backward does not need it
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_double_backward_through_overwritten_input_raises() -> None:
    b, x = torch.randn(3), leaf(3)

    def fn(b: Tensor, x: Tensor) -> Tensor:
        y = x * b.sin()
        b.add_(1)
        return y

    compiled = compile_case(fn, [b, x])
    (out,) = compiled.run((b, x))
    with pytest.raises(RuntimeError, match="overwrote an input"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_retain_graph_and_second_backward() -> None:
    inputs = mlp_inputs()
    compiled = compile_case(mlp, inputs)
    (out,) = compiled.run(tuple(inputs))
    first = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(out.square().sum(), inputs)
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), inputs)


def test_allow_unused_and_partial_gradients() -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, y.sin()

    inputs = [leaf(3), leaf(3), leaf(3)]
    compiled = compile_case(fn, inputs)
    _, b = compiled.run(tuple(inputs))
    gx, gy, gz = torch.autograd.grad(b.sum(), inputs, allow_unused=True)
    assert gx is None and gz is None  # as eager: no path leads there
    torch.testing.assert_close(gy, inputs[1].cos())
    with pytest.raises(RuntimeError):
        torch.autograd.grad(compiled.run(tuple(inputs))[0].sum(), inputs)


def test_undefined_gradients_give_none() -> None:
    """A node all of whose tangents are undefined runs no backward."""

    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> None:
            return None

    x = leaf(3)
    compiled = compile_case(lambda x: x * 2, [x])
    Undefined.apply(compiled.run((x,))[0]).sum().backward()
    assert x.grad is None


def test_accumulation_and_distinct_gradients() -> None:
    x, y = leaf(3), leaf(3)
    compiled = compile_case(lambda x, y: x + y, [x, y])
    for _ in range(2):
        compiled.run((x, y))[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    x.grad.add_(1)
    torch.testing.assert_close(y.grad, torch.full((3,), 2.0))


def test_gradient_given_by_the_caller_is_not_stolen() -> None:
    x = leaf(3)
    compiled = compile_case(lambda x: x + 1, [x])
    g = torch.ones(3)
    compiled.run((x,))[0].backward(g)
    x.grad.add_(1)
    assert torch.equal(g, torch.ones(3))


def test_hooks_on_outputs_inputs_and_tensors() -> None:
    x = leaf(3)
    compiled = compile_case(lambda x: x * 3, [x])
    seen: list[str] = []
    (out,) = compiled.run((x,))
    out.register_hook(lambda g: (seen.append("output"), g * 2)[1])
    x.register_hook(lambda g: seen.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    out.retain_grad()
    out.sum().backward()
    assert seen == ["output", "leaf", "accumulated"]
    torch.testing.assert_close(x.grad, torch.full((3,), 6.0))
    assert out.grad is not None


def test_saved_tensor_hooks_see_what_eager_saves() -> None:
    inputs = mlp_inputs()
    compiled = compile_case(mlp, inputs)
    packed: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        (out,) = compiled.run(tuple(inputs))
        seen = len(packed)
        mlp(*inputs)
    assert seen == len(packed) - seen > 0
    out.square().sum().backward()
    expected = torch.autograd.grad(mlp(*inputs).square().sum(), inputs)
    torch.testing.assert_close([t.grad for t in inputs], list(expected))


def test_modified_saved_value_is_noticed() -> None:
    x = leaf(3)
    compiled = compile_case(lambda x: x.exp(), [x])
    (out,) = compiled.run((x,))
    with torch.no_grad():
        out.add_(1)
    if compiled.parts is not None and any(s.source == "result" for s in compiled.parts.saved):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_inplace_on_output_by_the_caller() -> None:
    x = leaf(4)
    compiled = compile_case(lambda x: (lambda y: (y + 1, y.view(2, 2)))(x * 2), [x])
    a, b = compiled.run((x,))
    a.mul_(3)
    b.add_(1)
    (a.sum() + b.sum()).backward()
    torch.testing.assert_close(x.grad, torch.full((4,), 8.0))


def test_inplace_on_aliased_output_reaches_its_sibling() -> None:
    x = leaf(4)
    compiled = compile_case(lambda x: (lambda y: (y, y.view(2, 2)))(x * 2), [x])
    a, b = compiled.run((x,))
    b.mul_(3)
    torch.testing.assert_close(a, x * 6)
    a.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4,), 6.0))


def test_ordinary_tangents_are_known_whatever_surrounded_the_first() -> None:
    torch_private.autograd._keys_of_memory.cache_clear()
    with torch.inference_mode():
        assert not torch_private.is_foreign(torch.ones(3))
    assert not torch_private.is_foreign(torch.ones(3))
    assert torch_private.is_foreign(torch.eye(3).to_sparse())


def test_tangents_in_foreign_layouts() -> None:
    x = leaf(4, 6)
    compiled = compile_case(lambda x: x.sin() * 2, [x])
    for g in (torch.randn(6, 4).t(), torch.ones(()).expand(4, 6), torch.randn(8, 12)[::2, ::2]):
        (out,) = compiled.run((x,))
        (actual,) = torch.autograd.grad(out, x, g)
        torch.testing.assert_close(actual, 2 * x.cos() * g)


def test_backward_is_compiled_at_the_first_backward_only() -> None:
    from fuselens.runtime.autograd_function import build

    x = leaf(3)
    compiled = compile_case(lambda x: x.sin(), [x])
    parts, built = compiled.parts, []
    assert parts is not None

    def compile_backward() -> Any:
        built.append(1)
        return lambda args: parts.backward(*args)

    run = build(parts.signature, lambda a: parts.forward(*a), saved=parts.saved, compile_backward=compile_backward)
    outs = [run((x,))[0] for _ in range(3)]
    assert not built
    for out in outs:
        out.sum().backward()
    assert built == [1]
    torch.testing.assert_close(x.grad, 3 * x.cos())
    with pytest.raises(RuntimeError, match="not available"):
        torch.autograd.grad(run((x,))[0].sum(), x, create_graph=True)


def test_anomaly_mode_and_gradient_scaling() -> None:
    inputs = mlp_inputs(torch.float32)
    compiled = compile_case(mlp, inputs)
    with torch.autograd.set_detect_anomaly(True):
        compiled.run(tuple(inputs))[0].square().sum().mul(1024.0).backward()
    scaled = [t.grad / 1024.0 for t in inputs]
    torch.testing.assert_close(scaled, list(torch.autograd.grad(mlp(*inputs).square().sum(), inputs)))


def test_called_under_no_grad() -> None:
    inputs = mlp_inputs(torch.float32)
    compiled = compile_case(mlp, inputs)
    with torch.no_grad():
        (out,) = compiled.run(tuple(inputs))
    assert not out.requires_grad
    torch.testing.assert_close(out, mlp(*inputs))


def test_fewer_inputs_require_grad_than_traced() -> None:
    x, w, b = mlp_inputs(torch.float32)
    compiled = compile_case(mlp, [x, w, b])
    (out,) = compiled.run((x.detach(), w, b.detach()))
    out.square().sum().backward()
    assert x.grad is None and b.grad is None and w.grad is not None


def test_outputs_need_not_be_used() -> None:
    b, x = torch.zeros(4), leaf(3, 4)

    def fn(b: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            b.add_(x.sum(0))
        return x.sin()

    compiled = compile_case(fn, [b, x])
    compiled.run((b, x))  # the backward never runs, the buffer is updated all the same
    torch.testing.assert_close(b, x.detach().sum(0))


def test_nothing_leaks_over_steps() -> None:
    inputs = mlp_inputs(torch.float32)
    compiled = compile_case(lambda x, w, b: (mlp(x, w, b), x.view(-1), F.dropout(x, 0.5)), inputs)

    def step(double: bool) -> weakref.ref[Tensor]:
        outs = compiled.run(tuple(inputs))
        loss = sum(o.sum() for o in outs)
        if double:
            grads = torch.autograd.grad(loss, inputs, create_graph=True)
            torch.autograd.grad(sum(g.sum() for g in grads), inputs, allow_unused=True)
        else:
            loss.backward()
        return weakref.ref(outs[0])

    step(False), step(True)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        references = [step(i % 10 == 0) for i in range(200)]
        assert all(r() is None for r in references), "outputs outlive their step without the cycle collector"
        assert len(gc.get_objects()) - before < 450  # the references themselves
    finally:
        gc.enable()


def test_saved_values_die_with_the_backward() -> None:
    x = leaf(4, 6)
    h = x * 2
    compiled = compile_case(lambda h: h.sin(), [h])
    (out,) = compiled.run((h,))
    alive = weakref.ref(h)
    out.sum().backward()
    del h
    assert alive() is None
    assert out is not None


def test_training_curve_matches_eager() -> None:
    def train(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        )
        parameters = list(module.parameters())
        names = [n for n, _ in module.named_parameters()]
        x, y = torch.randn(32, 8), torch.randint(0, 3, (32,))

        def loss(x: Tensor, y: Tensor, *values: Tensor) -> Tensor:
            out = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))
            return F.cross_entropy(out, y)

        state = torch.get_rng_state()
        run = compile_case(loss, [x, y, *parameters]).run if compiled else lambda a: (loss(*a),)
        torch.set_rng_state(state)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            (out,) = run((x, y, *parameters))
            out.backward()
            optimizer.step()
            losses.append(float(out.detach()))
        return losses

    torch.testing.assert_close(train(True), train(False), rtol=1e-5, atol=1e-6)


def test_autocast_around_the_graph() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm((x @ w).relu(), (5,)) @ w.t()

    torch.manual_seed(0)
    x, w = leaf(4, 6), leaf(6, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = compile_case(fn, [x, w])
        (actual,) = compiled.run((x, w))
        expected = fn(x, w)
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(
        torch.autograd.grad(actual.float().square().sum(), [x, w]),
        torch.autograd.grad(expected.float().square().sum(), [x, w]),
        rtol=5e-2,
        atol=5e-2,
    )
    assert any(n.meta["val"].dtype == torch.bfloat16 for n in compiled.joint.graph.nodes if n.name.startswith("mm"))


def test_saved_values_die_as_the_backward_reads_them() -> None:
    """What is kept is given up for the gradients, one by one: the backward needs little more than what was kept."""
    import fuselens
    from benchmarks.training import allocations

    def fn(x: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = (x @ w).relu()
        return x.sum()

    torch.manual_seed(0)
    weights = [torch.randn(128, 128, requires_grad=True) for _ in range(12)]
    compiled, x = fuselens.compile(fn, fullgraph=True), torch.randn(128, 128)
    compiled(x, *weights).backward()
    for w in weights:
        w.grad = None
    peak, gradients = allocations(lambda: compiled(x, *weights).backward())
    size = 128 * 128 * 4
    assert gradients == 12 * size and peak <= 17 * size
