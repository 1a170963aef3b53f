"""Contexts, generators and exceptions: what is suspended, suppressed, stacked, warned of and raised again."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import warnings
from typing import Any

import torch

from ...program import Programs, some

programs = Programs()
log: list[str] = []
logger = logging.getLogger("peers.contexts")
local = threading.local()
local.scale = 3
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=4)


class Noted:
    def __init__(self, name: str, eats: bool = False) -> None:
        self.name, self.eats, self.seen = name, eats, []

    def __enter__(self) -> Any:
        self.seen.append("in")
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        self.seen.append("out" if kind is None else kind.__name__)
        return self.eats


@contextlib.contextmanager
def scaled(k: int) -> Any:
    yield k * 2


@contextlib.contextmanager
def guarded(seen: list[str]) -> Any:
    seen.append("before")
    try:
        yield seen
    except ValueError:
        seen.append("caught")
    finally:
        seen.append("after")


class Custom(Exception):
    def __init__(self, code: int, text: str = "none") -> None:
        super().__init__(text)
        self.code = code


class Decorating(contextlib.ContextDecorator):
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> bool:
        return False


@programs(lambda: (some(3),))
def suppressed(x):
    with contextlib.suppress(KeyError, IndexError):
        x = x + 1
        {}["k"]
        x = x + 100
    return x


@programs(lambda: (some(3),))
def exit_stack(x):
    first, second = Noted("a"), Noted("b", eats=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(first)
        stack.enter_context(second)
        x = x * 2
        raise_it = True
        if raise_it:
            raise ValueError
    return x, first.seen, second.seen


@programs(lambda: (some(3),))
def exit_stack_of_torch_contexts(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        x = x + 1
    return x, torch.is_grad_enabled()


@programs(lambda: (some(3),))
def exit_stack_with_callbacks(x):
    seen = []
    with contextlib.ExitStack() as stack:
        stack.callback(seen.append, 1)
        stack.callback(lambda v: seen.append(v), v=2)
        x = x + 1
    return x, seen


@programs(lambda: (some(3),))
def null_context(x):
    with contextlib.nullcontext(3) as k, contextlib.nullcontext():
        x = x * k
    return x


@programs(lambda: (some(3),))
def closing(x):
    class Closed:
        done = False

        def close(self) -> None:
            self.done = True

    with contextlib.closing(Closed()) as c:
        x = x + 1
    return x, c.done


@programs(lambda: (some(3),))
def generator_context(x):
    with scaled(3) as k:
        x = x * k
    return x


@programs(lambda: (some(3),))
def generator_context_that_handles(x):
    seen: list[str] = []
    with guarded(seen):
        x = x + 1
        raise ValueError("inside")
    return x, seen


@programs(lambda: (some(3),))
def generator_context_that_lets_pass(x):
    seen: list[str] = []
    try:
        with guarded(seen):
            raise KeyError("other")
    except KeyError as e:
        return x + 1, seen, str(e)


@programs(lambda: (some(3),))
def generator_context_as_a_decorator(x):
    @scaled(2)
    def f(v: Any) -> Any:
        return v * 2

    @Decorating()
    def g(v: Any) -> Any:
        return v + 1

    return f(x) + g(x)


@programs(lambda: (some(3), Noted("a")))
def context_as_an_argument(x, noted):
    with noted as inner:
        x = x + 1
    return x, inner.seen


@programs(lambda: (some(3), Noted("a", eats=True)))
def context_that_eats(x, noted):
    with noted:
        x = x + 1
        raise Custom(3)
    return x, noted.seen


@programs(lambda: (some(3),))
def several_contexts(x):
    a, b = Noted("a"), Noted("b")
    with a, b, torch.no_grad():
        x = x * 2
    return x, a.seen + b.seen


@programs(lambda: (some(3),))
def left_early(x):
    seen = Noted("a")
    for k in range(3):
        with seen:
            if k == 1:
                continue
            if k == 2:
                break
            x = x + k
    return x, seen.seen


@programs(lambda: (some(3),))
def returned_from_inside(x):
    with Noted("a"):
        try:
            return x + 1
        finally:
            x = x * 100


@programs(lambda: (some(3),))
def warnings_caught(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = x + 1
    return x * 2


@programs(lambda: (some(3),))
def warnings_recorded(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
        x = x + 1
    return x * 2, [str(w.message) for w in seen]


@programs(lambda: (some(3),))
def warned(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = x + 1
        warnings.warn("careful", stacklevel=2)
        x = x * 2
    return x


@programs(lambda: (some(3),))
def generator_suspended(x):
    def parts() -> Any:
        k = 1
        while True:
            got = yield x * k
            k = k + 1 if got is None else got

    g = parts()
    first = next(g)
    return first + g.send(10) + next(g)


@programs(lambda: (some(3),))
def generator_returned(x):
    def parts() -> Any:
        yield 1
        return x + 5

    def outer() -> Any:
        found = yield from parts()
        yield found

    return list(outer())[1]


@programs(lambda: (some(3),))
def generator_closed(x):
    seen = []

    def parts() -> Any:
        try:
            yield 1
            yield 2
        finally:
            seen.append("closed")

    g = parts()
    next(g)
    g.close()
    return x + 1, seen, list(g)


@programs(lambda: (some(3),))
def generator_thrown_into(x):
    def parts() -> Any:
        try:
            yield 1
        except ValueError as e:
            yield str(e)

    g = parts()
    next(g)
    return x + 1, g.throw(ValueError("thrown"))


@programs(lambda: (some(3),))
def generator_of_tensors_given_back(x):
    return [v + 1 for v in (x * k for k in range(3))]


def counting(x: Any) -> Any:
    yield x + 1
    yield x + 2


@programs(lambda: (some(3),))
def generator_made_elsewhere(x):
    a, b = counting(x)
    return a * b, sum(counting(1)), max(counting(2))


@programs(lambda: (some(3), counting(2)))
def generator_as_an_argument(x, g):
    return x + next(g)


@programs(lambda: (some(3),))
def raised_and_caught(x):
    try:
        raise Custom(4, "why")
    except Custom as e:
        return x + e.code, str(e), e.args


@programs(lambda: (some(3),))
def raised_from(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            raise ValueError("b") from e
    except ValueError as e:
        return x + 1, type(e.__cause__).__name__, type(e.__context__).__name__, e.__suppress_context__


@programs(lambda: (some(3),))
def raised_again(x):
    seen = []
    try:
        try:
            raise Custom(1)
        except Custom:
            seen.append("first")
            raise
    except Exception as e:
        return x + e.code, seen


@programs(lambda: (some(3),))
def tried_else_finally(x):
    seen = []
    for k in range(3):
        try:
            if k == 1:
                raise IndexError(k)
        except IndexError as e:
            seen.append(e.args[0])
        else:
            seen.append("else")
        finally:
            seen.append("end")
    return x + len(seen), seen


@programs(lambda: (some(3),))
def exception_leaves(x):
    y = x + 1
    raise Custom(5, f"of {y.shape[0]}")


@programs(lambda: (some(3),))
def exceptions_by_kind(x):
    out = []
    for kind in (ZeroDivisionError, OverflowError, KeyError):
        try:
            raise kind("k")
        except ArithmeticError as e:
            out.append(type(e).__name__)
        except (KeyError, TypeError):
            out.append("lookup")
    return x + 1, out


@programs(lambda: (some(3),))
def errors_of_python(x):
    out = []
    for call in (
        lambda: 1 / 0,
        lambda: int("a"),
        lambda: "a" + 1,
        lambda: [] < 1,
        lambda: float("x"),
        lambda: len(3),
        lambda: {}[[]],
    ):
        try:
            call()
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return x + 1, out


@programs(lambda: (some(3), some(4)))
def errors_of_torch(x, y):
    try:
        return x + y
    except RuntimeError as e:
        return x + 1, str(e)[:20]


@programs(lambda: (some(3),))
def asserted(x):
    assert x.shape[0] == 3, "size"
    try:
        assert x.dim() == 2, f"dim {x.dim()}"
    except AssertionError as e:
        return x + 1, str(e)


@programs(lambda: (some(3),))
def exception_groups(x):
    try:
        raise ExceptionGroup("many", [ValueError("a"), KeyError("b")])
    except* ValueError as e:
        x = x + len(e.exceptions)
    except* KeyError:
        x = x + 10
    return x


@programs(lambda: (some(3),))
def notes_of_an_exception(x):
    try:
        e = ValueError("a")
        e.add_note("more")
        raise e
    except ValueError as e:
        return x + 1, e.__notes__


@programs(lambda: (some(3),))
def exception_as_a_value(x):
    e = Custom(3)
    return x + e.code, isinstance(e, Exception), repr(ValueError("a", 1)), ValueError("a").args


@programs(lambda: (some(3),))
def stop_iteration_caught(x):
    it = iter([1])
    total = 0
    while True:
        try:
            total += next(it)
        except StopIteration:
            break
    return x + total


@programs(lambda: (some(3),))
def thread_locals(x):
    x = x * local.scale
    local.other = 5
    found = local.other
    del local.other
    return x + found, hasattr(local, "other")


@programs(lambda: (some(3),))
def context_variables(x):
    token = variable.set(6)
    inside = variable.get()
    variable.reset(token)
    return x * inside + variable.get()


@programs(lambda: (some(3),))
def logged_at_a_level_that_is_off(x):
    logger.debug("value %s", x)
    x = x + 1
    if logger.isEnabledFor(logging.DEBUG):
        x = x + 100
    logger.info(f"shape {x.shape}")
    return x * 2


@programs(lambda: (some(3),))
def environment_read(x):
    k = int(os.environ.get("PEERS_NOT_SET", "4"))
    if os.getenv("PEERS_NOT_SET"):
        k = 0
    return x * k, "PEERS_NOT_SET" in os.environ


@programs(lambda: (some(3),))
def paths(x):
    return x + 1, os.path.join("a", "b"), os.path.basename("/p/q.py"), os.path.splitext("a.pt")[1], os.fspath("here")


@programs(lambda: (some(3),))
def grad_modes_nested(x):
    y = x.requires_grad_()
    with torch.no_grad():
        a = y * 2
        with torch.enable_grad():
            b = y * 3
    with torch.set_grad_enabled(False):
        c = y + 1
    return a.requires_grad, b.requires_grad, c.requires_grad, torch.is_grad_enabled()


@programs(lambda: (some(3),))
def grad_mode_that_stays(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return y + 1, torch.is_grad_enabled()


@programs(lambda: (some(3),))
def decorated_by_torch_contexts(x):
    @torch.no_grad()
    def f(v: Any) -> Any:
        return v * 2

    @torch.inference_mode()
    def g(v: Any) -> Any:
        return v + 1

    return f(x.requires_grad_()).requires_grad, g(x).is_inference()


@programs(lambda: (some(3),))
def autocast_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x[None] @ x[:, None]
        with torch.autocast("cpu", enabled=False):
            z = x[None] @ x[:, None]
    return y.dtype, z, torch.is_autocast_enabled("cpu")


@programs(lambda: (some(3),))
def profiler_contexts(x):
    with torch.profiler.record_function("name"):
        x = x + 1
    with torch.autograd.profiler.record_function("other") as r:
        x = x * 2
    return x, r.name


@programs(lambda: (some(3),))
def deterministic_that_stays(x):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    x = x + 1
    inside = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before)
    return x, inside


@programs(lambda: (some(3),))
def default_dtype_that_stays(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.ones(2)
    torch.set_default_dtype(before)
    return x + 1, y


@programs(lambda: (some(3),))
def anomaly_and_other_modes(x):
    with torch.autograd.set_detect_anomaly(False):
        x = x + 1
    with torch.autograd.graph.save_on_cpu(pin_memory=False):
        x = x * 2
    return x


@programs(lambda: (some(3),))
def saved_tensors_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 1):
        return x.requires_grad_() * x


@programs(lambda: (some(3),))
def locks(x):
    lock = threading.Lock()
    with lock:
        x = x + 1
    return x
