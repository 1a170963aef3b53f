"""Frozen parameters and buffers: computed once, noticed when they change, and eager's results either way."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens.record.report import Graph, Report
from tests.support.tensors import assert_same


class Affine(nn.Module):
    """Reads parameters in more ways than layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.scale = nn.Parameter(torch.rand(5, 1) + 0.5)
        self.register_buffer("shift", torch.randn(5))

    def forward(self, x: Tensor) -> Any:
        weight = (self.weight * self.scale).softmax(-1)
        return F.linear(x, weight, self.shift.exp()), weight.sum(), self.weight.t() * 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.embedding((x[:, :4] * 3).long() % 7)) @ (self.embedding.weight * 0.5).t()


def norm(module: nn.Module) -> nn.Module:
    assert isinstance(module.running_mean, Tensor) and isinstance(module.running_var, Tensor)
    module.running_mean.normal_()
    module.running_var.uniform_(0.5, 2)
    nn.init.normal_(module.weight)  # type: ignore[arg-type]
    nn.init.normal_(module.bias)  # type: ignore[arg-type]
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "conv-bn": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), norm(nn.BatchNorm2d(8)), nn.ReLU()), (2, 3, 6, 6), 4),
    "conv-bn without bias": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, bias=False, groups=2), norm(nn.BatchNorm2d(8))), (2, 4, 6, 6), 4,
    ),
    "conv1d-bn": (lambda: nn.Sequential(nn.Conv1d(3, 8, 3), norm(nn.BatchNorm1d(8))), (2, 3, 9), 4),
    "transposed conv-bn": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 3, 3), norm(nn.BatchNorm2d(3))), (2, 3, 6, 6), 1),
    "linear-bn": (lambda: nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5)), nn.GELU()), (4, 6), 4),
    "bn alone": (lambda: norm(nn.BatchNorm1d(6)), (4, 6), 1),
    "affine": (Affine, (4, 6), 2),
    "tied": (Tied, (4, 6), 1),
    "bn after two uses": (lambda: nn.Sequential(nn.Linear(6, 6), nn.SiLU(), norm(nn.BatchNorm1d(6))), (4, 6), 1),
    "nothing to fold": (lambda: nn.Linear(6, 5), (4, 6), 0),
}  # fmt: skip


def frozen(module: nn.Module, **options: Any) -> Any:
    return fuselens.compile(module, options={"freezing": True}, **options)


def report_of(compiled: Any) -> Report:
    return compiled.__fuselens__.recorder.report


def folded(graph: Graph) -> list[str]:
    return [d.subject for d in graph.decisions if d.code == "FL414"]


def module_agrees(compiled: Any, module: nn.Module, x: Tensor, tolerance: float = 1e-5) -> None:
    expected = module(x)
    assert_same(compiled(x), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", MODULES)
def test_agrees_with_eager_also_after_changes(name: str, mode: Any) -> None:
    make, shape, least = MODULES[name]
    torch.manual_seed(0)
    module, x = make().eval(), torch.rand(shape)
    compiled = frozen(module)
    with mode():
        module_agrees(compiled, module, x)
        module_agrees(compiled, module, x)
        graphs = report_of(compiled).graphs
        assert len(graphs) == 1 and len(folded(graphs[0])) >= least
        with torch.inference_mode(False), torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.5)
        module_agrees(compiled, module, x)
        assert (len(report_of(compiled).graphs) > 1) == bool([*module.parameters()])


def test_every_way_of_changing_a_parameter() -> None:
    module = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval()
    linear, x = module[0], torch.randn(4, 6)
    compiled = frozen(module)
    state = {k: torch.rand_like(v) if v.is_floating_point() else v for k, v in module.state_dict().items()}

    def replace() -> None:
        linear.weight = nn.Parameter(torch.randn(5, 6))

    def give_data() -> None:
        linear.weight.data = torch.randn(5, 6)

    with torch.no_grad():
        module_agrees(compiled, module, x)
        for change in (replace, give_data, lambda: module.load_state_dict(state), lambda: linear.bias.zero_()):
            change()
            module_agrees(compiled, module, x)
    assert any("a frozen tensor changed" in d.message for d in report_of(compiled).diagnostics)


def test_many_changes_end_freezing() -> None:
    module, x = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval(), torch.randn(4, 6)
    compiled = fuselens.compile(module, options={"freezing": True, "recompile_limit": 2})
    with torch.no_grad():
        for _ in range(5):
            module[0].weight.mul_(1.1)
            module_agrees(compiled, module, x)
    graphs = report_of(compiled).graphs
    assert len(graphs) == 3 and not folded(graphs[-1])


def test_earlier_states_are_known_again() -> None:
    module, x = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval(), torch.randn(4, 6)
    weights = [nn.Parameter(torch.randn(5, 6)) for _ in range(2)]
    compiled = frozen(module)
    with torch.no_grad():
        for i in range(6):
            module[0].weight = weights[i % 2]
            module_agrees(compiled, module, x)
    assert len(report_of(compiled).graphs) == 2


def test_training_graphs_are_not_frozen() -> None:
    module, x = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval(), torch.randn(4, 6)
    compiled = frozen(module)
    module_agrees(compiled, module, x)
    compiled(x).sum().backward()
    assert module[0].weight.grad is not None
    assert [d.code for d in report_of(compiled).diagnostics] == ["FL304"]
    assert not folded(report_of(compiled).graphs[0])


def test_statistics_that_the_graph_updates_are_not_frozen() -> None:
    module, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).train(), torch.randn(4, 6)
    other = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).train()
    other.load_state_dict(module.state_dict())
    compiled = frozen(module)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(module.state_dict(), other.state_dict())


def test_casts_of_autocast_are_folded() -> None:
    module, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval(), torch.randn(4, 16)
    compiled = frozen(module)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        module_agrees(compiled, module, x, 2e-2)
        (graph,) = report_of(compiled).graphs
        assert len(folded(graph)) == 4  # two weights, two biases
        assert all(d.data["bytes"] <= 2 * 16 * 32 for d in graph.decisions if d.code == "FL414")
    with torch.no_grad():
        module[0].bias.add_(1)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):  # which remembers casts while it is entered
        module_agrees(compiled, module, x, 2e-2)


def test_the_caller_may_write_to_what_depends_on_parameters_alone() -> None:
    module, x = Affine().eval(), torch.randn(4, 6)
    compiled = frozen(module)
    with torch.no_grad():
        for _ in range(2):
            expected, actual = module(x), compiled(x)
            torch.testing.assert_close(actual, expected)
            for t in actual:
                t.zero_()


def test_other_sizes_share_the_constants() -> None:
    module = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval()
    compiled = frozen(module, dynamic=True)
    with torch.no_grad():
        for n in (3, 5, 8):
            module_agrees(compiled, module, torch.randn(n, 6))
    assert len(report_of(compiled).graphs) == 1


def test_models_are_not_kept_alive() -> None:
    def run() -> weakref.ref[nn.Module]:
        module = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval()
        with torch.no_grad():
            frozen(module)(torch.randn(4, 6))
        return weakref.ref(module[0].weight)  # type: ignore[return-value]

    alive = run()
    gc.collect()
    assert alive() is None


def test_inference_tensors_are_not_frozen() -> None:
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5))).eval()
        compiled = frozen(module)
        x = torch.randn(4, 6)
        module_agrees(compiled, module, x)
        module[0].weight.mul_(2)
        module_agrees(compiled, module, x)
