"""Graph modules of torch.fx, and the modules of exported programs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from fuselens.torch_private import PYTREE as pytree

from .harness import agrees_with_eager, check_training


def tensor(*shape: int, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return made.requires_grad_(grad)


class Around(nn.Module):
    """A module that calls another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.inner(*args, **kwargs)
        return result.sin() if isinstance(result, torch.Tensor) else result


# --- graph modules ----------------------------------------------------------------------------------------------


def graph_module(*layers: nn.Module) -> torch.fx.GraphModule:
    torch.manual_seed(0)
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), *layers, nn.ReLU()).double())


class Doubles(torch.fx.GraphModule):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) * 2


def doubling() -> torch.fx.GraphModule:
    made = graph_module()
    return Doubles(made, made.graph)


def hooked() -> torch.fx.GraphModule:
    made = graph_module()
    made.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    made.register_forward_hook(lambda m, args, result: result + 1)
    return made


GRAPH_MODULES: dict[str, Any] = {
    "plain": graph_module,
    "with buffers": lambda: graph_module(nn.BatchNorm1d(4)),
    "with hooks": hooked,
    "of a class with a call of its own": doubling,
    "a copy": lambda: copy.deepcopy(hooked()),
    "two in a row": lambda: nn.Sequential(graph_module(), hooked()),
}


@pytest.mark.parametrize("name", GRAPH_MODULES)
@pytest.mark.parametrize("around", [False, True], ids=["itself", "in a module"])
def test_graph_modules(name: str, around: bool) -> None:
    made = GRAPH_MODULES[name]()
    net = Around(made) if around else made
    agrees_with_eager(net.eval(), (tensor(3, 4),), (tensor(5, 4),), breaks=0)
    check_training(net.train(), tensor(3, 4, grad=True), breaks=0)


def test_a_graph_module_is_one_graph_with_what_follows() -> None:
    agrees_with_eager(Around(graph_module()), (tensor(3, 4),), breaks=0, graphs=1)


@pytest.mark.parametrize("how", ["called", "its forward"])
def test_a_graph_module_whose_graph_changes(how: str) -> None:
    made = graph_module()

    def f(x: torch.Tensor) -> Any:
        return made(x) if how == "called" else made.forward(x)

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tensor(3, 4)), f(tensor(3, 4)))
    relu = next(n for n in made.graph.nodes if n.target == "1")
    with made.graph.inserting_after(relu):
        negated = made.graph.call_function(torch.neg, (relu,))
    relu.replace_all_uses_with(negated)
    negated.args = (relu,)
    made.recompile()
    torch.testing.assert_close(compiled(tensor(3, 4)), f(tensor(3, 4)))


def test_errors_of_graph_modules(capsys: pytest.CaptureFixture[str]) -> None:
    bad = torch.fx.symbolic_trace(lambda x: x.reshape(5, 5))

    def catches(x: torch.Tensor) -> Any:
        try:
            return bad(x)
        except RuntimeError as e:
            return x + len(e.args)

    told = []
    for f in (bad, catches):
        for g in (f, fuselens.compile(f, backend="eager")):
            try:
                result: Any = g(tensor(3))
            except RuntimeError as e:
                result = str(e)
            told.append((result, capsys.readouterr().err))
    for (expected, said), (actual, said_too) in (told[:2], told[2:]):
        assert str(expected) == str(actual)
        assert "FX-traced Module" in said and "FX-traced Module" in said_too


# --- exported programs ------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4, dtype=torch.float64)
        self.register_buffer("shift", torch.ones(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin() + self.shift


class Structures(Net):
    def forward(self, x: torch.Tensor, rest: Any = None, *, named: Any = None) -> Any:
        rest = rest or (x, [x])
        return {"a": self.linear(x) + rest[1][0], "b": [rest[0].sin(), (named["k"] if named else x) * 2]}


class Branches(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: self.linear(a).sin(), lambda a: a.cos() * self.shift, (x,))


class BranchesBySize(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda a: a.sin(), lambda a: a.cos() * a.shape[0], (x,))


ROWS = torch.export.Dim("rows", min=2, max=8)


def exported(net: nn.Module, *args: Any, varying: bool = False, **kwargs: Any) -> nn.Module:
    shapes = ({0: ROWS},) if varying else None
    return torch.export.export(net, args, kwargs, dynamic_shapes=shapes).module()


@pytest.mark.parametrize("around", [False, True], ids=["itself", "in a module"])
def test_exported_programs(around: bool) -> None:
    net: nn.Module = exported(Net(), tensor(3, 4))
    net = Around(net) if around else net
    agrees_with_eager(net, (tensor(3, 4),), breaks=0, graphs=1)
    check_training(net, tensor(3, 4, grad=True), breaks=0)
    agrees_with_eager(net, (tensor(4, 4),))  # which the program refuses


@pytest.mark.parametrize("around", [False, True], ids=["itself", "in a module"])
def test_exported_programs_of_varying_sizes(around: bool) -> None:
    net: nn.Module = exported(Net(), tensor(3, 4), varying=True)
    net = Around(net) if around else net
    report = agrees_with_eager(net, *((tensor(n, 4),) for n in (3, 4, 5, 8)), breaks=0)
    assert len(report.graphs) <= 2
    check_training(net, tensor(5, 4, grad=True), breaks=0)
    agrees_with_eager(net, (tensor(9, 4),))  # which the program refuses


@pytest.mark.parametrize("around", [False, True], ids=["itself", "in a module"])
def test_exported_programs_of_structures(around: bool) -> None:
    x = tensor(3, 4)
    net: nn.Module = exported(Structures(), x, (x, [x]), named={"k": x, "z": x})
    net = Around(net) if around else net

    def f(x: torch.Tensor) -> Any:
        return net(x, (x + 1, [x * 2]), named={"k": x.exp(), "z": x})

    agrees_with_eager(f, (x,), breaks=0, graphs=1)
    for bad in (
        lambda x: net(x),
        lambda x: net(x, (x, [x]), named={"z": x}),
        lambda x: net(x, [x, [x]], named={"k": x}),
    ):
        agrees_with_eager(bad, (x,))


@pytest.mark.parametrize("sign", [1, -1])
def test_exported_branches(sign: int) -> None:
    x = tensor(3, 4).abs() * sign
    net = exported(Branches(), x)
    agrees_with_eager(net, (x,), breaks=0, graphs=1)
    for backend in ("eager", "aot_eager"):
        check_training(net, x.requires_grad_(), backend=backend, breaks=0, unused_gradients=True)


def test_exported_branches_by_size() -> None:
    net = exported(BranchesBySize(), tensor(3, 4), varying=True)
    agrees_with_eager(net, *((tensor(n, 4),) for n in (3, 4, 5, 6)), breaks=0)
    check_training(net, tensor(5, 4, grad=True), breaks=0)


def flatten_by_a_structure_made_here(x: torch.Tensor) -> Any:
    given = {"a": x, "b": (x + 1, [x * 2])}
    spec = pytree.tree_structure(given)
    return torch.fx._pytree.tree_flatten_spec({"b": [x, (x - 1,)], "a": x.sin(), "c": 1}, spec)


SPECS = {
    "outside": pytree.tree_structure({"a": 0, "b": (0, [0])}),
    "leaf": pytree.tree_structure(0),
}


@pytest.mark.parametrize(
    "f",
    [
        flatten_by_a_structure_made_here,
        lambda x: torch.fx._pytree.tree_flatten_spec({"a": x.sin(), "b": [x, [x]]}, SPECS["outside"]),
        lambda x: torch.fx._pytree.tree_flatten_spec(pytree=x.sin(), spec=SPECS["leaf"]),
        lambda x: pytree.tree_unflatten([x.sin()], SPECS["leaf"]),
    ],
)
def test_structures_of_exported_programs(f: Any) -> None:
    agrees_with_eager(f, (tensor(3),), breaks=0, graphs=1)


class Pair:
    """A node of trees that counts how many were made."""

    made = 0

    def __init__(self, parts: Any) -> None:
        Pair.made += 1
        self.parts = list(parts)


def test_classes_of_nodes_are_not_made_while_tracing() -> None:
    torch.utils._pytree.register_pytree_node(Pair, lambda p: (p.parts, None), lambda parts, context: Pair(parts))
    given = {"a": Pair([0, 1])}
    spec, before = pytree.tree_structure(given), Pair.made

    def f(x: torch.Tensor) -> Any:
        return len(torch.fx._pytree.tree_flatten_spec(given, spec)), x.sin()

    agrees_with_eager(f, (tensor(3),))
    assert Pair.made == before


def test_errors_of_structures() -> None:
    for given in ({"a": 1}, {"a": 1, "b": 3}, [1, 2], {"a": 1, "b": (1,)}):
        agrees_with_eager(
            lambda x, given=given: torch.fx._pytree.tree_flatten_spec(given, SPECS["outside"]), (tensor(3),)
        )


settings = torch._dynamo.dont_skip_tracing()


def test_settings_of_the_peer_compiler() -> None:
    decorated = settings(lambda x: x.sin() + 1)

    def block(x: torch.Tensor) -> Any:
        with settings:
            y = x.sin()
        return y + 1

    def broken(x: torch.Tensor) -> Any:
        with settings:
            y = x.sin()
            print(end="")
            y = y.cos()
        return y + 1

    agrees_with_eager(lambda x: decorated(x).cos(), (tensor(3),), breaks=0, graphs=1)
    agrees_with_eager(block, (tensor(3),), breaks=0, graphs=1)
    before = torch._dynamo.config.dont_skip_tracing
    agrees_with_eager(broken, (tensor(3),))
    assert torch._dynamo.config.dont_skip_tracing == before
