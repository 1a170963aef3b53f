"""What programs say to the compiler, in our spelling and in torch's."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

import fuselens
from fuselens.capture.program import marks
from tests.support.tensors import t


def breaks(fn) -> list[str]:
    return [b.code for b in fn.__fuselens__.recorder.report.breaks]


def graphs(fn) -> int:
    return len(fn.__fuselens__.recorder.report.graphs)


def compiled(fn, **arguments):
    return fuselens.compile(fn, backend="eager", **arguments)


# --- disable

TRACED: list[str] = []


def trace(name):
    """Appends whether it is being traced; breaks no graph when it is not."""
    TRACED.append(f"{name}: {fuselens.is_compiling()}")


def helper(x):
    return x * (3 if fuselens.is_compiling() else 2)


@fuselens.disable
def off(x):
    return helper(x) + 1


@fuselens.disable(reason="it is slow to compile")
def off_with_reason(x):
    return helper(x)


@fuselens.disable(recursive=False)
def off_itself(x):
    return helper(x) + (10 if fuselens.is_compiling() else 20)


class Off(torch.nn.Module):
    def forward(self, x):
        return helper(x)


def test_disabled_functions_run_eagerly_and_so_does_what_they_call():
    fn = compiled(lambda x: off(x + 1) * 2)
    for _ in range(2):
        torch.testing.assert_close(fn(t(3)), ((t(3) + 1) * 2 + 1) * 2)
    assert breaks(fn) == ["FL114"]
    assert off.__name__ == "off"
    assert off.__wrapped__ is not off


def test_disable_says_why():
    fn = compiled(lambda x: off_with_reason(x) + 1)
    fn(t(3))
    (found,) = fn.__fuselens__.recorder.report.breaks
    assert "it is slow to compile" in found.explanation


def test_disable_not_recursively():
    def fn(x):
        return off_itself(x) + 1

    f = compiled(fn)
    for _ in range(2):
        torch.testing.assert_close(f(t(3)), t(3) * 3 + 21)
    fuselens.reset()
    torch.testing.assert_close(f(t(3)), t(3) * 3 + 21)
    with pytest.raises(fuselens.GraphBreakError, match="FL114"):
        compiled(fn, fullgraph=True)(t(3))


def test_disable_modules_and_classes():
    module = fuselens.disable(Off())
    assert isinstance(module, Off)
    net = torch.nn.Sequential(module)
    fn = compiled(net)
    torch.testing.assert_close(fn(t(3)), t(3) * 2)
    assert breaks(fn)[0] == "FL114"

    @fuselens.disable
    class AllOff(Off):
        def __call__(self, x):
            return super().__call__(x) + 1

    assert AllOff is fuselens.disable(AllOff)
    torch.testing.assert_close(compiled(AllOff())(t(3)), t(3) * 2 + 1)
    with pytest.raises(TypeError, match=r"fuselens\.disable expects"):
        fuselens.disable(3)


def test_disable_as_a_context():
    def fn(x):
        y = helper(x)
        with fuselens.disable():
            z = helper(x)
        return y, z

    f = compiled(fn)
    for _ in range(2):
        y, z = f(t(3))
        torch.testing.assert_close(y, t(3) * 3)
        torch.testing.assert_close(z, t(3) * 2)
    with fuselens.disable():
        torch.testing.assert_close(compiled(helper)(t(3)), t(3) * 3)  # a compiled function turns capture on again


def test_disabled_methods():
    class C:
        scale = 4

        @fuselens.disable
        def method(self, x):
            return x * self.scale

    c = C()
    fn = compiled(lambda x: c.method(x) + 1)
    torch.testing.assert_close(fn(t(3)), t(3) * 4 + 1)


# --- breaks, compiling


def test_graph_break_with_a_message():
    def fn(x):
        y = x + 1
        fuselens.graph_break("to look at y")
        return y * 2

    f = compiled(fn)
    torch.testing.assert_close(f(t(3)), fn(t(3)))
    (found,) = f.__fuselens__.recorder.report.breaks
    assert (found.code, graphs(f)) == ("FL111", 2)
    assert "to look at y" in found.message
    fuselens.graph_break()


def breaks_inside(x):
    y = x + 1
    with fuselens.error_on_graph_break(True):
        z = y * 2
        print(end="")
    return z


def breaks_outside(x):
    with fuselens.error_on_graph_break(True):
        y = x + 1
        with fuselens.error_on_graph_break(False):
            print(end="")
            y = y * 2
        z = y * 3
    print(end="")
    return z * 2


@fuselens.error_on_graph_break(True)
def breaks_in_decorated(x):
    print(end="")
    return x


def calls_decorated(x):
    print(end="")
    return breaks_in_decorated(x + 1)


@pytest.mark.parametrize("fn", [breaks_inside, breaks_in_decorated, calls_decorated])
def test_breaks_that_are_errors(fn):
    with pytest.raises(fuselens.GraphBreakError, match="FL103"):
        compiled(fn)(t(3))
    torch.testing.assert_close(fuselens.disable(fn)(t(3)), fn(t(3)))


def test_breaks_that_are_no_errors():
    fn = compiled(breaks_outside)
    for _ in range(2):
        torch.testing.assert_close(fn(t(3)), breaks_outside(t(3)))
    assert breaks(fn) == ["FL103", "FL103"]
    with fuselens.error_on_graph_break(True), pytest.raises(fuselens.GraphBreakError):
        compiled(lambda x: print(x))(t(3))
    compiled(lambda x: print(x))(t(3))


def test_questions_about_the_compiler():
    def fn(x):
        return (
            x, fuselens.is_compiling(), torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(),
            torch.compiler.is_exporting(), torch.jit.is_tracing(), torch.jit.is_scripting(),
        )  # fmt: skip

    assert fn(t(3))[1:] == (False,) * 6
    assert compiled(fn, fullgraph=True)(t(3))[1:] == (True, True, True, False, False, False)


def test_mark_step_begin_is_nothing():
    def fn(x):
        torch.compiler.cudagraph_mark_step_begin()
        fuselens.cudagraph_mark_step_begin()
        return x + 1

    fuselens.cudagraph_mark_step_begin()
    torch.testing.assert_close(compiled(fn, fullgraph=True)(t(3)), t(3) + 1)


def test_marked_addresses():
    x = t(3)
    fuselens.mark_static_address(x)
    fuselens.mark_static_address(x, guard=True)
    torch.testing.assert_close(compiled(lambda x: x + 1, fullgraph=True)(x), x + 1)
    with pytest.raises(TypeError, match="expects a tensor, got int"):
        fuselens.mark_static_address(3)  # type: ignore[arg-type]


def test_nothing_is_recorded_on_the_cpu():
    fn = fuselens.compile(lambda x: x.sin() + 1, mode="reduce-overhead")
    torch.testing.assert_close(fn(t(3)), t(3).sin() + 1)
    assert [d.code for d in fn.__fuselens__.recorder.report.diagnostics] == ["FL501"]
    assert fn.__fuselens__.recorder.report.diagnostics[0].span is not None


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_the_memory_of_recordings_is_a_part_of_the_devices(share: float):
    with pytest.raises(ValueError, match="cuda_graph_memory"):
        fuselens.compile(lambda x: x, options={"cuda_graph_memory": share})


# --- allow_in_graph, assume_constant_result, substitute_in_graph


def opaque(x, pair, *, scale):
    table = {"a": x * scale}
    exec("table['b'] = table['a'] + 1")  # nothing that could be traced
    return table["b"] + pair[0], [pair[1] * 2]


def test_allow_in_graph():
    assert fuselens.allow_in_graph(opaque) is opaque
    assert fuselens.allow_in_graph([opaque]) == [opaque]

    def fn(x):
        a, (b,) = opaque(x + 1, (x, x * 3), scale=2.0)
        return a * b

    for backend in ("eager", "aot_eager"):
        f = fuselens.compile(fn, backend=backend, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(f(t(3)), fn(t(3)))
        assert graphs(f) == 1
    x, y = t(3).requires_grad_(), t(3).requires_grad_()
    fuselens.compile(fn, fullgraph=True)(x).sum().backward()
    fn(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    with pytest.raises(TypeError, match="allow_in_graph expects"):
        fuselens.allow_in_graph(3)


CALLS: list[int] = []


@fuselens.assume_constant_result
def flag(n):
    CALLS.append(n)
    return len(CALLS) + n


class Holder:
    def __init__(self):
        self.calls = 0

    @fuselens.assume_constant_result
    def size(self):
        self.calls += 1
        return 5


def test_assume_constant_result():
    CALLS.clear()
    fn = compiled(lambda x: x * flag(10), fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(fn(t(3)), t(3) * 11)
    holder = Holder()
    fn = compiled(lambda h, x: x * h.size(), fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(fn(holder, t(3)), t(3) * 5)
    assert holder.calls == 1
    fn = compiled(lambda x: x * flag(x))
    torch.testing.assert_close(fn(t(3)), t(3) * (2 + t(3)))
    assert breaks(fn) == ["FL104"]


def test_substitute_in_graph(monkeypatch):
    monkeypatch.setattr(marks, "_polyfills", {})  # one of this test alone: with any, processes do not share frames

    @fuselens.substitute_in_graph(math.cbrt)
    def cbrt(x, /):
        return x ** (1 / 3)

    fn = compiled(lambda x, n: x * math.cbrt(n), fullgraph=True)
    torch.testing.assert_close(fn(t(3), 8.0), t(3) * 2.0)
    assert cbrt(8.0) == 2.0
    with pytest.raises(TypeError, match="signatures differ"):
        fuselens.substitute_in_graph(math.sqrt)(lambda x, y: x)
    with pytest.raises(TypeError, match="expects a function"):
        fuselens.substitute_in_graph(int)
    with pytest.raises(TypeError, match="must be a Python function"):
        fuselens.substitute_in_graph(math.sqrt)(math.cbrt)


def test_marks_do_not_spread_to_wrappers():
    @fuselens.assume_constant_result
    def inner(x):
        return 3

    @functools.wraps(inner)
    def outer(x):
        return x * inner(1)

    fn = compiled(lambda x: outer(x), fullgraph=True)
    torch.testing.assert_close(fn(t(3)), t(3) * 3)
    torch.testing.assert_close(fn(t(3) + 1), (t(3) + 1) * 3)


# --- stances


def tells(x):
    return x + (1 if fuselens.is_compiling() else 0)


def was_compiled(fn, n=3) -> bool:
    return bool((fn(torch.zeros(n)) == 1).all())


def test_force_eager():
    fn = compiled(tells)
    assert was_compiled(fn)
    with fuselens.set_stance("force_eager"):
        assert not was_compiled(fn)
        assert not was_compiled(compiled(tells))
    assert was_compiled(fn)


def test_eager_on_recompile():
    fn = compiled(tells)
    assert was_compiled(fn, 3)
    with fuselens.set_stance("eager_on_recompile"):
        assert was_compiled(fn, 3)
        assert not was_compiled(fn, 4)
    assert graphs(fn) == 1
    assert was_compiled(fn, 4)


def test_fail_on_recompile():
    fn = compiled(tells)
    assert was_compiled(fn, 3)
    fuselens.set_stance("fail_on_recompile")
    assert was_compiled(fn, 3)
    with pytest.raises(fuselens.RecompileError, match=r"FL201.*because of x: expected f32\[3\]"):
        fn(torch.zeros(4))
    with pytest.raises(RuntimeError, match="stance is fail_on_recompile"):
        compiled(helper)(torch.zeros(4))
    fuselens.set_stance("default")
    assert was_compiled(fn, 4)


def test_eager_then_compile():
    with fuselens.set_stance("eager_then_compile"):
        fn = compiled(tells)
        assert not was_compiled(fn)
        assert was_compiled(fn)


def test_stance_as_a_decorator():
    fn = compiled(tells)

    @fuselens.set_stance("force_eager")
    def call():
        return was_compiled(fn)

    assert was_compiled(fn)
    assert call() is False
    assert call.__name__ == "call"
    assert was_compiled(fn)


def test_stances_nest_and_hold_for_all_threads():
    fn = compiled(tells)
    seen = []
    with fuselens.set_stance("force_eager"):
        with fuselens.set_stance("default"):
            assert was_compiled(fn)
        thread = threading.Thread(target=lambda: seen.append(was_compiled(fn)))
        thread.start()
        thread.join()
    assert seen == [False]
    with pytest.raises(ZeroDivisionError), fuselens.set_stance("force_eager"):
        _ = 1 / 0
    assert was_compiled(fn)


def test_wrong_stances():
    with pytest.raises(ValueError, match="unknown stance 'fast'; stances are default, force_eager"):
        fuselens.set_stance("fast")
    with fuselens.set_stance("default", skip_guard_eval_unsafe=True):
        pass
    with pytest.raises(ValueError, match="force_backend is not supported"):
        fuselens.set_stance("default", force_backend="eager")


def sets_stance(x):
    fuselens.set_stance("force_eager")
    return x + 1


def sets_torch_stance(x):
    torch.compiler.set_stance("force_eager")
    return x + 1


@pytest.mark.parametrize("fn", [sets_stance, sets_torch_stance])
def test_setting_a_stance_in_compiled_code_is_an_error(fn):
    with pytest.raises(RuntimeError, match="set_stance cannot be called inside compiled code"):
        compiled(fn)(t(3))
    assert was_compiled(compiled(tells))


# --- torch's spellings, with the peer loaded: in processes of their own


@pytest.fixture
def run(tmp_path):
    return functools.partial(run_in, tmp_path / "program.py")


def run_in(path: Path, program: str) -> None:
    head = """
        import torch, fuselens
        def compiled(fn, **arguments):
            return fuselens.compile(fn, backend="eager", options={"strict": True}, **arguments)
        def report(fn):
            return fn.__fuselens__.recorder.report
        def codes(fn):
            return [b.code for b in report(fn).breaks]
        close = torch.testing.assert_close
        x = torch.arange(3.0)
        def tells(x):
            return x + (1 if torch.compiler.is_compiling() else 0)
    """
    path.write_text(textwrap.dedent(head) + textwrap.dedent(program))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_torch_spellings_of_marks(run):
    run("""
        @torch.compiler.disable
        def off(x):
            return tells(x)
        def calls(x):
            return off(x) + 10
        f = compiled(calls)
        for _ in range(2):
            close(f(x), x + 10)
        assert codes(f) == ["FL114"], codes(f)

        g = compiled(lambda x: print(end="") or [off(x) for _ in range(2)][0])
        close(g(x), x)

        @torch.compiler.allow_in_graph
        def opaque(x):
            return x * len(str(vars()))
        f = compiled(lambda x: opaque(x) + 1, fullgraph=True)
        close(f(x), opaque(x) + 1)

        n = [0]
        @torch.compiler.assume_constant_result
        def constant():
            n[0] += 1
            return n[0]
        f = compiled(lambda x: x * constant(), fullgraph=True)
        f(x)
        close(f(x), x)

        def breaks(x):
            x = x + 1
            torch._dynamo.graph_break()
            return x * 2
        f = compiled(breaks)
        close(f(x), (x + 1) * 2)
        assert codes(f) == ["FL111"], codes(f)

        f = compiled(lambda x: (x, torch._dynamo.is_compiling()), fullgraph=True)
        assert f(x)[1] is True
        torch.compiler.reset()
        close(f(x)[0], x)
    """)


def test_torch_stances_are_followed(run):
    run("""
        import sys
        f = compiled(tells)
        close(f(x), x + 1)
        assert "torch._dynamo.eval_frame" not in sys.modules
        torch.compiler.set_stance("force_eager")
        close(f(x), x)
        torch.compiler.set_stance("default")
        close(f(x), x + 1)
        with torch.compiler.set_stance("eager_on_recompile"):
            close(f(x), x + 1)
            close(f(x[:2]), x[:2])
        with torch.compiler.set_stance("fail_on_recompile"):
            try:
                f(x[:2])
            except RuntimeError as e:
                assert "expected" in str(e)
            else:
                raise AssertionError
        with torch.compiler.set_stance("force_eager"), fuselens.set_stance("eager_on_recompile"):
            close(f(x), x + 1)
    """)


def test_both_compilers_in_one_process(run):
    run("""
        import threading
        torch._dynamo.config.suppress_errors = False
        theirs = lambda fn: torch.compile(fn, backend="eager")
        def inner(x):
            y = x.sin() + 1
            print(end="")
            return y * 2
        expected = inner(x)

        # theirs inside ours: the original is traced
        their_inner = theirs(inner)
        f = compiled(lambda x: their_inner(x) + 1)
        for _ in range(3):
            close(f(x), expected + 1)
        f = compiled(lambda x: theirs_whole(x) + 1, fullgraph=True)
        theirs_whole = theirs(lambda x: x.cos() * 2)
        close(f(x), x.cos() * 2 + 1)
        assert len(report(f).graphs) == 1, report(f).summary()

        # theirs inside ours, called from what runs eagerly
        calls = []
        def backend(gm, inputs):
            calls.append(gm)
            return gm.forward
        counted = torch.compile(inner, backend=backend)
        def eagerly(x):
            return [counted(v) for v in {1: x}.values() if id(v)][0]
        f = compiled(fuselens.disable(eagerly))
        for _ in range(3):
            close(f(x), expected)
        assert len(calls) == 2, len(calls)

        # ours inside theirs
        ours = compiled(inner)
        g = theirs(lambda x: ours(x + 0) + 1)
        for _ in range(3):
            close(g(x), expected + 1)
        assert len(report(ours).graphs) == 2, report(ours).summary()
        torch._dynamo.reset()
        close(g(x[:2]), expected[:2] + 1)

        # ours inside theirs inside ours
        h = compiled(fuselens.disable(g))
        for _ in range(3):
            close(h(x), expected + 1)

        # side by side, in threads
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        fs = [theirs(inner), compiled(inner), theirs(net), compiled(net)]
        errors = []
        def work(fn, want):
            try:
                for i in range(30):
                    close(fn(x), want)
            except BaseException as e:
                errors.append(e)
        wants = [inner(x), inner(x), net(x), net(x)]
        threads = [threading.Thread(target=work, args=pair) for pair in zip(fs, wants) for _ in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors, errors

        # modules that torch compiled, whole or with .compile()
        module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        want = module(x)
        f = compiled(torch.compile(module, backend="eager"))
        close(f(x), want)
        assert f.__fuselens__.target is module
        module[0].compile(backend="eager")
        f = compiled(lambda x: module(x) + 0, fullgraph=True)
        close(f(x), want)
        outer = torch.nn.Sequential(torch.compile(torch.nn.Linear(3, 3), backend="eager"))
        close(compiled(outer)(x), outer(x))
        from fuselens.capture.hook import _hook
        assert not _hook.is_installed() and _hook.stats()["active_regions"] == 0
        close(theirs(inner)(x), expected)
    """)
