"""Reassembled functions behave as the originals; emitted code runs; liveness is what a reader would say."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import types
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuselens.capture.bytecode import instruction as bc


def reassembled(fn: types.FunctionType) -> types.FunctionType:
    def again(code: types.CodeType) -> types.CodeType:
        decoded = bc.decode(code)
        for it in decoded.instructions:
            it.arg = None if it.argval is not None else it.arg
            if isinstance(it.argval, types.CodeType):
                it.argval = again(it.argval)
        consts = tuple(again(c) if isinstance(c, types.CodeType) else c for c in code.co_consts[:1])
        return bc.assemble(code, decoded.instructions, decoded.handlers, co_consts=consts, co_names=())

    made = types.FunctionType(again(fn.__code__), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def finally_in_try(log: list[str]) -> str:
    try:
        try:
            raise ValueError("inner")
        finally:
            log.append("finally")
            raise KeyError("outer")
    except KeyError as e:
        return f"{e!r} {e.__context__!r} {log}"


def loops(n: int) -> list[Any]:
    out: list[Any] = []
    for i in range(n):
        if i % 3 == 0:
            continue
        for j in range(i):
            if j > 3:
                break
            out.append((i, j))
        else:
            out.append("else")
    while out and len(out) > 5:
        out.pop()
    return out


def with_suppress() -> list[str]:
    log = []
    with contextlib.suppress(ZeroDivisionError), contextlib.nullcontext("x") as x:
        log.append(x)
        1 / 0  # noqa: B018
    for _ in range(2):
        with contextlib.nullcontext():
            log.append("y")
            continue
    return log


def comprehensions(n: int) -> Any:
    x = "outer"
    table = {i: [x * i for x in range(i) if x] for i in range(n)}
    late = [lambda: i for i in range(3)]  # noqa: B023
    nested = [[(lambda: (i, j))() for i in range(2)] for j in range(2)]
    return table, [f() for f in late], x, nested, {*range(3)}, *(i for i in range(2))


def closures(a: int, *args: int, k: int = 3, **kw: int) -> Any:
    total = a

    def add(v: int) -> int:
        nonlocal total
        total += v + k
        return total

    return [add(v) for v in args], total, kw, f"{a!r:>4}|{k:{a}}|{total!s}"


def matching(v: Any) -> Any:
    match v:
        case {"a": [x, *rest], **others}:
            return x, rest, others
        case complex(real=r, imag=0.0):
            return r
        case (1 | 2) as n, *_:
            return n
        case None:
            return "none"
        case _:
            return "else"


def groups() -> list[str]:
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        log.append(repr(e.exceptions))
    except* KeyError:
        log.append("key")
    return log


async def ticks(n: int) -> Any:
    try:
        for i in range(n):
            yield i
            await asyncio.sleep(0)
    finally:
        await asyncio.sleep(0)


class Base:
    def f(self, v: int) -> int:
        return v + 1


class Derived(Base):
    def f(self, v: int) -> int:
        return super().f(v) + super(Derived, self).f(v)  # noqa: UP008


def generator(n: int) -> Any:
    got = yield from (i for i in range(n))
    try:
        got = yield "first"
    except ValueError:
        got = "thrown"
    return got


def drive() -> list[Any]:
    g = reassembled(generator)(2)
    out = [next(g), next(g), next(g)]
    try:
        g.throw(ValueError("x"))
    except StopIteration as e:
        out.append(e.value)
    return out


@pytest.mark.parametrize(
    "fn, args",
    [
        (finally_in_try, ([],)),
        (loops, (9,)),
        (with_suppress, ()),
        (comprehensions, (4,)),
        (closures, (8, 1, 2)),
        (matching, ({"a": [1, 2, 3], "b": 4},)),
        (matching, (complex(3, 0),)),
        (matching, ((2, 5),)),
        (matching, (None,)),
        (groups, ()),
    ],
)
def test_same_behaviour(fn: Any, args: tuple[Any, ...]) -> None:
    def fresh() -> tuple[Any, ...]:
        return tuple(list(a) if isinstance(a, list) else a for a in args)

    assert reassembled(fn)(*fresh()) == fn(*fresh())


def test_generators_and_super() -> None:
    assert drive() == [0, 1, "first", "thrown"]

    async def collect(fn: Any) -> list[int]:
        return [i async for i in fn(3)]

    assert asyncio.run(collect(reassembled(ticks))) == [0, 1, 2]
    assert reassembled(Derived.f)(Derived(), 3) == 8


def bare(name: str = "made", args: tuple[str, ...] = ()) -> types.CodeType:
    """An empty function with these arguments."""
    return (lambda: None).__code__.replace(co_name=name, co_varnames=args, co_argcount=len(args), co_nlocals=len(args))


def run(body: list[bc.Instruction], args: dict[str, Any] | None = None, handlers: tuple[bc.Handler, ...] = ()) -> Any:
    args = args or {}
    code = bc.assemble(bare(args=tuple(args)), [*bc.resume(), *body], handlers, co_consts=(), co_names=())
    return types.FunctionType(code, {"__builtins__": __builtins__, "print": print})(*args.values())


def test_constants_are_told_apart() -> None:
    marker = object()
    values: list[Any] = [
        1,
        1.0,
        True,
        0.0,
        -0.0,
        "1",
        b"1",
        (1,),
        (1.0,),
        (True,),
        1j,
        marker,
        [],
        None,
        ...,
        frozenset({1}),
    ]
    body = [it for v in values for it in bc.load_const(v)]
    got = run([*body, *bc.build_list(len(values)), *bc.return_value()])
    assert [(type(v), repr(v)) for v in got] == [(type(v), repr(v)) for v in values]
    assert got[11] is marker and got[12] is values[12]


def test_calls() -> None:
    def f(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    one, two = bc.load_const(1), bc.load_const(2)
    assert run([*bc.prepare_call(bc.load_const(f)), *one, *two, *bc.call(2), *bc.return_value()]) == ((1, 2), {})
    assert run([*bc.prepare_call(bc.load_const(f)), *one, *two, *bc.call(2, ("k",)), *bc.return_value()]) == (
        (1,),
        {"k": 2},
    )
    body = [*bc.load_const(f), *one, *two, *bc.prepare_call_below(3)]
    assert run([*body, *bc.call(2), *bc.return_value()]) == ((1, 2), {})
    top = [*bc.load_const(f), *bc.prepare_call_below(1), *one, *bc.call(1), *bc.return_value()]
    assert run(top) == ((1,), {})
    ex = [*bc.prepare_call(bc.load_const(f)), *bc.load_const((1,)), *bc.load_const("a"), *two, *bc.build_map(1)]
    assert run([*ex, *bc.call_function_ex(kwargs=True), *bc.return_value()]) == ((1,), {"a": 2})


def test_branches_and_loops_both_ways() -> None:
    """sum of the odd numbers below n, with a conditional jump backwards"""
    top, end = bc.nop()[0], bc.nop()[0]
    even = bc.nop()[0]
    body = [
        *bc.load_const(0), *bc.store_fast("i"), *bc.load_const(0), *bc.store_fast("s"),
        top,
        *bc.load_fast("i"), *bc.load_const(2), *bc.binary_op("%"), *bc.pop_jump_if(False, even),
        *bc.load_fast("s"), *bc.load_fast("i"), *bc.binary_op("+="), *bc.store_fast("s"),
        even,
        *bc.load_fast("i"), *bc.load_const(1), *bc.binary_op("+"), *bc.store_fast("i"),
        *bc.load_fast("i"), *bc.load_fast("n"), *bc.compare("<"), *bc.pop_jump_if(True, top),
        *bc.jump(end),
        end,
        *bc.load_fast("s"), *bc.return_value(),
    ]  # fmt: skip
    assert run(body, {"n": 1000}) == sum(i for i in range(1000) if i % 2)
    for _ in range(3):  # specialised by now
        assert run(body, {"n": 10_000}) == sum(i for i in range(10_000) if i % 2)


def test_closures_and_handlers() -> None:
    holder = compile("def f():\n x = 1\n def g(): return x\n return g", "<t>", "exec")
    outer = next(c for c in holder.co_consts if isinstance(c, types.CodeType))
    getter = next(c for c in outer.co_consts if isinstance(c, types.CodeType))
    body = [
        *bc.prologue(["x"], []), *bc.load_const(7), *bc.store_deref("x"),
        *bc.make_function(getter, ["x"]), *bc.return_value(),
    ]  # fmt: skip
    code = bc.assemble(bare(), body, co_cellvars=("x",), co_consts=())
    assert types.FunctionType(code, {})()() == 7

    start, target = bc.load_const(None)[0], bc.nop()[0]
    raising = [start, *bc.load_const(KeyError), *bc.raise_varargs(1)]
    caught = [
        target,
        bc.Instruction("PUSH_EXC_INFO"),
        *bc.pop_top(),
        bc.Instruction("POP_EXCEPT"),
        *bc.load_const("c"),
        *bc.return_value(),
    ]
    assert run([*raising, *caught], handlers=(bc.Handler(start, raising[-1], target, 0, False),)) == "c"


def test_unbound_local_is_an_error_not_a_crash() -> None:
    with pytest.raises(UnboundLocalError):
        run([*bc.load_fast("nope", maybe_unbound=True), *bc.return_value()])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 700), st.integers(0, 700), st.integers(1, 5000))
def test_wide_arguments_and_long_jumps(n_consts: int, n_names: int, n_nops: int) -> None:
    """Every argument and jump gets the width it needs."""
    end = bc.nop()[0]
    body = [*bc.load_const(True), *bc.pop_jump_if(True, end)]
    body += [it for _ in range(n_nops) for it in bc.nop()]
    body += [end]
    body += [it for i in range(n_consts) for it in (*bc.load_const(("c", i)), *bc.pop_top())]
    body += [it for i in range(n_names) for it in (*bc.load_const(i), *bc.store_fast(f"v{i}"))]
    body += [*bc.load_const("last"), *bc.return_value()]
    assert run(body) == "last"


POSITIONS = st.one_of(
    st.just(bc.NO_POSITION),
    st.integers(1, 3000).map(lambda line: (line, line, None, None)),
    st.tuples(st.integers(1, 3000), st.integers(0, 40), st.integers(0, 300), st.integers(0, 300)).map(
        lambda p: (p[0], p[0] + p[1], p[2], p[3] if p[1] else p[2] + p[3])
    ),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(POSITIONS, min_size=1, max_size=60), st.integers(1, 100))
def test_position_table(positions: list[bc.Position], first: int) -> None:
    body = [it for _ in positions for it in bc.load_const(None)]
    for it, position in zip(body, positions, strict=True):
        it.position = position
    code = bc.assemble(bare(), [*body, *bc.return_value()], co_firstlineno=first)
    assert [it.position for it in bc.decode(code).instructions[:-1]] == positions


def before(fn: Any, op: str, which: int = 0) -> frozenset[str]:
    """Locals live before the n-th instruction of that name."""
    decoded = bc.decode(fn.__code__)
    live = bc.live_locals(decoded.instructions, decoded.handlers)
    return live[[it for it in decoded.instructions if it.op.startswith(op)][which]]


def test_liveness() -> None:
    def straight(a: int, b: int) -> int:
        c = a + b
        return c * 2

    assert before(straight, "RESUME") == {"a", "b"}
    assert before(straight, "BINARY_OP", 1) == frozenset()

    def loop(xs: list[int], unused: int) -> int:
        total = 0
        for x in xs:
            total += x
        return total

    assert before(loop, "RESUME") == {"xs"}
    assert before(loop, "FOR_ITER") == {"total"}

    def handler(a: Any, b: Any) -> Any:
        try:
            a()
        except ValueError:
            return b
        return None

    assert before(handler, "RESUME") == {"a", "b"}
    assert before(handler, "CALL") == {"b"}

    def deleted(a: Any) -> None:
        b = a
        del b

    assert "b" not in before(deleted, "RESUME")


def test_call_of_method_and_global_in_normal_form() -> None:
    def f(o: Any) -> Any:
        return print(o.m(1), *o.n)

    ops = [m.op for it in bc.decode(f.__code__).instructions for m in bc.normalise(it)]
    assert "LOAD_METHOD" in ops and "LOAD_GLOBAL" in ops and "CALL" in ops and "CALL_FUNCTION_EX" in ops
    null, load = ops.index("PUSH_NULL"), ops.index("LOAD_GLOBAL")
    assert (null < load) == bc.NULL_FIRST == (sys.version_info < (3, 13))


def test_unknown_opcode() -> None:
    assert bc.normalise(bc.Instruction("FROM_THE_FUTURE")) == (bc.Micro("UNSUPPORTED", "FROM_THE_FUTURE"),)
