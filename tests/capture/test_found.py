"""Small programs in which random ones (see ``random_programs``) once found compiled functions to differ from eager."""

from __future__ import annotations

import pytest
import torch

from .harness import check

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


CASES = [
    (leaves_two_contexts_with_an_exception, (x,)),
    (reraises_after_closing_a_generator, (x,)),
    (holds_itself_in_a_tuple_and_a_dict, (x,)),
    (one_bound_method_in_two_places, (x,)),
    (deletes_an_argument, (x,)),
    (deletes_an_argument_twice, (x,)),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_found(fn, args):
    check(fn, args)
