"""Frames that run other code than their own: entries, callbacks, regions, and everything that could go wrong."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fuselens.capture.bytecode import emitters as bc
from fuselens.capture.bytecode.assembly import assemble
from fuselens.capture.hook import _hook as h

ALWAYS = h.Guards([], [])


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    h.clear_all()
    h.reset_stats()
    yield
    assert h.stats()["active_regions"] == 0 and not h.is_installed()
    h.clear_all()


def silent(*_: Any) -> None:
    """A callback that lets everything run as it is."""


def entry(fn: types.FunctionType, guards: h.Guards = ALWAYS) -> h.Entry:
    return h.Entry(guards, fn.__code__)


def of_type(kind: type) -> h.Guards:
    return h.Guards([(0, h.ROOT_LOCAL, 0)], [(0, h.TYPE_IS, kind)])


def test_entry_replaces_code_inside_regions_only() -> None:
    def f(x: int, y: int = 2) -> Any:
        return "original", x, y

    def g(x: int, y: int = 2) -> Any:
        extra = [x, y, [x, (y, x)]]
        return "replaced", *extra[:2]

    h.add_entry(f, entry(g))
    region = h.Region(f, silent)
    assert f(1) == ("original", 1, 2)
    assert region(1) == region(1, 2) == region(x=1) == ("replaced", 1, 2)
    assert h.entries(f)[0].hits == 3 and h.stats()["hits"] == 3
    assert f(1) == ("original", 1, 2)
    assert h.remove_entry(f.__code__, h.entries(f)[0]) and h.entries(f) == []
    assert region(1) == ("original", 1, 2)


def test_callback_sees_function_arguments_and_misses() -> None:
    seen: list[Any] = []

    def f(a: Any, b: Any = 2, *c: Any, k: Any = 3, **d: Any) -> Any:
        return "original"

    def g(a: Any, b: Any = 2, *c: Any, k: Any = 3, **d: Any) -> Any:
        return a, b, c, k, d

    def callback(func: Any, code: Any, args: Any, misses: Any) -> h.Entry:
        seen.append((func, code, args, misses))
        return entry(g, of_type(type(args[0])))

    region = h.Region(f, callback)
    assert region(1, 2, 3, z=4) == (1, 2, (3,), 3, {"z": 4})
    assert region(2) == (2, 2, (), 3, {})
    assert region("s") == ("s", 2, (), 3, {})
    assert region(3) == (3, 2, (), 3, {})
    assert len(seen) == 2
    assert seen[0] == (f, f.__code__, (1, 2, 3, (3,), {"z": 4}), ())
    func, _, args, misses = seen[1]
    assert func is f and args == ("s", 2, 3, (), {})
    assert misses == ((h.entries(f)[0], 0),), "the entry hit last comes first again"


def test_entry_that_does_not_fit_the_asking_frame_is_rejected() -> None:
    def f(x: Any) -> str:
        return "original"

    def g(x: Any) -> str:
        return "replaced"

    assert h.Region(f, lambda *_: entry(g, of_type(str)))(1) == "original"
    assert h.stats()["rejected"] == 1 and h.entries(f) == []


def test_errors_in_callbacks_reach_the_caller() -> None:
    def f(x: Any) -> Any:
        return x

    def raising(*_: Any) -> None:
        raise KeyError("from the callback")

    def wrong(*_: Any) -> Any:
        return 3

    def outer(x: Any) -> Any:
        try:
            return f(x)
        except KeyError as e:
            return "caught", e.args[0]

    h.skip(outer)
    kept = object()
    before = sys.getrefcount(kept)
    for _ in range(300):
        with pytest.raises(KeyError, match="from the callback"):
            h.Region(f, raising)(kept)
        with pytest.raises(TypeError, match="Entry or None"):
            h.Region(f, wrong)(kept)
        assert h.Region(outer, raising)(kept) == ("caught", "from the callback")
        with pytest.raises(ValueError, match="arguments differ"):
            h.Region(f, lambda *_: entry(raising))(kept)
    gc.collect()
    assert sys.getrefcount(kept) == before


def test_errors_in_replaced_code_have_its_traceback() -> None:
    def f(x: Any) -> Any:
        return x

    def g(x: Any) -> Any:
        y = x + 1
        raise RuntimeError(y)

    h.add_entry(f, entry(g))
    with pytest.raises(RuntimeError) as info:
        h.Region(f, silent)(1)
    assert info.traceback[-1].frame.code.name == "g"


def gathering(original: types.FunctionType, guards: h.Guards) -> h.Entry:
    """An entry whose code returns the gathered tuple."""
    names = (*original.__code__.co_varnames[: bc_arguments(original)], "gathered")
    body = [*bc.prologue((), original.__code__.co_freevars), *bc.load_fast("gathered"), *bc.return_value()]
    code = assemble(original.__code__, body, co_varnames=names, co_cellvars=(), co_consts=())
    return h.Entry(guards, code, len(names) - 1)


def bc_arguments(fn: types.FunctionType) -> int:
    c = fn.__code__
    return c.co_argcount + c.co_kwonlyargcount + bool(c.co_flags & 4) + bool(c.co_flags & 8)


def test_gathered_tuple_is_a_local() -> None:
    free = "free"

    def f(o: Any, *rest: Any) -> Any:
        return free

    nodes = [(0, h.ROOT_LOCAL, 0), (0, h.INSTANCE_DICT, None), (1, h.DICT_ITEM, "a"), (1, h.DICT_ITEM, "b"),
             (0, h.ROOT_CLOSURE, 0), (4, h.CELL_CONTENTS, None), (0, h.ROOT_LOCAL, 1)]  # fmt: skip
    h.add_entry(f, gathering(f, h.Guards(nodes, [(2, h.TYPE_IS, int)], [2, 3, 5, 6])))
    o = types.SimpleNamespace(a=1, b="b")
    assert h.Region(f, silent)(o, 9) == (1, "b", "free", (9,))
    o.a = "no longer an int"
    assert h.Region(f, silent)(o) == "free"
    with pytest.raises(ValueError, match="gather_slot"):
        h.Entry(ALWAYS, f.__code__, 0)


def test_cells_and_free_variables() -> None:
    factor = 3

    def f(x: int, y: int) -> Any:
        return x * factor

    def g(x: int, y: int) -> Any:
        z = 100

        def inner() -> int:
            return x * factor + y + z

        y += 1
        return inner()

    h.add_entry(f, entry(g))
    assert h.Region(f, silent)(2, 5) == 2 * 3 + 6 + 100
    with pytest.raises(ValueError, match="free variables"):
        h.add_entry(f, entry(lambda x, y: x))


def test_generators_coroutines_and_module_code_run_as_they_are() -> None:
    names: list[str] = []

    def callback(func: Any, code: types.CodeType, args: Any, misses: Any) -> None:
        if code.co_filename == __file__:  # exec is audited, which may run anybody's code
            names.append(code.co_name)

    def gen(n: int) -> Iterator[int]:
        yield from range(n)

    async def coro() -> int:
        return 5

    def f() -> Any:
        c = coro()
        try:
            c.send(None)
        except StopIteration as e:
            result = e.value
        exec("a = 1")
        return sum(gen(4)), result, list(gen(2))

    assert h.Region(f, callback)() == (6, 5, [0, 1])
    assert names == ["f"]
    with pytest.raises(ValueError, match="generators"):
        h.add_entry(gen, entry(lambda n: n))


def test_regions_nest_and_restore() -> None:
    log: list[str] = []

    def logging(name: str) -> Any:
        return lambda func, code, args, misses: log.append(f"{name}:{code.co_name}")

    def inner() -> None: ...
    def middle() -> None:
        b()

    def outer() -> None:
        inner()
        middle()
        inner()

    b = h.Region(inner, logging("b"))
    h.Region(outer, logging("a"))()
    assert log == ["a:outer", "a:inner", "a:middle", "b:inner", "a:inner"]
    assert not h.is_installed()


def test_disabled_and_skip() -> None:
    names: list[str] = []

    def callback(func: Any, code: types.CodeType, args: Any, misses: Any) -> None:
        names.append(code.co_name)

    def leaf() -> None: ...
    def skipped() -> None:
        leaf()

    def deep() -> None:
        leaf()

    off = h.disabled(deep)

    def f() -> None:
        skipped()
        off()
        deep()

    h.skip(skipped)
    h.skip(deep.__code__, recursive=True)
    h.Region(f, callback)()
    assert names == ["f", "leaf"], "only below the skipped one"
    assert h.is_skipped(skipped) and h.is_skipped(deep)
    h.unskip(skipped)
    h.clear_all()
    assert not h.is_skipped(skipped) and not h.is_skipped(deep)
    assert not h.is_skipped(f)


def test_capture_is_off_in_callbacks_and_guards() -> None:
    names: list[str] = []

    def helper(*_: Any) -> bool:
        return True

    def callback(func: Any, code: types.CodeType, args: Any, misses: Any) -> h.Entry | None:
        helper()
        names.append(code.co_name)
        return h.Entry(h.Guards([(0, h.ROOT_LOCAL, 0)], [(0, h.CALL, helper), (0, h.GLOBAL_CALL, helper)]), g.__code__)

    def f(x: int) -> Any:
        return x

    def g(x: int) -> Any:
        return -x

    region = h.Region(f, callback)
    assert [region(1), region(2)] == [-1, -2] and names == ["f"]


def test_set_callback() -> None:
    def f() -> str:
        return "original"

    def g() -> str:
        return "replaced"

    h.add_entry(f, entry(g))
    h.skip(pytest.raises)
    assert h.set_callback(silent) is None
    try:
        assert h.is_installed()
        result = f()
    finally:
        previous = h.set_callback(None)
    assert (result, previous) == ("replaced", silent) and not h.is_installed()
    with pytest.raises(TypeError):
        h.set_callback(3)  # type: ignore[arg-type]


def test_regions_are_callables_like_functions() -> None:
    def decorate(fn: Any) -> Any:
        return functools.update_wrapper(h.Region(fn, silent), fn)

    class C:
        @decorate
        def method(self, x: int) -> Any:
            """Documentation."""
            return self, x

    c = C()
    assert c.method(3) == (c, 3) and C.method(c, x=4) == (c, 4)
    assert C.method.__name__ == "method" and C.method.__doc__ == "Documentation." and "method" in repr(C.method)
    assert weakref.ref(C.method)() is C.method
    C.method.note = 1
    assert C.method.__dict__["note"] == 1 and C.method.fn is C.method.__wrapped__ and C.method.callback is silent
    with pytest.raises(TypeError):
        h.Region(3, silent)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        h.Region(silent, None)  # type: ignore[arg-type]


def test_invalidated_entries_leave_at_the_next_miss() -> None:
    def f(x: Any) -> str:
        return "original"

    def g(x: Any) -> str:
        return "replaced"

    one, two = entry(g), entry(g, of_type(str))
    h.add_entry(f, two)
    h.add_entry(f, one)
    region = h.Region(f, silent)
    assert region(1) == "replaced"
    one.alive = False
    assert region("s") == "replaced" and len(h.entries(f)) == 2
    assert region(1) == "original" and h.entries(f) == [two]


def test_last_hit_comes_first() -> None:
    def f(x: Any) -> Any:
        return None

    kinds = [int, str, float, list]
    made = {kind: entry(lambda x: type(x), of_type(kind)) for kind in kinds}
    for kind in kinds:
        h.add_entry(f, made[kind])
    region = h.Region(f, silent)
    for value in (1, "s", 1.5, [], 1, 1):
        assert region(value) is type(value)
        assert h.entries(f)[0] is made[type(value)]
    assert made[int].hits == 3


def test_more_entries_than_fit_the_small_array() -> None:
    def f(x: int) -> Any:
        return None

    seen: list[int] = []
    for i in range(40):
        guards = h.Guards([(0, h.ROOT_LOCAL, 0)], [(0, h.EQUALS, i)])
        h.add_entry(f, entry(lambda x: -x, guards))
    region = h.Region(f, lambda func, code, args, misses: seen.append(len(misses)))
    assert [region(i) for i in range(40)] == [-i for i in range(40)]
    assert region(99) is None and seen == [40]


def test_guard_that_clears_the_table_while_it_is_walked() -> None:
    def f(x: Any) -> str:
        return "original"

    def g(x: Any) -> str:
        return "replaced"

    def clearing(_: Any) -> bool:
        h.clear(f)
        gc.collect()
        return verdict

    for verdict in (True, False):
        guards = h.Guards([(0, h.ROOT_LOCAL, 0)], [(0, h.CALL, clearing)])
        h.add_entry(f, entry(g))
        h.entries(f)[0].alive = False
        h.add_entry(f, entry(g, guards))
        del guards
        assert h.Region(f, silent)(1) == ("replaced" if verdict else "original")
        assert h.entries(f) == []


def test_function_whose_code_is_replaced_by_the_callback() -> None:
    def f(x: Any) -> str:
        return "original"

    def g(x: Any) -> str:
        return "replaced"

    def callback(func: Any, code: Any, args: Any, misses: Any) -> h.Entry:
        func.__code__ = (lambda x: "other").__code__
        gc.collect()
        return entry(g)

    assert h.Region(f, callback)(1) == "replaced"
    assert f(1) == "other"


def test_recursion_through_compiled_code() -> None:
    def f(n: int) -> int:
        return 0 if n == 0 else 1 + f(n - 1)

    def g(n: int) -> int:
        a, b, c = n, n, n
        return 0 if n == 0 else 1 + f(n - 1) + a - b + (c - n)

    assert g.__code__.co_freevars == f.__code__.co_freevars
    h.add_entry(f, entry(g))
    assert h.Region(f, silent)(900) == 900
    assert h.stats()["hits"] == 901

    def endless(n: int) -> int:
        return endless(n + 1)

    for _ in range(3):
        with pytest.raises(RecursionError):
            h.Region(endless, silent)(0)
    assert h.Region(f, silent)(900) == 900


def test_deep_data_stacks_fall_back_rarely_and_rightly() -> None:
    """Frames at the end of a stack chunk have no room for bigger code: registered ones ask for it beforehand."""
    names = [f"v{i}" for i in range(40)]
    body = "".join(f"    {n} = x + {i}\n" for i, n in enumerate(names))
    space: dict[str, Any] = {}
    exec(f"def big(x, depth):\n{body}    return down(x, depth - 1) if depth else ('big', {'+'.join(names)})\n", space)
    total = sum(range(40))

    exec("def small(x, depth):\n    return down(x, depth - 1) if depth else ('small', 0)\n", space)
    small = space["down"] = space["small"]
    region = h.Region(small, lambda func, code, args, misses: entry(space["big"]) if code is small.__code__ else None)
    for depth in range(400):
        assert region(0, depth) in (("big", total), ("small", 0))
    stats = h.stats()
    assert stats["hits"] > 70_000 and stats["chunk_fallbacks"] < 10


def test_threads() -> None:
    """Each thread has its own callback; regions come and go in all of them."""

    def f(x: int) -> Any:
        return None

    def g(x: int) -> Any:
        return threading.get_ident(), x

    wrong: list[Any] = []

    def work(n: int) -> None:
        def callback(func: Any, code: types.CodeType, args: Any, misses: Any) -> h.Entry | None:
            if owner != threading.get_ident():
                wrong.append("callback of another thread")
            return entry(g, h.Guards([(0, h.ROOT_LOCAL, 0)], [(0, h.EQUALS, args[0])])) if code is f.__code__ else None

        owner = threading.get_ident()
        region = h.Region(f, callback)
        for i in range(1500):
            if region(i % 5 + 10 * n) != (owner, i % 5 + 10 * n):
                wrong.append(i)
            if i % 100 == 0:
                h.clear(f)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_no_leaks_in_many_calls() -> None:
    def f(x: Any, *rest: Any) -> Any:
        return x

    o = types.SimpleNamespace(a=object())
    nodes = [(0, h.ROOT_LOCAL, 0), (0, h.GETATTR, "a"), (0, h.INSTANCE_DICT, None), (2, h.DICT_ITEM, "a")]
    e = gathering(f, h.Guards(nodes, [(0, h.TYPE_IS, types.SimpleNamespace), (1, h.SAME, 3)], [0, 1, 3]))
    h.add_entry(f, e)
    region = h.Region(f, silent)
    region(o)
    gc.collect()
    before = [sys.getrefcount(v) for v in (o, o.a, e, e.code, f, f.__code__, region, silent)]
    allocated = sys.getallocatedblocks()
    for _ in range(100_000):
        region(o)
    for i in range(2000):
        region(i)
    gc.collect()
    assert [sys.getrefcount(v) for v in (o, o.a, e, e.code, f, f.__code__, region, silent)] == before
    assert sys.getallocatedblocks() - allocated < 200


def test_entries_die_with_their_code() -> None:
    def make() -> Any:
        def f(x: Any) -> Any:
            return x

        f.__code__ = f.__code__.replace(co_name="unique")
        e = entry(lambda x: x)
        h.add_entry(f, e)
        return f, weakref.ref(e)

    f, ref = make()
    assert h.Region(f, silent)(1) == 1 and ref() is not None
    del f
    gc.collect()
    assert ref() is None


def test_regions_are_collected() -> None:
    class Owner: ...

    owner = Owner()
    owner.region = h.Region(lambda: owner, lambda *_: owner)  # type: ignore[attr-defined]
    owner.off = h.disabled(lambda: owner)  # type: ignore[attr-defined]
    ref = weakref.ref(owner)
    owner = None
    gc.collect()
    assert ref() is None


def test_tracing_sees_replaced_frames() -> None:
    def f(x: Any) -> Any:
        return x

    def g(x: Any) -> Any:
        return -x

    h.add_entry(f, entry(g))
    seen: list[str] = []
    region = h.Region(f, silent)
    sys.setprofile(lambda frame, event, arg: seen.append(f"{event} {frame.f_code.co_name}"))
    try:
        region(1)
    finally:
        sys.setprofile(None)
    assert seen[:2] == ["call g", "return g"]


def test_callback_errors_while_tracing() -> None:
    """Leaving an unstarted frame with an error must not upset trace and profile functions."""

    def f(x: Any) -> Any:
        return x

    def raising(*_: Any) -> None:
        raise KeyError

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        events.append(event)
        _ = frame.f_lineno, frame.f_locals, frame.f_lasti
        return trace

    events: list[str] = []
    region = h.Region(f, raising)
    sys.setprofile(trace)
    try:
        for _ in range(20):
            with pytest.raises(KeyError):
                region(1)
    finally:
        sys.setprofile(None)
    assert events


def test_code_runs_as_it_is_while_its_lines_are_watched() -> None:
    def f(x: Any) -> Any:
        return x

    def g(x: Any) -> Any:
        return -x

    h.add_entry(f, entry(g))
    region = h.Region(f, silent)
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: None)
    try:
        assert region(1) == 1
    finally:
        sys.settrace(before)
    assert before is not None or region(1) == -1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
@pytest.mark.parametrize("everywhere", [True, False])
def test_monitoring_tools_see_lines(everywhere: bool) -> None:
    def f(x: Any) -> Any:
        y = x
        return y

    def g(x: Any) -> Any:
        return -x

    monitoring = sys.monitoring
    h.add_entry(f, entry(g))
    region = h.Region(f, silent)
    lines: list[int] = []
    monitoring.use_tool_id(3, "test")
    try:
        monitoring.register_callback(
            3, monitoring.events.LINE, lambda code, line: lines.append(line - code.co_firstlineno)
        )
        monitoring.set_events(3, monitoring.events.PY_START)
        assert region(1) == -1
        lines.clear()
        if everywhere:
            monitoring.set_events(3, monitoring.events.LINE)
        else:
            monitoring.set_events(3, 0)
            monitoring.set_local_events(3, f.__code__, monitoring.events.LINE)
        assert region(1) == 1
        monitoring.set_events(3, 0)
        monitoring.set_local_events(3, f.__code__, 0)
        assert [n for n in lines if n in (1, 2)][:2] == [1, 2]
        assert region(1) == -1
    finally:
        monitoring.free_tool_id(3)


def test_interpreter_exit_inside_a_region() -> None:
    """Exit with an installed evaluator, live entries and callbacks is quiet."""
    program = """
import atexit, sys, threading
from fuselens.capture.hook import _hook as h
class Loud:
    def __del__(self): len([])
def f(x): return x
def g(x): return -x
keep = Loud()
def callback(func, code, args, misses):
    keep
    if code is f.__code__:
        return h.Entry(h.Guards([(0, h.ROOT_CONST, keep)], [(0, h.IS, keep)]), g.__code__)
atexit.register(lambda: h.Region(f, callback)(1))
h.set_callback(callback)
print(f(1))
def main():
    print(f(2)); sys.exit(3)
h.Region(main, callback)()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "-1\n-2\n", "")
