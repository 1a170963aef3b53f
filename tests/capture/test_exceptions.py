"""Exceptions: raised, caught, and by wrong programs.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import pytest

from tests.support.tensors import t

from .harness import agrees_with_eager


def catches(x, k):
    try:
        if k == 0:
            raise ValueError("zero")
        y = x / k
    except (ValueError, TypeError) as e:
        return x, type(e).__name__, str(e)
    else:
        y = y + 1
    finally:
        print("finally", k)
    return y


def finally_returns(x):
    try:
        return x + 1
    finally:
        print("leaving")


def finally_overrides(x):
    for i in range(3):
        try:
            if i == 1:
                continue
            x = x + i
            print("try", i)
        finally:
            print("finally", i)
            x = x * 2
    return x


def nested_try(x):
    try:
        try:
            x = x + 1
            raise KeyError("inner")
        except ValueError:
            return "wrong"
        finally:
            x = x * 2
            print("inner finally")
    except KeyError as e:
        return x, repr(e), e.__context__ is None


def callee_raises(x, k):
    y = x + 1
    return raises(y, k) * 2


def raises(y, k):
    z = y * 2
    if k > 2:
        raise IndexError(f"k is {k}, {tuple(z.shape)}")
    return z


def catches_from_callee(x, k):
    out = [x]
    try:
        out.append(callee_raises(x, k))
    except IndexError as e:
        out.append(str(e))
    return out


def raise_from(x):
    try:
        int("x")
    except ValueError as e:
        raise RuntimeError("outer") from e


def asserts(x, k):
    assert x.ndim == 1
    assert k < 3, ("too big", k)
    return x * k


def asserts_on_data(x):
    y = x + 1
    assert (y > -100).all(), "small"
    assert y.sum() != 12345
    return y * 2


def mutates_before_raising(items, x):
    items.append(x + 1)
    x.add_(1)
    if len(items) > 1:
        raise ValueError(len(items))
    return x


def missing_key(x):
    return x, {"a": 1}["b"]


def missing_index(x):
    return x, [1, 2][5]


def missing_attribute(x):
    return x.no_such_thing


def missing_global(x):
    return x + no_such_global  # noqa: F821


def unbound_local(x):
    if x.ndim == 5:
        y = 1
    return x + y


def deleted_local(x):
    y = x + 1
    z = y * 2
    del y
    try:
        return z + y  # noqa: F821
    except UnboundLocalError as e:
        return z, str(e)


def bad_unpack(x):
    a, b = [1, 2, 3]
    return x, a, b


def type_errors(x):
    try:
        return "a" + 1
    except TypeError as e:
        return x, str(e)


def stop_iteration(x):
    it = iter([x])
    next(it)
    try:
        next(it)
    except StopIteration:
        return x * 2


def try_in_loop(x):
    for i in range(4):
        try:
            if i == 2:
                raise ValueError(i)
            x = x + i
            print("ok", i)
        except ValueError as e:
            print("err", e)
            continue
        finally:
            print("fin")
    return x


def return_in_loop_try(x):
    for i in range(4):
        try:
            print(i)
            if i == 2:
                return x * i
        finally:
            x = x + 1


def asserts_under_finally(x, log):
    log.append("begins")
    try:
        y = x + 1
        assert (y > -100).all(), "small"
    finally:
        log.append("ends" if x.ndim else "none")
    return y * 2


def asserts_and_raises_another(x, log):
    try:
        assert (x > -100).all(), "small"
    except AssertionError as e:
        log.append("refused")
        raise ValueError("another") from e
    return x * 2


def asserts_and_goes_on(x, log):
    try:
        assert (x > -100).all(), "small"
    except AssertionError:
        log.append("refused")
    return x * 2


CASES = [
    (catches, (t(2), 1), (t(2), 0), (t(2), "a")), (finally_returns, (t(2),)), (finally_overrides, (t(2),)),
    (nested_try, (t(2),)), (callee_raises, (t(2), 1), (t(2), 5)), (catches_from_callee, (t(2), 1), (t(2), 5)),
    (raise_from, (t(2),)), (asserts, (t(2), 1), (t(2), 5), (t(2, 2), 1)), (asserts_on_data, (t(2),), (t(2) - 200,)),
    (mutates_before_raising, ([], t(2)), ([1], t(2))), (missing_key, (t(2),)), (missing_index, (t(2),)),
    (missing_attribute, (t(2),)), (missing_global, (t(2),)), (unbound_local, (t(2),)), (deleted_local, (t(2),)),
    (bad_unpack, (t(2),)), (type_errors, (t(2),)), (stop_iteration, (t(2),)), (try_in_loop, (t(3),)),
    (return_in_loop_try, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)


IN_KERNELS = [catches_from_callee]


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    agrees_with_eager(*case, backend=backend)


@pytest.mark.parametrize("program", [asserts_under_finally, asserts_and_raises_another], ids=lambda f: f.__name__)
def test_assertions_that_nothing_handles_are_checks_in_the_graph(program):
    agrees_with_eager(program, (t(2), []), (t(2) - 200, []), breaks=0)


def test_an_assertion_that_is_handled_breaks_the_graph():
    report = agrees_with_eager(asserts_and_goes_on, (t(2), []), (t(2) - 200, []))
    assert report.breaks[0].code == "FL101"
