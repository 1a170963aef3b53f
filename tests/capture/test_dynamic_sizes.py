"""Sizes that change become symbolic at the second compilation; what programs say about sizes with marks is honoured."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import fuselens
from fuselens.record.report import Report
from tests.capture.harness import agrees_with_eager


def compilations(report: Report) -> int:
    return 1 + sum(d.code == "FL201" for d in report.diagnostics)


def report_of(compiled) -> Report:
    return compiled.__fuselens__.recorder.report


SIZES = (3, 5, 8, 2, 17)


def rows(n):
    return (torch.randn(n, 4),)


def columns(n):
    return (torch.randn(4, n),)


def both(n):
    return (torch.randn(n, n + 1),)


def transposed(n):
    return (torch.randn(4, n).t(),)


def sliced(n):
    return (torch.randn(n, 9)[:, 2:6],)


def stepped(n):
    return (torch.randn(4, 2 * n)[:, ::2],)


def of_a_larger(n):
    return (torch.randn(2 * n, 4)[n:],)


def sharing_a_size(n):
    return torch.randn(n, 4), torch.randn(n, 4), torch.randn(n)


def with_history(n):
    return (torch.randn(n, 4, requires_grad=True) * 2,)


def views_of_one(n):
    whole = torch.randn(2, n, 4)
    return whole[0], whole[1]


def integers(n):
    return (torch.arange(4 * n).reshape(n, 4),)


MAKERS = [
    rows,
    columns,
    both,
    transposed,
    sliced,
    stepped,
    of_a_larger,
    sharing_a_size,
    with_history,
    views_of_one,
    integers,
]


def combine(*tensors):
    x = tensors[0]
    total = x * 2 + x.sum(0) if x.dim() > 1 else x * 2
    for t in tensors[1:]:
        total = total + (t if t.dim() == total.dim() else t.unsqueeze(1))
    return total, x.shape[0] * x.shape[1], x.reshape(-1).sum(), x.t().contiguous(), x.stride()


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda m: m.__name__)
def test_two_compilations_serve_all_sizes(make, backend):
    compiled = fuselens.compile(combine, backend=backend)
    for n in SIZES:
        args = make(n)
        torch.testing.assert_close(compiled(*args), combine(*args))
    assert compilations(report_of(compiled)) == 2, [d.message for d in report_of(compiled).diagnostics]


@pytest.mark.parametrize("make", MAKERS, ids=lambda m: m.__name__)
def test_dynamic_true_needs_one(make):
    compiled = fuselens.compile(combine, backend="eager", dynamic=True)
    for n in SIZES:
        args = make(n)
        torch.testing.assert_close(compiled(*args), combine(*args))
    assert compilations(report_of(compiled)) == 1, [d.message for d in report_of(compiled).diagnostics]


@pytest.mark.parametrize("make", [m for m in MAKERS if m is not with_history], ids=lambda m: m.__name__)
def test_sizes_zero_and_one(make):
    agrees_with_eager(combine, *[make(n) for n in (4, 1, 0, 7, 1, 0)])


def test_dynamic_false_never_is():
    report = agrees_with_eager(combine, *[rows(n) for n in SIZES], dynamic=False)
    assert compilations(report) == len(SIZES) and not report.symbols


def test_broadcasting_against_one():
    agrees_with_eager(
        lambda x, y: x + y,
        *[(torch.randn(n, 4), torch.randn(m, 4)) for n, m in ((3, 3), (5, 5), (5, 1), (1, 7), (6, 6))],
    )


def test_a_relation_of_sizes_is_guarded():
    agrees_with_eager(lambda x, y: x @ y if x.shape[1] == y.shape[0] else x, *[
        (torch.randn(3, k), torch.randn(m, 2)) for k, m in ((4, 4), (5, 5), (6, 7), (8, 8))
    ])  # fmt: skip


def test_strides_that_change_alone():
    base = torch.randn(6, 64)
    compiled = fuselens.compile(lambda x: x * 2 + x.mean(1, keepdim=True), backend="eager")
    for step in (1, 2, 3, 4):
        x = base[:, : 4 * step : step]
        torch.testing.assert_close(compiled(x), x * 2 + x.mean(1, keepdim=True))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)).sum(1) * x.shape[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "fuselens"])
def test_training_of_a_module(backend):
    module = Block()
    compiled = fuselens.compile(module, backend=backend)
    for n in SIZES:
        x = torch.randn(n, 4, requires_grad=True)
        expected = torch.autograd.grad(module(x).sum(), [x, *module.parameters()])
        actual = torch.autograd.grad(compiled(x).sum(), [x, *module.parameters()])
        torch.testing.assert_close(actual, expected)
    assert compilations(report_of(compiled)) == 2


def test_resume_functions_inherit_symbols():
    def fn(x):
        y = x * 2
        print("between")
        return (y + x).sum(0) * y.shape[0]

    report = agrees_with_eager(fn, *[rows(n) for n in SIZES])
    assert compilations(report) <= 3


def test_symbolic_sizes_do_not_import_the_peer():
    text = (
        "import sys, torch, fuselens\n"
        "f = fuselens.compile(lambda x, n: x[:n] * n, backend='eager', dynamic=True)\n"
        "f(torch.randn(4, 5), 3), f(torch.randn(7, 5), 2)\n"
        "assert not [m for m in sys.modules if m.startswith('torch._dynamo.')]\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)


# --- marks ----------------------------------------------------------------------------------------------------------


def double(x):
    return x * 2 + x.shape[0]


def run_sizes(fn, prepare, sizes=SIZES, **options) -> Report:
    compiled = fuselens.compile(fn, backend="eager", **options)
    for n in sizes:
        x = torch.randn(n, 4)
        prepare(x)
        torch.testing.assert_close(compiled(x), fn(x))
    return report_of(compiled)


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("dim", [0, -2, [0], (0,)])
def test_mark_dynamic(dim, dynamic):
    report = run_sizes(double, lambda x: fuselens.mark_dynamic(x, dim), dynamic=dynamic)
    assert compilations(report) == 1


def test_torchs_spelling_of_marks():
    # what torch._dynamo.mark_dynamic, maybe_mark_dynamic and mark_static leave on the tensor
    def dynamic(x):
        x._dynamo_dynamic_indices, x._dynamo_dynamic_range, x._has_dynamo_dim_marking = {0}, set(), True

    def weakly(x):
        x._dynamo_weak_dynamic_indices, x._has_dynamo_dim_marking = {0}, True

    def static(x):
        x._dynamo_static_indices, x._has_dynamo_dim_marking = {0}, True

    assert compilations(run_sizes(double, dynamic)) == 1
    fuselens.reset()
    assert compilations(run_sizes(double, weakly)) == 1
    fuselens.reset()
    assert compilations(run_sizes(double, static, dynamic=True)) == len(SIZES)


def test_torchs_own_functions_mark():
    text = (
        "import torch, fuselens, torch._dynamo as d\n"
        "f = fuselens.compile(lambda x: x * 2, backend='eager')\n"
        "for n in (3, 4, 9):\n"
        "    x = torch.randn(n, 4)\n"
        "    d.mark_dynamic(x, 0, min=2, max=10)\n"
        "    f(x)\n"
        "r = f.__fuselens__.recorder.report\n"
        "assert not r.diagnostics and (r.symbols[0].lower, r.symbols[0].upper) == (2, 10), r.symbols\n"
        "g = fuselens.compile(lambda x: x * 2, backend='eager')\n"
        "x = torch.randn(4, 4)\n"
        "fuselens.mark_dynamic(x, 0, min=2, max=20)\n"
        "h = torch.compile(lambda x: x * 2, backend='eager', fullgraph=True)\n"
        "h(x)\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=300)


def test_unmarked_tensors_use_what_was_compiled_for_marked_ones():
    def prepare(x):
        if x.shape[0] == SIZES[0]:
            fuselens.mark_dynamic(x, 0)

    assert compilations(run_sizes(double, prepare)) == 1


def test_a_mark_that_comes_later_compiles_again():
    def prepare(x):
        if x.shape[0] == 5:
            fuselens.mark_dynamic(x, 0)

    report = run_sizes(double, prepare, sizes=(3, 5, 6, 7))
    assert compilations(report) == 2
    assert [s.source for s in report.symbols] == ["x.shape[0]"]


def test_maybe_mark_dynamic_may_be_specialised():
    def fn(x):
        return x * 2 if x.shape[0] == 3 else x + 1

    report = run_sizes(fn, lambda x: fuselens.maybe_mark_dynamic(x, 0))
    assert compilations(report) == 2
    assert any(d.code == "FL203" for d in report.diagnostics)


def test_mark_static():
    report = run_sizes(double, lambda x: fuselens.mark_static(x, 0), dynamic=True)
    assert compilations(report) == len(SIZES)
    fuselens.reset()
    report = run_sizes(double, fuselens.mark_static)
    assert compilations(report) == len(SIZES) and not report.symbols


def test_the_last_mark_counts():
    def prepare(x):
        fuselens.mark_static(x, 0)
        fuselens.mark_dynamic(x, 0)

    assert compilations(run_sizes(double, prepare)) == 1


def test_ranges_are_guards():
    def prepare(x):
        if x.shape[0] <= 10:
            fuselens.mark_dynamic(x, 0, min=2, max=10)

    report = run_sizes(double, prepare, sizes=(3, 10, 2, 11, 4))
    assert compilations(report) == 2
    assert (report.symbols[0].lower, report.symbols[0].upper) == (2, 10)


def specialises(x):
    y = x + 1
    if x.shape[0] == 3:
        return y * 2
    return y


def loops(x):
    for _ in range(x.shape[0]):
        x = x + 1
    return x


def narrows(x):
    return x * 2 if x.shape[0] < 8 else x


@pytest.mark.parametrize(("fn", "line"), [(specialises, "x.shape[0] == 3"), (loops, "range(x.shape[0])")])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_marked_size_that_is_specialised_is_an_error(fn, line, strict, monkeypatch):
    monkeypatch.setenv("FUSELENS_STRICT", strict)
    compiled = fuselens.compile(fn, backend="eager")
    x = torch.randn(3, 4)
    fuselens.mark_dynamic(x, 0)
    with pytest.raises(
        fuselens.ConstraintError, match=r"FL204: `x.shape\[0\]` is marked dynamic, but .*equal to 3"
    ) as e:
        compiled(x)
    span = e.value.diagnostic.span
    assert span is not None and line in open(span.file).read().splitlines()[span.line - 1]
    fresh = torch.randn(3, 4)
    assert torch.equal(compiled(fresh), fn(fresh))


def test_a_range_that_is_narrowed_is_an_error():
    compiled = fuselens.compile(narrows, backend="eager")
    x = torch.randn(3, 4)
    fuselens.mark_dynamic(x, 0)
    assert torch.equal(compiled(x), narrows(x))  # without a range any guard will do
    fuselens.reset()
    fuselens.mark_dynamic(x, 0, min=2, max=20)
    with pytest.raises(fuselens.ConstraintError, match="only holds for 2 to 7"):
        compiled(x)


@pytest.mark.parametrize("size", [0, 1])
def test_zero_and_one_cannot_be_dynamic(size):
    x = torch.randn(size, 4)
    fuselens.mark_dynamic(x, 0)
    with pytest.raises(fuselens.ConstraintError, match="always specialised"):
        fuselens.compile(double, backend="eager")(x)


def test_marks_that_make_no_sense():
    x = torch.randn(3, 4)
    with pytest.raises(IndexError):
        fuselens.mark_dynamic(x, 2)
    with pytest.raises(ValueError, match="not between 4 and 9"):
        fuselens.mark_dynamic(x, 0, min=4, max=9)
    with pytest.raises(NotImplementedError, match="mark_dynamic"):
        fuselens.mark_unbacked(x, 0)
    x._dynamo_unbacked_indices, x._has_dynamo_dim_marking = {0}, True
    with pytest.raises(fuselens.ConstraintError, match="mark_unbacked is not supported"):
        fuselens.compile(double, backend="eager")(x)


# --- buckets: ranges that have a compilation each


BUCKETS = (16, 64, 256)


def test_a_compilation_for_each_bucket():
    sizes = (3, 16, 9, 17, 64, 40, 65, 256, 300, 1000, 2, 128)
    report = run_sizes(double, lambda x: fuselens.mark_dynamic(x, 0, buckets=BUCKETS), sizes=sizes)
    assert len(report.graphs) == 4
    assert any(d.message.endswith("because of x: its sizes are marked otherwise") for d in report.diagnostics)
    assert [(s.lower, s.upper) for s in report.symbols] == [(2, 16), (17, 64), (65, 256), (257, None)]


def test_buckets_of_a_size_that_several_tensors_have():
    """That they are equal is a guard, and no size is less free for it."""

    def fn(x, mask):
        return (x * mask).sum(0) if x.shape[0] > 1 else x

    compiled = fuselens.compile(fn)
    for n in (4, 16, 9, 30, 64, 17):
        x, mask = torch.randn(n, 4), torch.rand(n, 1)
        for t in (x, mask):
            fuselens.mark_dynamic(t, 0, buckets=BUCKETS)
        torch.testing.assert_close(compiled(x, mask), fn(x, mask))
    assert compilations(report_of(compiled)) == 2


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_that_are_in_no_bucket(size):
    sizes = (size, 5, 9, size)
    report = run_sizes(double, lambda x: fuselens.mark_dynamic(x, 0, buckets=BUCKETS), sizes=sizes)
    assert compilations(report) == 2


def test_kernels_of_a_bucket_are_planned_for_its_upper_end():
    x = torch.randn(20, 4)
    fuselens.mark_dynamic(x, 0, buckets=BUCKETS)
    (graph,) = fuselens.explain(lambda x: x.softmax(0))(x).graphs
    lowered = next(s.text for s in graph.stages if s.name == "lower")
    assert " hint 64]" in lowered
    fuselens.mark_dynamic(x, 0, min=17, max=64)
    (graph,) = fuselens.explain(lambda x: x.softmax(0))(x).graphs
    assert " hint 20]" in next(s.text for s in graph.stages if s.name == "lower")


def test_a_bucket_that_the_program_narrows_is_an_error():
    x = torch.randn(3, 4)
    fuselens.mark_dynamic(x, 0, buckets=BUCKETS)
    with pytest.raises(fuselens.ConstraintError, match="only holds for 2 to 7"):
        fuselens.compile(narrows, backend="eager")(x)


@pytest.mark.parametrize(
    ("given", "why"),
    [({"buckets": (4, 4)}, "rise"), ({"buckets": (1, 4)}, "rise"), ({"buckets": (8, 4)}, "rise"), ({"buckets": (4,), "max": 9}, "or min")],
)  # fmt: skip
def test_buckets_that_make_no_sense(given, why):
    with pytest.raises(ValueError, match=why):
        fuselens.mark_dynamic(torch.randn(3, 4), 0, **given)


def test_another_mark_takes_the_place_of_a_bucket():
    def prepare(x):
        fuselens.mark_dynamic(x, 0, buckets=BUCKETS)
        fuselens.mark_dynamic(x, 0)

    report = run_sizes(double, prepare, sizes=(3, 40, 300))
    assert compilations(report) == 1 and report.symbols[0].upper is None


# --- recompilations -------------------------------------------------------------------------------------------------


def test_error_on_recompile():
    compiled = fuselens.compile(lambda x, a: x * a, backend="eager", options={"error_on_recompile": True})
    x = torch.randn(3)
    assert torch.equal(compiled(x, 0.5), x * 0.5)
    with pytest.raises(fuselens.RecompileError, match=r"FL201.*because of a: expected 0.5, found") as e:
        compiled(x, 1.5)
    assert e.value.diagnostic.severity == "error" and e.value.diagnostic.span is not None
    assert torch.equal(compiled(x, 0.5), x * 0.5)


def test_numbers_that_are_needed_again_and_again():
    """As the count of steps, of which a schedule computes a rate: the graph breaks there at last."""

    def fn(x, n):
        x = x.sin() + n
        return x * math.cos(n / 10)

    compiled = fuselens.compile(fn, backend="eager")
    x, counts = torch.randn(3), []
    for n in range(2, 20):
        torch.testing.assert_close(compiled(x, n), fn(x, n))
        counts.append(len(report_of(compiled).captured))
    assert counts[5:] == counts[-1:] * 13, counts
    (found,) = report_of(compiled).breaks
    assert found.code == "FL104" and "which differs from call to call" in found.message
    assert not any(d.code == "FL202" for d in report_of(compiled).diagnostics)


def test_whole_graphs_are_compiled_for_each_number():
    compiled = fuselens.compile(lambda x, n: x * math.cos(n / 10), backend="eager", fullgraph=True)
    x = torch.randn(3)
    for n in range(2, 7):
        torch.testing.assert_close(compiled(x, n), x * math.cos(n / 10))
    assert len(report_of(compiled).captured) == 5


def test_a_schedule_in_a_step():
    def trained(compiles):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        run, losses, counts = fuselens.compile(step, backend="eager") if compiles else step, [], []
        for k in range(12):
            losses.append(run(torch.full((4, 3), k / 4)))
            counts.append(len(report_of(run).captured) if compiles else 0)
        assert counts[6:] == counts[-1:] * 6, counts
        return losses, [p.detach() for p in model.parameters()], optimizer.param_groups[0]["lr"], schedule.last_epoch

    torch.testing.assert_close(trained(True), trained(False))


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("bound", ["6.5", "7.0", "-0.0", "1e300", "float('inf')", "float('nan')"])
@pytest.mark.parametrize("mirrored", [False, True])
def test_integers_beside_floats(op, bound, mirrored):
    condition = f"{bound} {op} n" if mirrored else f"n {op} {bound}"
    fn = eval(f"lambda x, n: x * n if {condition} else x - n")
    compiled = fuselens.compile(fn, backend="eager")
    x = torch.randn(3)
    for n in (2, 3, 9, 7, 6, 8, 12, -1, 20):
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    assert len(report_of(compiled).captured) <= 7


def test_limit_of_one_frame():
    compiled = fuselens.compile(lambda x, a: x * a, backend="eager", dynamic=False, options={"recompile_limit": 3})
    for a in range(6):
        x = torch.randn(3)
        assert torch.equal(compiled(x, a + 0.5), x * (a + 0.5))
    report = report_of(compiled)
    assert [d.message for d in report.diagnostics if d.code == "FL202"][0].endswith("was compiled 3 times")
    assert len(report.graphs) == 3


def test_limit_of_a_function_with_its_resume_functions():
    def fn(x, a):
        x = x + 1
        print("between")
        return x * a

    compiled = fuselens.compile(fn, backend="eager", dynamic=False, options={"accumulated_recompile_limit": 5})
    for a in range(8):
        x = torch.randn(3)
        assert torch.equal(compiled(x, a + 0.5), (x + 1) * (a + 0.5))
    report = report_of(compiled)
    assert any(d.code == "FL202" for d in report.diagnostics)
    assert len(report.graphs) == 5


def test_limits_leave_other_functions_alone():
    options = {"recompile_limit": 2}
    f = fuselens.compile(lambda x, a: x * a, backend="eager", options=options)
    g = fuselens.compile(lambda x, a: x - a, backend="eager", options=options)
    x = torch.randn(3)
    for a in range(4):
        f(x, a + 0.5)
    g(x, 0.5)
    assert len(report_of(g).graphs) == 1


def test_the_limit_is_of_one_call_of_compile():
    """Modules of one class, as heads of several widths, each compiled by itself: of each is counted what was made for it."""
    models = [fuselens.compile(nn.Sequential(nn.Linear(4, 4 + k), nn.ReLU()), backend="eager") for k in range(12)]
    for k, model in enumerate(models):
        assert model(torch.randn(2, 4)).shape == (2, 4 + k)
    assert [len(report_of(m).captured) for m in models] == [1] * 12
    alike = [fuselens.compile(nn.Sequential(nn.Linear(4, 30)), backend="eager") for _ in range(3)]
    for model in alike:
        model(torch.randn(2, 4))
    assert [len(report_of(m).captured) for m in alike] == [1, 0, 0], "modules that are alike share what was compiled"
