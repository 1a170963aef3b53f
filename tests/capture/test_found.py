"""Small programs in which random ones (see ``random_programs``) once found compiled functions to differ from eager."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import itertools
from collections import deque

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

x = torch.tensor([1.0, -2.0, 3.0])


def deletes_an_argument(x):
    del x
    return x


def deletes_an_argument_twice(x):
    y = x + 1
    del x
    try:
        del x
    except UnboundLocalError as e:
        return y, str(e)


class Noting:
    def __enter__(self):
        print("in")

    def __exit__(self, kind, *_):
        print("out", kind)


def makes_objects_of_a_deleted_argument(x, n=3):
    scaled = Scaled([n])
    del n
    with Noting():
        x = x + n
    return scaled, x


class Scaled:
    def __init__(self, k):
        self.k = k

    def scale(self, v):
        return v * self.k


def one_bound_method_in_two_places(x):
    scale = Scaled(2).scale
    both = [scale, scale]
    print(both[0] is both[1])
    return scale(x)


def leaves_two_contexts_with_an_exception(x):
    with torch.no_grad():
        y = x + 1
        with open(__file__) as f:
            return y + f.missing


def reraises_after_closing_a_generator(x):
    def steps(v):
        yield v
        yield v + 1

    g = steps(x)
    next(g)
    try:
        g.throw(KeyError("thrown"))
    except KeyError:
        raise ValueError("no") from None
    finally:
        g.close()
    return x


def holds_itself_in_a_tuple_and_a_dict(x):
    items = [x]
    table = {"pair": (items, x * 2)}
    items.append(table)
    print(len(items))
    table["self"] = table
    items.append(items is table["pair"][0])
    return items[1]["pair"][1], items[2], table["self"]["self"] is table


@contextlib.contextmanager
def careful(log):
    try:
        yield log
    except KeyError as e:
        log.append((str(e), e.args))


def an_exception_goes_through_a_generator_context(x):
    log = []
    with careful(log):
        x = x + 1
        raise KeyError("no", 3)
    return x, log


def is_a_partial_callable(x):
    return x + callable(functools.partial(torch.add)), callable(x), callable([]), callable(len), callable(Scaled)


class Plain:
    pass


def assigns_and_deletes_an_attribute(x, plain):
    plain.extra = x + 1
    y = plain.extra * 2
    del plain.extra
    return y, hasattr(plain, "extra")


def an_error_while_handling_has_a_context(x):
    try:
        try:
            raise ValueError("first")
        except ValueError:
            del x
            del x
    except UnboundLocalError as e:
        return type(e.__context__), str(e.__context__), str(e)


def breaks_in_a_loop_with_many_variables(x):
    """From 3.13 on an instruction may handle two variables, but not if the slot of one is above 15, as in resume functions."""
    a, b, c, d, e = 1, 2, 3, 4, 5
    found, bounds = x.clone(), [0, 1, 4, 9]
    for i in range(len(bounds) - 1):
        low = bounds[i]
        high = bounds[i + 1]
        mask = (x.abs() >= low) & (x.abs() < high)
        rows = mask.nonzero().squeeze(1)
        if rows.numel() == 0:
            continue
        if i == 1:
            found.index_copy_(0, rows, x[mask] * 2)
        else:
            found.index_fill_(0, rows, i)
    return found, a, b, c, d, e


def pops_what_it_iterates_over(x):
    table = {"k": x}
    for k, _ in table.items():
        table.pop(k)


def replaces_values_that_it_iterates_over(x):
    table, seen = {"a": 1, "b": 2}, []
    for v in table.values():
        table["b"] = 5
        seen.append(v)
    return seen, x + 1


def exchanges_keys_that_it_iterates_over(x):
    table, seen = {"a": 1, "b": 2}, []
    try:
        for k in table:
            table[k + "x"] = table.pop(k)
            seen.append(k)
    except RuntimeError as e:
        seen.append(str(e))
    return seen, x + 1


def grows_a_deque_that_it_iterates_over(x, queue):
    for k in queue:
        print(k)
        queue.append(k)


def adds_to_a_set_that_it_iterates_over(x):
    elements = {1, 2}
    for v in elements:
        elements.add(v + 5)
        print(v)


def goes_backwards_over_a_list_that_shrinks(x, items):
    seen = []
    for v in reversed(items):
        print(v)
        items.pop()
        items.insert(0, 7)
        seen.append(v)
        if len(seen) > 1:
            items.clear()
    return seen, x + 1


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def compares_members_by_identity(x, n):
    return Color.BLUE is Color(n), Color.RED is not Color(n), Color(n) is Color(n), x + 1


def sends_nothing(x):
    def steps():
        yield x

    try:
        steps().send()
    except TypeError as e:
        return str(e)


def reads_its_own_cell_after_a_break_before_it_is_bound(x):
    print("resumes")

    def later():
        return late + x

    try:
        later()
    except NameError as e:
        print(type(e), e)
    try:
        print(late)
    except NameError as e:
        print(type(e), e)
    if x.sum() > 1000:
        late = 1
    return late


def deletes_an_argument_that_a_closure_has(x):
    def later():
        return x

    del x
    print(x)


def asks_an_ended_generator_again(x):
    def steps():
        yield x
        return 3

    g, seen = steps(), []
    next(g)
    for _ in range(2):
        next(g, None)
        try:
            g.send(None)
        except StopIteration as e:
            seen.append(e.value)
    return seen, x + 1


def selects_with_a_mask_that_does_not_fit(x):
    print("before")
    y = x.clone()
    for _ in range(2):
        y[x > 0] = 1
        y = x.unsqueeze(0) + y


def hides_a_captured_variable_in_a_comprehension(x):
    i = 3

    def later():
        return i

    print("resumes")
    found = [later() + i for i in range(2) if print(i) is None]
    i = 5
    return found, later(), x * i


CASES = [
    (breaks_in_a_loop_with_many_variables, (x,)),
    (an_exception_goes_through_a_generator_context, (x,)),
    (is_a_partial_callable, (x,)),
    (an_error_while_handling_has_a_context, (x,)),
    (leaves_two_contexts_with_an_exception, (x,)),
    (reraises_after_closing_a_generator, (x,)),
    (holds_itself_in_a_tuple_and_a_dict, (x,)),
    (one_bound_method_in_two_places, (x,)),
    (deletes_an_argument, (x,)),
    (deletes_an_argument_twice, (x,)),
    (makes_objects_of_a_deleted_argument, (x,)),
    (deletes_an_argument_that_a_closure_has, (x,)),
    (asks_an_ended_generator_again, (x,)),
    (selects_with_a_mask_that_does_not_fit, (x,)),
    (hides_a_captured_variable_in_a_comprehension, (x,)),
    (pops_what_it_iterates_over, (x,)),
    (replaces_values_that_it_iterates_over, (x,)),
    (exchanges_keys_that_it_iterates_over, (x,)),
    (grows_a_deque_that_it_iterates_over, (x, collections.deque([1, 2]))),
    (adds_to_a_set_that_it_iterates_over, (x,)),
    (goes_backwards_over_a_list_that_shrinks, (x, [1, 2, 3, 4])),
    (compares_members_by_identity, (x, 2)),
    (sends_nothing, (x,)),
    (reads_its_own_cell_after_a_break_before_it_is_bound, (x,)),
]  # fmt: skip


def test_an_attribute_that_comes_and_goes():
    compiled = fuselens.compile(assigns_and_deletes_an_attribute, backend="eager")
    for there in (False, True, False):
        plain = Plain()
        if there:
            plain.extra = 1
        y, left = compiled(x, plain)
        assert torch.equal(y, (x + 1) * 2) and not left and vars(plain) == {}


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_found(fn, args):
    agrees_with_eager(fn, args)


def group_of_two(x):
    try:
        raise ExceptionGroup("two", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        x = x + len(e.exceptions)
    except* KeyError:
        x = x * 2
    return x


def group_of_one_that_is_none(x):
    try:
        raise ValueError("bare")
    except* ValueError as e:
        return_value = x + len(e.exceptions), type(e).__name__
    return return_value


def group_with_a_rest(x):
    try:
        raise ExceptionGroup("outer", [ValueError(1), ExceptionGroup("inner", [KeyError(2), TypeError(3)])])
    except* (KeyError, ValueError):
        x = x + 1
    return x


def group_whose_handler_raises(x):
    try:
        raise ExceptionGroup("one", [ValueError(1)])
    except* ValueError:
        raise TypeError("from the handler")  # noqa: B904


def no_group(x):
    try:
        x = x + 1
    except* ValueError:
        x = x + 2
    return x


def not_iterable_after_a_star(x):
    messages = []
    for value in (3, None, 2.5):
        try:
            messages.append([*value, 1])
        except TypeError as e:
            messages.append(str(e))
    return x, messages


@pytest.mark.parametrize(
    "program",
    [
        group_of_two, group_of_one_that_is_none, group_with_a_rest, group_whose_handler_raises, no_group,
        not_iterable_after_a_star,
    ],
)  # fmt: skip
def test_groups_of_exceptions_and_stars(program):
    agrees_with_eager(program, (torch.ones(2),))


def consumed_list_grows_across_a_break(x):
    items = [1]
    forwards, backwards, seen = iter(items), reversed(items), []
    seen += [next(forwards), next(backwards)]
    print("break")
    items.append(2)
    seen += [next(forwards, "end"), next(backwards, "end")]
    print("again")
    items.append(3)
    return x, seen + list(forwards)


def consumed_deque_grows_across_a_break(x):
    items = deque([1])
    over = iter(items)
    first = next(over)
    print("break")
    items.append(2)
    try:
        next(over)
    except RuntimeError as e:
        return x * first, str(e)


def test_consumed_iterators_see_what_is_added_after_a_break():
    agrees_with_eager(consumed_list_grows_across_a_break, (torch.ones(2),))
    agrees_with_eager(consumed_deque_grows_across_a_break, (torch.ones(2),))


def full_deque_is_appended_to(x, n):
    items, seen = deque([n, n, n], 3), []
    for change in (lambda: items.append(n), lambda: items.rotate(3), lambda: items.rotate(0), lambda: items.reverse()):
        try:
            for item in items:
                seen.append(item)
                change()
        except RuntimeError as e:
            seen.append(str(e))
    return x, seen, items


class Leaves:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


def raises_with_a_number(x, n):
    with Leaves():
        raise StopIteration(n // 2, {"n": n + n})


def test_full_deques_notice_changes():
    agrees_with_eager(full_deque_is_appended_to, (torch.ones(2), 1), (torch.ones(2), 2))


def test_exceptions_hold_symbolic_numbers():
    agrees_with_eager(raises_with_a_number, (torch.ones(2), 3), (torch.ones(2), 4), (torch.ones(2), 5))


def adds_a_part_of_itself(x):
    y = x + 1
    x += x[..., :1]
    return x, y


def copies_a_part_of_itself(x):
    x[1:].copy_(x[:-1] * 1)
    x[:2].mul_(x[2:])
    return x


def test_writing_to_overlapping_memory_raises_at_the_line():
    x = torch.arange(4.0)
    agrees_with_eager(copies_a_part_of_itself, (x,), breaks=0)
    agrees_with_eager(adds_a_part_of_itself, (x,))
    with pytest.raises(RuntimeError, match="single memory location") as raised:
        fuselens.compile(adds_a_part_of_itself, backend="eager")(x.clone())
    lines = [entry.lineno for entry in raised.traceback if entry.name == "adds_a_part_of_itself"]
    assert lines == [adds_a_part_of_itself.__code__.co_firstlineno + 1]


def slices_by(x, n, nums):
    seen = []
    for use in (lambda: nums[n:], lambda: tuple(nums)[:n], lambda: "text"[n:], lambda: nums.__delitem__(slice(n)),
                lambda: nums.__setitem__(slice(n), [1])):  # fmt: skip
        try:
            seen.append(use())
        except (TypeError, ValueError) as e:
            seen.append((type(e), str(e)))
    return x, seen, nums


def test_slices_by_what_is_no_index():
    agrees_with_eager(slices_by, *((torch.ones(2), n, [1, 2, 3]) for n in (1, 2.5, "a", None)))


SUBTRACTIONS = [
    lambda x, b: x - b,
    lambda x, b: b - x,
    lambda x, b: x.sub_(b),
    lambda x, b: torch.sub(x, b),
    lambda x, b: torch.rsub(x, b),
    lambda x, b: x.subtract(other=b),
    lambda x, b: x - (x > b),
    lambda x, b: (x > b) - (x > b),
]


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("place", range(len(SUBTRACTIONS)))
def test_booleans_are_not_subtracted(place, backend):
    agrees_with_eager(SUBTRACTIONS[place], (torch.ones(3), True), (torch.ones(3), 2), backend=backend)


class Indexes:
    def __init__(self, n):
        self.n = n

    def __index__(self):
        return self.n


def indexed_by_an_object(x, n):
    seen, items = [], [1, 2, 3]
    for use in (lambda i: items[i], lambda i: items.__setitem__(i, 4), lambda i: "abc"[i], lambda i: (1, 2)[i]):
        try:
            seen.append(use(Indexes(n)))
        except TypeError as e:
            seen.append(str(e))
    return x, seen, items


def counted_from(x, n):
    return x, list(map(repr, itertools.islice(itertools.count(n), 2))), next(itertools.count(n, 2))


def test_objects_as_indices_and_booleans_as_starts():
    for program in (indexed_by_an_object, counted_from):
        agrees_with_eager(program, (torch.ones(2), 1), (torch.ones(2), 0), (torch.ones(2), 1.5))
    agrees_with_eager(counted_from, (torch.ones(2), True))


def test_a_diagonal_is_filled_where_it_is():
    def filled(x, value):
        x.fill_diagonal_(value)
        return x + 1

    columns = torch.arange(24).reshape(8, 3).t().contiguous().t()
    agrees_with_eager(filled, (columns[1:], 2), (columns[2:], 3))
    agrees_with_eager(filled, (torch.arange(28.0)[1:].view(3, 3, 3), 2.5), (torch.zeros(4, 4), 1))


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_where_a_smooth_loss_has_no_number(beta):
    inf = float("inf")

    def slopes(x, y):
        loss = torch.nn.functional.smooth_l1_loss(x, y, reduction="none", beta=beta)
        return loss, torch.autograd.grad(loss, x, torch.full_like(loss, 0.5))[0]

    found = torch.tensor([inf, -inf, 1.0, -2.0, float("nan"), 0.25], requires_grad=True)
    for expected, got in zip(
        slopes(found, found.detach() * 0), fuselens.compile(slopes)(found, found.detach() * 0), strict=True
    ):
        torch.testing.assert_close(got, expected, equal_nan=True)
