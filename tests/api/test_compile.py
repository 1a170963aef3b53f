"""What can be given to ``fuselens.compile``, with which arguments, and what comes back."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle

import pytest
import torch
from torch import nn

import fuselens
from fuselens import backends
from tests.support.tensors import t


def double(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Doubles."""
    return x * scale + 1


double.note = "kept"  # type: ignore[attr-defined]
compiled_double = fuselens.compile(double, backend="eager")


@fuselens.compile(backend="eager")
def decorated(x):
    return x.sin() + 1


def graphs(fn) -> int:
    return len(fn.__fuselens__.recorder.report.graphs)


def codes(fn) -> list[str]:
    report = fn.__fuselens__.recorder.report
    return [d.code for d in (*report.breaks, *report.diagnostics)]


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mode": "fast"}, ValueError, "unknown mode 'fast'; modes are default"),
        ({"backend": "nvfuser9"}, ValueError, r"unknown backend 'nvfuser9'; backends are .*aot_eager, eager, fuselens"),
        ({"backend": 3}, TypeError, "backend is a name or a function, not a int"),
        ({"options": {"taget": "cpu"}}, ValueError, r"unknown option 'taget'; known options are .*target"),
        ({"options": {"target": "sm_90"}}, ValueError, "target is 'sm_90': give auto, cpu, cuda or .* cuda:sm_90"),
        ({"options": {"freezing": "yes"}}, TypeError, "option freezing takes bool, not 'yes'"),
        ({"options": {"cache_dir": 3}}, TypeError, "option cache_dir takes Path, not 3"),
        ({"options": {"live": "auto"}}, TypeError, r"option live takes bool \| None, not 'auto'"),
        ({"options": {"assembly": [1]}}, TypeError, r"option assembly takes tuple.*, not \[1\]"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        fuselens.compile(double, **arguments)


@pytest.mark.parametrize("thing", [3, None.__class__, nn.Linear, torch.Tensor, "f", object()])
def test_what_is_not_compiled(thing):
    with pytest.raises(TypeError, match=r"fuselens\.compile expects a function or module"):
        fuselens.compile(thing)


def test_disable_argument_returns_the_function():
    assert fuselens.compile(double, disable=True) is double
    assert fuselens.compile(disable=True)(double) is double


def test_config_patch():
    with fuselens.config.patch(recompile_limit=3):
        inside = fuselens.compile(double)
        with fuselens.config.patch(strict=False):
            nested = fuselens.compile(double)
    assert inside.__fuselens__.config.recompile_limit == nested.__fuselens__.config.recompile_limit == 3
    assert not nested.__fuselens__.config.strict
    assert fuselens.compile(double).__fuselens__.config.recompile_limit == 8
    with pytest.raises(ValueError, match="unknown option 'recompile'"), fuselens.config.patch(recompile=3):
        pass


def test_options_as_texts(tmp_path):
    options = {"cache_dir": str(tmp_path), "assembly": "ptx,sass", "print_after": ["fuse"], "memory_budget": 1}
    config = fuselens.compile(double, options=options).__fuselens__.config
    assert (config.cache_dir, config.assembly, config.print_after) == (tmp_path, ("ptx", "sass"), ("fuse",))
    with fuselens.config.patch(cache_dir=str(tmp_path)):
        assert fuselens.compile(double).__fuselens__.config.cache_dir == tmp_path


# --- functions


def test_functions_keep_what_wraps_keeps():
    assert compiled_double.__name__ == "double"
    assert compiled_double.__doc__ == "Doubles."
    assert compiled_double.__module__ == __name__
    assert compiled_double.__wrapped__ is double
    assert compiled_double.note == "kept"
    assert compiled_double.__annotations__ == double.__annotations__
    assert inspect.signature(compiled_double) == inspect.signature(double)
    assert inspect.getsource(compiled_double) == inspect.getsource(double)
    torch.testing.assert_close(compiled_double(t(3), scale=3.0), double(t(3), 3.0))


def test_attributes_of_compiled_functions():
    fn = fuselens.compile(double, backend="eager")
    fn.extra = 1
    assert fn.extra == 1
    del fn.extra
    assert not hasattr(fn, "extra")
    assert not hasattr(double, "extra")


def test_compiling_twice_compiles_the_original():
    again = fuselens.compile(compiled_double, backend="eager")
    assert again.__fuselens__.target is double
    torch.testing.assert_close(again(t(3)), double(t(3)))


def test_wrapped_by_a_decorator_is_another_function():
    @functools.wraps(compiled_double)
    def wrapper(x):
        return compiled_double(x) + 1

    fn = fuselens.compile(wrapper, backend="eager")
    torch.testing.assert_close(fn(t(3)), double(t(3)) + 1)
    assert graphs(fn) == 1  # the compiled function inside is traced as its original


class Scaler:
    factor = 3.0

    def __init__(self, bias: float = 1.0) -> None:
        self.bias = bias

    @fuselens.compile(backend="eager")
    def method(self, x):
        return x * self.factor + self.bias

    @fuselens.compile(backend="eager")
    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @classmethod
    @fuselens.compile(backend="eager")
    def of_class_too(cls, x):
        return x * cls.factor

    @fuselens.compile(backend="eager")
    @staticmethod
    def static(x):
        return x + 4

    @staticmethod
    @fuselens.compile(backend="eager")
    def static_too(x):
        return x + 4

    @property
    @fuselens.compile(backend="eager")
    def doubled(self):
        return torch.ones(2) * self.bias

    def __call__(self, x):
        return x - self.bias

    def plain(self, x):
        return x / self.bias


class Child(Scaler):
    factor = 5.0

    def method(self, x):
        return super().method(x) + 1


def test_methods():
    x = t(3)
    torch.testing.assert_close(Scaler().method(x), x * 3 + 1)
    torch.testing.assert_close(Scaler(2.0).method(x), x * 3 + 2)
    torch.testing.assert_close(Child().method(x), x * 5 + 2)
    for cls in (Scaler, Child):
        torch.testing.assert_close(cls.of_class(x), x * cls.factor)
        torch.testing.assert_close(cls().of_class_too(x), x * cls.factor)
        torch.testing.assert_close(cls.static(x), x + 4)
        torch.testing.assert_close(cls().static_too(x), x + 4)
    torch.testing.assert_close(Scaler(2.0).doubled, torch.full((2,), 2.0))


def test_bound_methods_objects_and_partials():
    x, scaler = t(3), Scaler(2.0)
    bound = fuselens.compile(scaler.plain, backend="eager")
    torch.testing.assert_close(bound(x), x / 2)
    scaler.bias = 4.0
    torch.testing.assert_close(bound(x), x / 4)
    called = fuselens.compile(scaler, backend="eager")
    torch.testing.assert_close(called(x), x - 4)
    partial = fuselens.compile(functools.partial(double, scale=5.0), backend="eager")
    torch.testing.assert_close(partial(x), x * 5 + 1)
    assert graphs(bound) == 2
    assert graphs(called) == graphs(partial) == 1


@pytest.mark.parametrize("fn", [torch.relu, torch.Tensor.sin, torch.nn.functional.silu, abs])
def test_library_functions(fn):
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(t(3)), fn(t(3)))


def test_functions_of_c_may_have_no_signature_and_still_raise():
    compiled = fuselens.compile(torch.relu, backend="eager")
    with pytest.raises(TypeError):
        compiled()


def generator(x):
    for i in range(3):
        yield x + i


async def coroutine(x):
    await asyncio.sleep(0)
    return x * 2


async def async_generator(x):
    yield x


def test_generators_and_coroutines_run_eagerly():
    made = fuselens.compile(generator)
    torch.testing.assert_close(list(made(t(3))), list(generator(t(3))))
    assert codes(made) == ["FL109"]
    awaited = fuselens.compile(coroutine)
    assert asyncio.iscoroutinefunction(awaited)
    torch.testing.assert_close(asyncio.run(awaited(t(3))), t(3) * 2)
    assert codes(awaited) == codes(fuselens.compile(async_generator)) == ["FL109"]
    with pytest.raises(fuselens.GraphBreakError, match="FL109"):
        fuselens.compile(generator, fullgraph=True)


def test_functions_pickle_by_name_or_by_original():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    other = pickle.loads(pickle.dumps(compiled_double))
    torch.testing.assert_close(other(t(3)), double(t(3)))
    assert other.__fuselens__.config == compiled_double.__fuselens__.config
    assert copy.deepcopy(decorated) is decorated
    bound = fuselens.compile(Scaler(2.0).plain, backend="eager")
    apart = copy.deepcopy(bound)
    assert apart.__fuselens__.target.__self__ is not bound.__fuselens__.target.__self__
    torch.testing.assert_close(apart(t(3)), bound(t(3)))


# --- modules


class Net(nn.Module):
    seen: list[type] = []

    def __init_subclass__(cls, **kwargs) -> None:
        Net.seen.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.note = "a"

    def forward(self, x, extra=None):
        y = self.linear(x)
        return y if extra is None else y + extra


def test_modules_share_everything():
    net = Net()
    compiled = fuselens.compile(net, backend="eager")
    assert isinstance(compiled, Net)
    assert isinstance(compiled, nn.Module)
    assert isinstance(compiled, fuselens.CompiledModule)
    assert Net.seen == []
    assert list(compiled.state_dict()) == list(net.state_dict()) == ["calls", "linear.weight", "linear.bias"]
    assert [n for n, _ in compiled.named_parameters()] == ["linear.weight", "linear.bias"]
    assert compiled.linear is net.linear
    compiled.note = "b"
    assert net.note == "b"
    compiled.more = nn.Linear(1, 1)
    assert "more" in dict(net.named_children())
    del compiled.more
    assert not hasattr(net, "more")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        _ = compiled.nothing
    compiled.eval()
    assert not net.training
    assert not net.linear.training
    assert repr(compiled) == repr(net)
    torch.testing.assert_close(compiled(t(2, 4), extra=1.0), net(t(2, 4), 1.0))
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)


def test_load_state_dict_is_noticed():
    net, other = Net(), Net()
    compiled = fuselens.compile(net, backend="eager")
    compiled(t(2, 4))
    compiled.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled(t(2, 4)), other(t(2, 4)))
    compiled.double()
    torch.testing.assert_close(compiled(t(2, 4).double()), other.double()(t(2, 4).double()))


def test_hooks_on_the_wrapper():
    net = Net()
    compiled = fuselens.compile(net, backend="eager")
    expected = net(t(2, 4))
    torch.testing.assert_close(compiled(t(2, 4)), expected)
    calls = []
    handle = compiled.register_forward_hook(lambda m, args, out: calls.append(type(m)) or out * 2)
    compiled.register_forward_pre_hook(lambda m, args: (args[0] + 0,))
    torch.testing.assert_close(compiled(t(2, 4)), expected * 2)
    assert calls == [Net]
    handle.remove()
    torch.testing.assert_close(compiled(t(2, 4)), expected)


def test_slices_of_compiled_sequentials_are_plain():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = fuselens.compile(net, backend="eager")
    assert type(compiled[:2]) is nn.Sequential
    torch.testing.assert_close(compiled[:2](t(3, 4)), net[:2](t(3, 4)))
    assert compiled[0] is net[0]
    assert len(compiled) == 3


def test_copies_and_pickles_of_modules():
    compiled = fuselens.compile(Net(), backend="eager", fullgraph=True)
    x = t(2, 4)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert isinstance(other, fuselens.CompiledModule)
        assert other.__fuselens__.config == compiled.__fuselens__.config
        torch.testing.assert_close(other(x), compiled(x))
        with torch.no_grad():
            other.linear.weight.zero_()
        assert not torch.equal(other(x), compiled(x))
    shallow = copy.copy(compiled)
    assert shallow.linear is compiled.linear
    shallow.note = "other"
    assert compiled.note == "a"


def test_compiled_submodules_are_traced_by_the_outer_one():
    inner = fuselens.compile(nn.Linear(4, 4), backend="eager")
    net = nn.Sequential(inner, nn.ReLU())
    assert list(net.state_dict()) == ["0.weight", "0.bias"]
    compiled = fuselens.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(t(2, 4)), net(t(2, 4)))
    assert graphs(compiled) == 1


def test_a_module_trains():
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    compiled = fuselens.compile(net)
    for module, parameters in ((twin, twin.parameters()), (compiled, compiled.parameters())):
        optimiser = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            module(t(2, 4)).square().sum().backward()
            optimiser.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Slots(nn.Module):
    __slots__ = ("extra",)

    def forward(self, x):
        return x + 1


class Meta(type):
    pass


class WithMeta(nn.Module, metaclass=Meta):
    def __call__(self, x):
        return super().__call__(x) * 2

    def forward(self, x):
        return x + 1


@pytest.mark.parametrize("make", [Slots, WithMeta])
def test_unusual_module_classes(make):
    net = make()
    compiled = fuselens.compile(net, backend="eager")
    torch.testing.assert_close(compiled(t(3)), net(t(3)))
    outer = fuselens.compile(lambda x: compiled(x) + 1, backend="eager")
    torch.testing.assert_close(outer(t(3)), net(t(3)) + 1)


# --- backends


def test_backends_by_name():
    for name in ("eager", "aot_eager", "fuselens"):
        fn = fuselens.compile(double, backend=name)
        torch.testing.assert_close(fn(t(3)), double(t(3)))
        assert graphs(fn) == 1
    assert "fuselens" in fuselens.list_backends()
    assert "eager" not in fuselens.list_backends()
    assert {"eager", "aot_eager"} <= set(fuselens.list_backends(exclude_tags=()))


def test_a_backend_of_the_program():
    seen = []

    def backend(gm, example_inputs, **kwargs):
        seen.append((gm, example_inputs, kwargs))
        return gm.forward

    fn = fuselens.compile(double, backend=backend, options={"level": 3})
    torch.testing.assert_close(fn(t(3)), double(t(3)))
    ((gm, inputs, kwargs),) = seen
    assert isinstance(gm, torch.fx.GraphModule)
    assert [type(i) for i in inputs] == [torch.Tensor]
    torch.testing.assert_close(gm(*inputs)[0], double(t(3)))
    assert kwargs == {"options": {"level": 3}}
    assert graphs(fn) == 1
    copied = copy.deepcopy(fuselens.compile(Net(), backend=backend))
    copied(t(2, 4))
    assert len(seen) == 2


def test_registered_backends(monkeypatch):
    monkeypatch.setattr(backends, "_registered", {})

    @fuselens.register_backend
    def mine(gm, example_inputs):
        return gm.forward

    fuselens.register_backend(mine)
    fuselens.register_backend(lambda gm, inputs: gm.forward, name="slow", tags=["debug"])
    assert "mine" in fuselens.list_backends()
    assert "slow" not in fuselens.list_backends()
    for name in ("mine", "slow"):
        torch.testing.assert_close(fuselens.compile(double, backend=name)(t(3)), double(t(3)))
    for name in ("mine", "eager"):
        with pytest.raises(ValueError, match="already"):
            fuselens.register_backend(lambda gm, inputs: gm, name=name)


def test_backends_that_packages_declare(monkeypatch):
    class Entry:
        name = "declared"

        def load(self):
            return lambda gm, inputs: gm.forward

    monkeypatch.setattr(backends.metadata, "entry_points", lambda group: [Entry()])
    assert "declared" in fuselens.list_backends()
    torch.testing.assert_close(fuselens.compile(double, backend="declared")(t(3)), double(t(3)))


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (lambda gm, inputs: 3, r"returned a int, not a callable"),
        (lambda gm, inputs: 1 / 0, r"raised ZeroDivisionError: division by zero"),
        (lambda gm: gm, r"raised TypeError: .* takes 1 positional argument"),
    ],
)
def test_backends_that_fail(backend, message):
    fn = fuselens.compile(double, backend=backend)
    with pytest.raises(fuselens.BackendError, match=message):
        fn(t(3))


def test_backends_see_symbolic_sizes():
    seen = []

    def backend(gm, example_inputs):
        seen.append([n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"])
        return gm.forward

    fn = fuselens.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)
    for n in (4, 6, 9):
        torch.testing.assert_close(fn(t(n, 2)), t(n, 2) * n)
    assert len(seen) == 1
    assert any(isinstance(s, torch.SymInt) for v in seen[0] if isinstance(v, torch.Tensor) for s in v.shape)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(2, 8))], ids=["script", "trace"]
)
def test_modules_that_torch_compiled_otherwise(make):
    """They have no Python to capture, and run as they are."""
    plain = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
    other = make(plain)
    compiled = fuselens.compile(other)
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), plain(x))
    torch.testing.assert_close(fuselens.compile(lambda x: other(x * 2) + 1)(x), plain(x * 2) + 1)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in plain.parameters())
