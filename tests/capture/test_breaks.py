"""Graph breaks never change results; each is coded, at its expression."""

from __future__ import annotations

import linecache
import time

import pytest
import torch

import fuselens
from fuselens.record.report import Diagnostic
from tests.support.tensors import t

from .harness import agrees_with_eager


def text_of(diagnostic: Diagnostic) -> str:
    """The source text that a diagnostic points at."""
    span = diagnostic.span
    assert span is not None
    assert span.line == span.end_line
    return linecache.getline(span.file, span.line).encode()[span.column : span.end_column].decode()


def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_toy_breaks_at_its_condition_and_resumes_on_both_sides():
    report = agrees_with_eager(toy, (t(8), t(8).abs()), (t(8), -t(8).abs()), breaks=1, graphs=3)
    (found,) = report.breaks
    assert found.code == "FL101"
    assert text_of(found) == "b.sum() < 0"
    assert found.stack[-1].function == "toy"


def test_functions_of_pybind11_are_called_by_their_names():
    init = torch._C._cpu._init_amx
    report = agrees_with_eager(lambda x: (x * 2, init()), (t(3),), breaks=1)
    assert "`torch._C._cpu._init_amx`" in report.breaks[0].message


def prints(x):
    y = x * 2
    print("value", y.shape, 3)
    z = y + 1
    print("again")
    return z * y


def item(x):
    n = x.sum().item()
    return x * n


def to_int(x):
    return x[: int(x.numel() / 2)] + int(x.max() > 100)


def boolean(x):
    return x * bool(x.sum() > 0)


def negated(x):
    if not (x.sum() > 0):
        return x - 1
    return x + 1


def short_circuit(x, y):
    if x.sum() > 0 and y.sum() > 0:
        return x + y
    return (x.sum() > 100) or y


def elif_chain(x):
    if x.sum() > 10:
        return x
    elif x.sum() < -10:
        return -x
    else:
        x = x * 3
    return x + 1


def while_data(x):
    n = 0
    while x.sum() < 20:
        x = x + 1
        n += 1
    return x, n


def loop_with_print(x):
    total = x
    for i in range(4):
        total = total + i
        if i % 2:
            print("i", i)
    return total


def nested_call_breaks(x):
    y = x + 1
    z = inner_prints(y) * 2
    return z - inner_prints(x)


def inner_prints(v):
    w = v * 3
    print("inner")
    return w + 1


def unsupported_call(x):
    y = x + 1
    s = time.strftime("%Y")
    return y * 2, len(s)


def list_across(x):
    items = [x]
    alias = items
    print("between")
    items.append(x + 1)
    return items, alias is items, len(alias)


def dict_across(x):
    d = {"x": x, "n": 1}
    print(sorted(d))
    d["y"] = d["x"] * 2
    return d


def in_expression(x):
    return torch.stack([x * 2, (print("deep"), x + 1)[1]]) + 1


def in_keyword(x):
    return torch.sum(x + 1, dim=(print("kw") or 0))


def attribute_store(x):
    box = fuselens_box()
    box.value = x * 2
    return box.value + 1


class Box:
    pass


def fuselens_box():
    return Box()


def raises_value_error(x):
    y = x + 1
    if y.shape[0] == 3:
        raise ValueError(f"bad shape {tuple(y.shape)}")
    return y


def wrong_shapes(x):
    return x @ x


def wrong_arguments(x):
    return torch.relu(x, 1, 2, 3)


def try_except(x):
    try:
        y = x + 1
        print("in try")
        y = y @ y
    except RuntimeError:
        y = x * 2
    finally:
        print("finally")
    return y


def with_no_grad_break(x):
    with torch.no_grad():
        y = x * 2
        print("inside", torch.is_grad_enabled())
        y = y + 1
    return y + x, torch.is_grad_enabled()


def closure_across(x):
    scale = 2

    def f(v):
        return v * scale

    print("made")
    scale = 3
    return f(x)


def unpack_across(x):
    a, b = (lambda *v: v)(x, x + 1)
    print("p")
    return a * b


def nonzero(x):
    y = x + 1
    idx = torch.nonzero(y > 0)
    return y[idx[:, 0]] * 2


def mask(x):
    y = x * 2
    return y[y > 0].sum() + y


def generator_use(x):
    return sum(v * 2 for v in (x, x + 1))


def unknown_iterable(x):
    total = x
    for k in {3: 1, 4: 2}.items():
        total = total + k[0]
    for k in set([1, 2]):
        total = total + k
    return total


def string_format_tensor(x):
    y = x * 2
    s = f"{y.shape} {y.sum():.3f}"
    return y + 1, s


def global_store(x):
    global _counter
    y = x + 1
    _counter = 5
    return y * _counter


_counter = 0


def walrus_item(x):
    if (n := x.sum()) > 0:
        return x * n
    return x - n


def ternary(x):
    y = x if x.sum() > 0 else -x
    return y + 1


def many(x):
    print(1)
    print(2)
    y = x + 1
    print(3)
    return y


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.calls += 1
        y = x * self.weight
        return y * self.calls


CASES = [
    (prints, (t(3),), 2), (item, (t(3),), 1), (to_int, (t(4),), 1), (boolean, (t(3),), 1),
    (negated, (t(3).abs(),), None), (negated, (-t(3).abs(),), None), (short_circuit, (t(3).abs(), t(3)), None),
    (short_circuit, (-t(3).abs(), t(3)), None), (elif_chain, (t(3),), None), (elif_chain, (t(3) + 50,), None),
    (elif_chain, (t(3) - 50,), None), (while_data, (t(3),), None), (loop_with_print, (t(3),), None),
    (nested_call_breaks, (t(3),), None), (unsupported_call, (t(3),), 1), (list_across, (t(3),), None),
    (dict_across, (t(3),), None), (in_expression, (t(3),), 1), (in_keyword, (t(3),), 1), (attribute_store, (t(3),), None),
    (raises_value_error, (t(3),), None), (raises_value_error, (t(4),), 0), (wrong_shapes, (t(3, 4),), None),
    (wrong_arguments, (t(3),), None), (try_except, (t(3, 4),), None), (try_except, (t(3, 3),), None),
    (with_no_grad_break, (t(3).requires_grad_(),), None), (closure_across, (t(3),), None), (unpack_across, (t(3),), 1),
    (nonzero, (t(5),), None), (mask, (t(5),), None), (generator_use, (t(3),), None), (unknown_iterable, (t(3),), None),
    (string_format_tensor, (t(3),), None), (global_store, (t(3),), None), (walrus_item, (t(3),), None), (ternary, (t(3),), None),
    (ternary, (-t(3).abs(),), None), (many, (t(3),), 3),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("fn", "args", "breaks"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_same_as_eager(fn, args, breaks, backend):
    agrees_with_eager(fn, args, breaks=breaks, backend=backend)


@pytest.mark.parametrize(
    ("fn", "code", "text"),
    [
        (prints, "FL103", 'print("value", y.shape, 3)'), (item, "FL102", "x.sum().item()"),
        (toy, "FL101", "b.sum() < 0"), (ternary, "FL101", "x.sum() > 0"),
        (unsupported_call, "FL119", 'time.strftime("%Y")'), (nonzero, "FL108", "torch.nonzero(y > 0)"),
        (mask, "FL108", "y[y > 0]"), (wrong_shapes, "FL107", "x @ x"),
    ],
)  # fmt: skip
def test_code_and_position(fn, code, text):
    args = (t(3, 4),) if fn is wrong_shapes else (t(4), t(4)) if fn is toy else (t(4),)
    report = agrees_with_eager(fn, args)
    assert report.breaks[0].code == code
    assert text_of(report.breaks[0]) == text


def test_break_in_a_callee_names_both_frames():
    report = agrees_with_eager(nested_call_breaks, (t(3),))
    found = report.breaks[0]
    assert [f.function for f in found.stack] == ["nested_call_breaks", "inner_prints"]
    assert text_of(found) == 'print("inner")'


def test_fullgraph_raises_at_the_break():
    compiled = fuselens.compile(prints, fullgraph=True, backend="eager")
    with pytest.raises(fuselens.GraphBreakError, match="FL103") as caught:
        compiled(t(3))
    assert caught.value.diagnostic.span is not None


def test_module_state_is_as_eager_leaves_it():
    eager, compiled = Counter(), Counter()
    fn = fuselens.compile(compiled, backend="eager")
    for _ in range(4):
        torch.testing.assert_close(fn(torch.ones(3)), eager(torch.ones(3)))
    assert compiled.calls == eager.calls == 4


def test_recompile_is_recorded_with_the_guard_that_failed():
    report = agrees_with_eager(lambda x, n: x * n, (t(3), 2), (t(3), 3))
    assert any(d.code == "FL201" and "n: expected 2, found 3" in d.message for d in report.diagnostics)


def test_recompile_limit_falls_back_to_eager():
    report = agrees_with_eager(lambda x, n: x * n, *[(t(3), i + 0.5) for i in range(12)], dynamic=False)
    assert any(d.code == "FL202" for d in report.diagnostics)
    assert len(report.graphs) == 8


def test_traceback_points_at_the_user_line():
    compiled = fuselens.compile(raises_value_error, backend="eager")
    with pytest.raises(ValueError, match="bad shape") as caught:
        compiled(t(3))
    assert any(e.lineno is not None and "raise ValueError" in e.lineno.__class__.__name__ or "raise" in str(e.statement)
               for e in caught.traceback)  # fmt: skip


# --- effects on existing objects are replayed, without a break


class Holder:
    def __init__(self):
        self.n = 1
        self.log = []
        self.state = None


def appends(items, x):
    items.append(x * 2)
    items[0] = items[0] + 1
    items += [x]
    return items[-1] * len(items)


def updates(d, x):
    d["new"] = x + d["old"]
    d.pop("old")
    return d["new"] * 2


def assigns(holder, x):
    holder.n += 1
    holder.state = x * holder.n
    holder.log.append(holder.state)
    return holder.state + 1


def shared_list(x):
    holder = HOLDER
    holder.log.append(x)
    print("n", len(holder.log))
    holder.log.append(x + 1)
    return len(holder.log)


HOLDER = Holder()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_effects_on_arguments(backend):
    agrees_with_eager(appends, ([t(3)], t(3)), breaks=0, backend=backend)
    agrees_with_eager(updates, ({"old": t(3)}, t(3)), breaks=0, backend=backend)


def test_effects_on_objects():
    eager, compiled = Holder(), Holder()
    fn = fuselens.compile(assigns, backend="eager")
    for i in range(3):
        torch.testing.assert_close(fn(compiled, t(3)), assigns(eager, t(3)))
        assert compiled.n == eager.n == i + 2
        assert len(compiled.log) == i + 1
        assert compiled.log[-1] is compiled.state
    assert not fn.__fuselens__.recorder.report.breaks


def test_effects_before_a_break():
    HOLDER.log.clear()
    expected = shared_list(t(2))
    HOLDER.log.clear()
    assert fuselens.compile(shared_list, backend="eager")(t(2)) == expected == 2


@fuselens.disable
def secret(x):
    assert not fuselens.is_compiling()
    return x * 2


def uses_disabled(x):
    y = secret(x + 1)
    fuselens.graph_break()
    return (y + 1, fuselens.is_compiling())


def test_disable_and_graph_break():
    fn = fuselens.compile(uses_disabled, backend="eager")
    y, compiling = fn(t(3))
    torch.testing.assert_close(y, uses_disabled(t(3))[0])
    assert compiling
    assert [b.code for b in fn.__fuselens__.recorder.report.breaks] == ["FL114", "FL111"]


def writes_first(x, y):
    x.add_(1)
    return x * y


def test_overlapping_arguments():
    fn = fuselens.compile(writes_first, backend="aot_eager")
    for same in (False, True, False):
        base, other = t(6), t(6)
        args = (base[:4], base[2:]) if same else (base[:4], other[2:])
        base_too, other_too = t(6), t(6)
        args_too = (base_too[:4], base_too[2:]) if same else (base_too[:4], other_too[2:])
        torch.testing.assert_close(fn(*args), writes_first(*args_too))
        torch.testing.assert_close(base, base_too)
    x, z = t(3), t(3)
    torch.testing.assert_close(fn(x, x), writes_first(z, z))
