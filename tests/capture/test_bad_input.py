"""Input that nobody would write on purpose: as in eager, or a coded break; never a crash.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import types

import pytest
import torch

import fuselens
from fuselens.record.diagnostics import TABLE

from .harness import agrees_with_eager, run

x = torch.tensor([1.0, -2.0, 3.0])


def made(source: str, name: str = "f", **globals_) -> types.FunctionType:
    space = {"torch": torch, "fuselens": fuselens, **globals_}
    exec(compile(textwrap.dedent(source), "/generated/bad_input.py", "exec"), space)
    return space[name]


def codes_of(report) -> set[str]:
    return {d.code for d in [*report.breaks, *report.diagnostics]}


# --- big code ---------------------------------------------------------------------------------------------------------


def test_ten_thousand_instructions():
    lines = "\n".join(f"    y = y + {i % 7}" for i in range(1500))
    fn = made(f"def f(x):\n    y = x\n{lines}\n    print(y.dim())\n{lines}\n    return y\n")
    assert len(fn.__code__.co_code) // 2 > 10_000
    agrees_with_eager(fn, (x,), breaks=1, graphs=2)


def test_ten_thousand_instructions_of_python():
    lines = "\n".join(f"    n = (n * 31 + {i}) % 1009 if n % 3 else n + 1" for i in range(1000))
    agrees_with_eager(made(f"def f(x, n):\n{lines}\n    return x * n\n"), (x, 3))


def test_many_branches_and_breaks():
    lines = "\n".join(f"    if x.sum() > {i}:\n        print({i})\n        x = x - 1" for i in range(40))
    agrees_with_eager(made(f"def f(x):\n{lines}\n    return x\n"), (x * 9,))


def test_many_variables_and_constants():
    names = [f"v{i}" for i in range(400)]
    source = "def f(x):\n" + "".join(f"    {n} = x + {i}.5\n" for i, n in enumerate(names))
    agrees_with_eager(made(source + "    print('between')\n    return " + " + ".join(names) + "\n"), (x,))


def test_deeply_nested_expressions():
    agrees_with_eager(made("def f(x):\n    return " + "(" * 60 + "x" + " + 1)" * 60 + "\n"), (x,))


def test_deeply_nested_containers():
    agrees_with_eager(made("def f(x):\n    return " + "[" * 60 + "x" + "]" * 60 + "\n"), (x,))


def test_huge_constants():
    text, number = "a" * 1_000_000, 10**3000
    table = tuple(range(20_000))

    def fn(x, n):
        items = list(table)
        return x + len(text) + number % 7 + len(items) + n % 5, text, number * 2

    agrees_with_eager(fn, (x, 10**400), (x, 10**400 + 1))


def test_huge_ranges_and_shifts():
    def fn(x, n):
        span = range(10**12)
        return x + (1 << n) % 7, len(span), span[10**11], 10**11 in span, span[-1:].stop

    agrees_with_eager(fn, (x, 5000))


def test_a_loop_that_is_too_long_to_unroll():
    def fn(x):
        total = 0
        for i in range(300_000):
            total = (total + i) % 1000
        return x + total

    report = agrees_with_eager(fn, (x,))
    assert codes_of(report) <= set(TABLE)


# --- deep recursion ----------------------------------------------------------------------------------------------------


def down(x, n):
    return x if n == 0 else down(x + 1, n - 1)


def endless(x):
    return endless(x) + 1


def endless_with_breaks(x, depth=0):
    print(end="")
    return endless_with_breaks(x, depth + 1)


def catches_recursion(x):
    try:
        return endless(x)
    except RecursionError as e:
        return x, type(e), "maximum recursion depth exceeded" in str(e)


@pytest.mark.parametrize("depth", [10, 149, 151, 400])
def test_recursion(depth):
    agrees_with_eager(down, (x, depth))


@pytest.mark.parametrize("fn", [endless, endless_with_breaks])
def test_endless_recursion(fn):
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
            compiled(x)
    assert torch.equal(fuselens.compile(down, backend="eager")(x, 3), x + 3)


def test_recursion_error_that_is_caught():
    agrees_with_eager(catches_recursion, (x,))


# --- cyclic containers -------------------------------------------------------------------------------------------------


def test_a_cyclic_list_as_argument():
    def fn(x, items):
        return x * len(items) + items[0][0][1], items is items[0]

    items = []
    items += [items, 2]
    assert run(fuselens.compile(fn, backend="eager"), (x, items))[0][1] is True
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, items), fn(x, items))


def test_a_cyclic_dict_as_argument_that_is_changed():
    def fn(x, table):
        table["x"] = x + 1
        table["self"]["again"] = table
        return table["self"]["x"]

    def call(f):
        table = {}
        table["self"] = table
        result = f(x, table)
        return result, list(table), table["again"] is table, table["x"] is result

    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        expected, actual = call(fn), call(compiled)
        assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]


def test_cyclic_containers_as_results():
    def fn(x):
        items = [x + 1]
        items.append(items)
        table = {"items": items}
        table["self"] = table
        return items, table

    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        items, table = compiled(x)
        assert items[1] is items and table["self"] is table and table["items"] is items
        assert torch.equal(items[0], x + 1)


def test_cyclic_containers_across_breaks():
    def fn(x):
        items = [x + 1]
        items.append(items)
        print(len(items))
        items[1].append(x * 2)
        return items

    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        items = compiled(x)
        assert items[1] is items and len(items) == 3 and torch.equal(items[2], x * 2)


class Node:
    def __init__(self, value):
        self.value = value
        self.parent = None
        self.children = []

    def add(self, child):
        child.parent = self
        self.children.append(child)
        return child


def test_cyclic_objects():
    def fn(x):
        root = Node(x + 1)
        leaf = root.add(Node(x * 2)).add(Node(x - 1))
        return root, leaf, leaf.parent.parent.value

    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        root, leaf, value = compiled(x)
        assert leaf.parent.parent is root and root.children[0].children[0] is leaf and value is root.value


# --- objects that raise ------------------------------------------------------------------------------------------------


class Hostile:
    """Raises in whatever is named."""

    def __init__(self, *names):
        self.__dict__["names"] = names

    def _check(self, name):
        if name in self.__dict__["names"]:
            raise RuntimeError(f"hostile {name}")

    def __eq__(self, other):
        self._check("eq")
        return self is other

    def __hash__(self):
        self._check("hash")
        return 1

    def __bool__(self):
        self._check("bool")
        return True

    def __len__(self):
        self._check("len")
        return 3

    def __getattr__(self, name):
        if not name.startswith("__"):
            self._check("getattr")
        raise AttributeError(name)

    def __setattr__(self, name, value):
        self._check("setattr")
        self.__dict__[name] = value

    def __iter__(self):
        self._check("iter")
        return iter([1, 2])

    def __getitem__(self, key):
        self._check("getitem")
        return key

    def __contains__(self, key):
        self._check("contains")
        return True

    def __call__(self, v):
        self._check("call")
        return v + 1

    def __repr__(self):
        return f"Hostile{self.__dict__['names']}"


USES = {
    "eq": lambda x, h: (x + 1, h == 1, h != x.dim()),
    "hash": lambda x, h: (x + 1, {h: 1}[h]),
    "bool": lambda x, h: x + 1 if h else x,
    "len": lambda x, h: x * len(h),
    "getattr": lambda x, h: (x, h.missing),
    "setattr": lambda x, h: (x, setattr(h, "v", 1), h.v),
    "iter": lambda x, h: [x + i for i in h],
    "getitem": lambda x, h: x + h[2],
    "contains": lambda x, h: (x, 1 in h),
    "call": lambda x, h: h(x),
    "nothing": lambda x, h: (x + 1, h is None),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("raises", [True, False])
def test_objects_that_raise(use, raises):
    everything = tuple(n for n in USES if n != use)
    fn = USES[use]
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        hostile = Hostile(use) if raises else Hostile(*everything) if use == "nothing" else Hostile()
        expected, _, error, _ = run(lambda v: fn(v, hostile), (x,))
        actual, _, error_too, _ = run(lambda v: compiled(v, hostile), (x,))
        assert (type(error), str(error)) == (type(error_too), str(error_too))
        assert repr(expected) == repr(actual)


def test_guards_on_objects_that_raise():
    """Objects compared while compiling may raise when they are compared in a guard."""

    class Changing:
        raising = False

        def __eq__(self, other):
            if Changing.raising:
                raise RuntimeError("not now")
            return isinstance(other, Changing)

        __hash__ = None

        def __bool__(self):
            if Changing.raising:
                raise RuntimeError("not now")
            return True

    def fn(x, c, table):
        return x + 1 if c and table["c"] == c else x - 1

    compiled = fuselens.compile(fn, backend="eager")
    c, table = Changing(), {"c": Changing()}
    assert torch.equal(compiled(x, c, table), x + 1)
    Changing.raising = True
    with pytest.raises(RuntimeError, match="not now"):
        compiled(x, c, table)
    Changing.raising = False
    assert torch.equal(compiled(x, c, table), x + 1)


# --- things that change ------------------------------------------------------------------------------------------------


class Settings:
    scale = 2

    def __init__(self):
        self.offset = 1

    def apply(self, v):
        return v * self.scale + self.offset


def test_deleted_attributes():
    def fn(x, s):
        return s.apply(x)

    def steps(f):
        s, out = Settings(), []

        def call():
            out.append(repr(run(lambda v: f(v, s), (x,))[::2][:2]))

        call()
        del s.offset
        call()
        s.offset = 5
        call()
        s.scale = 3
        call()
        del s.scale
        call()
        return out

    assert steps(fuselens.compile(fn, backend="eager")) == steps(fn)


def test_functions_that_are_redefined():
    space = {}
    exec("def g(x):\n    return x + 1\n\ndef f(x):\n    return g(x) * 2\n", space)
    fn = fuselens.compile(space["f"], backend="eager")
    assert torch.equal(fn(x), (x + 1) * 2)
    exec("def g(x):\n    return x - 1\n", space)
    assert torch.equal(fn(x), (x - 1) * 2)
    space["g"].__code__ = (lambda x: x * 10).__code__
    assert torch.equal(fn(x), x * 20)
    del space["g"]
    with pytest.raises(NameError, match="name 'g' is not defined"):
        fn(x)
    space["g"] = torch.relu
    assert torch.equal(fn(x), torch.relu(x) * 2)


def test_code_that_is_replaced():
    def f(x):
        return x + 1

    def other(x):
        return x - 1

    fn = fuselens.compile(f, backend="eager")
    assert torch.equal(fn(x), x + 1)
    f.__code__ = other.__code__
    assert torch.equal(fn(x), x - 1)
    f.__defaults__ = (x,)
    assert torch.equal(fn(), x - 1)


def test_a_class_that_is_redefined():
    def fn(x, s):
        return s.apply(x)

    compiled = fuselens.compile(fn, backend="eager")

    class Local(Settings):
        pass

    s = Local()
    assert torch.equal(compiled(x, s), x * 2 + 1)
    Local.apply = lambda self, v: v - self.offset
    assert torch.equal(compiled(x, s), x - 1)
    s.apply = lambda v: v
    assert torch.equal(compiled(x, s), x)
    del s.apply, Local.apply
    assert torch.equal(compiled(x, s), x * 2 + 1)
    s.__class__ = Settings
    assert torch.equal(compiled(x, s), x * 2 + 1)


def test_builtins_that_are_replaced(monkeypatch):
    def fn(x, n):
        return x + len(bin(n))

    compiled = fuselens.compile(fn, backend="eager")
    assert torch.equal(compiled(x, 5), x + 5)
    monkeypatch.setattr("builtins.bin", lambda n: "seventy")
    assert torch.equal(compiled(x, 5), x + 7)
    monkeypatch.undo()
    assert torch.equal(compiled(x, 5), x + 5)


# --- exceptions while tracing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, MemoryError, RecursionError, GeneratorExit, StopIteration]
)
def test_exceptions_in_the_backend(error, monkeypatch):
    """What a backend raises reaches the caller, and the next call compiles anew."""
    monkeypatch.delenv("FUSELENS_STRICT")
    fail = True

    def backend(gm, inputs):
        if fail:
            raise error("while compiling")
        return gm.forward

    def fn(x):
        return x + 1

    compiled = fuselens.compile(fn, backend=backend)
    grad = torch.is_grad_enabled()
    if issubclass(error, Exception):
        with pytest.raises(fuselens.BackendError, match="while compiling"):
            compiled(x)
    else:
        with pytest.raises(error):
            compiled(x)
    assert torch.is_grad_enabled() == grad
    fail = False
    assert torch.equal(compiled(x), x + 1)


class InterruptsInProperty:
    @property
    def value(self):
        raise KeyboardInterrupt

    def __len__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize("use", [lambda x, o: x * o.value, lambda x, o: x * len(o), lambda x, o: x + 1 if o else x])
def test_interrupts_from_user_code(use):
    compiled = fuselens.compile(use, backend="eager")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compiled(x, InterruptsInProperty())
    assert sys.exc_info() == (None, None, None)


def test_a_signal_while_tracing():
    """A KeyboardInterrupt in the middle of the compiler's own work reaches the caller; the next call is right."""
    program = """
    import signal, sys, torch, fuselens
    def helper(v, n):
        for i in range(40):
            v = v * n + i
        return v
    def fn(x, n):
        for i in range(30):
            x = helper(x, n)
        return x
    x = torch.ones(3, dtype=torch.float64)
    def ring(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, ring)
    interrupted = 0
    for n, delay in enumerate([0.001, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15]):
        fuselens.reset()
        compiled = fuselens.compile(fn, backend="eager")
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            compiled(x, 0.5)
        except KeyboardInterrupt:
            interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert torch.equal(compiled(x, 0.5), fn(x, 0.5))
        assert torch.is_grad_enabled()
    print("interrupted", interrupted)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 0


def test_the_other_compiler_in_the_same_process():
    """torch's own compiler beside ours, around it and inside it, in any order."""
    program = """
    import torch, fuselens
    def f(x):
        y = x.sin() + 1
        if y.sum() > 0:
            y = y * 2
        return y
    def g(x):
        return f(x) - 1
    x = torch.arange(3.0)
    ours, theirs = fuselens.compile(f, backend="eager"), torch.compile(f, backend="eager")
    for _ in range(2):
        assert torch.equal(ours(x), f(x))
        assert torch.equal(theirs(x), f(x))
    def calls_ours(x):
        return ours(x) + 1
    def calls_theirs(x):
        return theirs(x) + 1
    for n in (3, 4, 5):
        x = torch.arange(float(n))
        assert torch.equal(torch.compile(calls_ours, backend="eager")(x), f(x) + 1)
        assert torch.equal(fuselens.compile(calls_theirs, backend="eager")(x), f(x) + 1)
        assert torch.equal(fuselens.compile(g, backend="eager")(x), g(x))
        assert torch.equal(torch.compile(g, backend="eager")(x), g(x))
    torch.compiler.reset()
    fuselens.reset()
    assert torch.equal(ours(x), f(x)) and torch.equal(theirs(x), f(x))
    print("fine")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=170)
    assert done.stdout.strip() == "fine", done.stderr[-3000:]


def test_arguments_that_are_gone():
    """Weakly held objects that die between calls are told apart from those that take their place in memory."""

    def fn(x, f):
        return f(x)

    compiled = fuselens.compile(fn, backend="eager")
    for n in range(6):
        scale = made(f"def f(x):\n    return x * {n}\n")
        assert torch.equal(compiled(x, scale), x * n)
        del scale
        gc.collect()
