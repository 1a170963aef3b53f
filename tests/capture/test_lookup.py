"""Attribute look-up that classes change, and what functions and instances show of themselves."""

import functools
import inspect
import os
import typing

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

X = torch.arange(4.0)


class Renamed:
    """Looks attributes up under other names, as configuration objects do."""

    names = {"width": "hidden_size"}

    def __init__(self):
        self.hidden_size = 3
        self.spare = None

    def __getattribute__(self, key):
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)


class Counting(Renamed):
    def __getattribute__(self, key):
        if super().__getattribute__("__dict__").get("spare") is not None:
            return 0
        return super().__getattribute__(key)

    def doubled(self):
        return self.width * 2


@pytest.mark.parametrize("kind", [Renamed, Counting])
def test_overridden_getattribute(kind):
    thing = kind()

    def f(x):
        return x * thing.width + thing.hidden_size

    agrees_with_eager(f, (X,), breaks=0)


def test_methods_behind_getattribute():
    thing = Counting()
    agrees_with_eager(lambda x: x + thing.doubled(), (X,), breaks=0)


def test_what_getattribute_read_is_guarded():
    thing = Counting()
    compiled = fuselens.compile(lambda x: x * thing.width, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X * 3)
    thing.hidden_size = 4
    assert torch.equal(compiled(X), X * 4)
    thing.spare = 1
    assert torch.equal(compiled(X), X * 0)
    del thing.spare
    Renamed.names = {"width": "other"}
    thing.other = 5
    try:
        assert torch.equal(compiled(X), X * 5)
    finally:
        Renamed.names = {"width": "hidden_size"}


def test_getattribute_that_breaks():
    class Loud:
        def __init__(self):
            self.value = 2

        def __getattribute__(self, key):
            if key == "value":
                print("read")
            return object.__getattribute__(self, key)

    thing = Loud()
    agrees_with_eager(lambda x: x * thing.value + 1, (X,))


class Plain:
    limit = 7

    def __init__(self):
        self.a, self.b = 1, 2.5


def test_instance_dictionary():
    thing = Plain()

    def f(x):
        known = thing.__dict__
        return (
            x + known["a"] + known.get("b"),
            "c" in known,
            known.get("limit", 9),
            len(known),
            list(known),
            vars(thing)["a"],
        )

    def g(x):
        return {k: x + v for k, v in thing.__dict__.items()}

    agrees_with_eager(f, (X,))
    agrees_with_eager(g, (X,), breaks=0)


def test_instance_dictionary_is_guarded():
    thing = Plain()

    def f(x):
        return x + thing.__dict__.get("c", 0) + len(thing.__dict__)

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), f(X))
    thing.c = 5
    assert torch.equal(compiled(X), f(X))
    del thing.c
    assert torch.equal(compiled(X), f(X))


def test_instance_dictionary_leaves_the_frame():
    thing = Plain()

    def f(x):
        return x + 1, thing.__dict__

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    assert compiled(X)[1] is thing.__dict__


def test_instance_dictionary_shows_assignments():
    def f(x):
        thing = GLOBAL
        thing.a = x.shape[0]
        return x + thing.__dict__["a"]

    agrees_with_eager(f, (X,), breaks=0)


GLOBAL = Plain()


def wrapped(a, b, *rest, key=None):
    return a


def test_function_code():
    def f(x):
        names = wrapped.__code__.co_varnames
        return x + names.index("b") + wrapped.__code__.co_argcount, "key" in names

    agrees_with_eager(f, (X,), breaks=0)


class Base:
    def f(self, x):
        return x + 1


class Derived(Base):
    def f(self, x):
        y = x * 2
        print("between")
        return super().f(y)


class Captured(Base):
    def f(self, x):
        y = x * 2
        print("between")
        z = super().f(y)
        return z, (lambda: self.__class__.__name__)()


@pytest.mark.parametrize("kind", [Derived, Captured])
def test_super_after_a_break(kind):
    agrees_with_eager(kind().f, (X,))


def test_super_of_a_builtin_method():
    class Chatty:
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

        def __getattribute__(self, name):
            found = super().__getattribute__
            print("looking")
            return found(name)

    thing = Chatty()
    thing.value = 2
    agrees_with_eager(lambda x: x * thing.value, (X,))


def test_attributes_of_a_tensor():
    tagged = torch.arange(4.0)
    tagged.tag = 3

    def f(x):
        plain = x + 1
        return (x + getattr(x, "tag", 0), hasattr(x, "jax"), hasattr(plain, "tag"), hasattr(x, "tag"))

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    for x in (X, tagged, X):
        expected, actual = f(x), compiled(x)
        assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]
    tagged.tag = 4
    assert torch.equal(compiled(tagged)[0], f(tagged)[0])


def test_number_grows_by_a_tensor():
    def f(x):
        total = 0
        for i in range(3):
            total += x * i
        scale = 2.0
        scale *= x
        count = x.shape[0]
        before = count
        count += x.sum()
        return total, scale, count, before

    agrees_with_eager(f, (X,), breaks=0)
    agrees_with_eager(f, (X,), (torch.arange(6.0),), (torch.arange(7.0),), breaks=0, dynamic=True)


def test_weight_normalisation():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
    direction = layer.parametrizations.weight.original1

    def f(x):
        return torch._weight_norm(direction, x[:3].reshape(3, 1), 0)

    agrees_with_eager(f, (X,), breaks=0)


def scaled(x, factor=2.0, *, shift=0):
    return x * factor + shift


class Chunked(torch.nn.Module):
    def chunk(self, hidden):
        return hidden * 2

    def forward(self, x):
        if len(inspect.signature(self.chunk).parameters) != 1:
            raise ValueError("one argument")
        return self.chunk(x)


def test_signature():
    def f(x):
        parameters = inspect.signature(scaled).parameters
        kinds = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values()]
        return x + len(parameters), "shift" in parameters, kinds, parameters["factor"].default

    agrees_with_eager(f, (X,), breaks=0)
    agrees_with_eager(Chunked(), (X,), breaks=0)


def test_signature_is_guarded():
    def described(a, b=1):
        return a

    @functools.wraps(described)
    def wrapper(*args):
        return described(*args)

    def f(x):
        parameters = inspect.signature(wrapper).parameters
        return x + len(parameters) + parameters["b"].default

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 3)
    described.__defaults__ = (5,)
    assert torch.equal(compiled(X), X + 7)
    described.__code__ = scaled.__code__
    described.__defaults__ = None
    del wrapper.__wrapped__
    with pytest.raises(KeyError):
        f(X)
    compiled = fuselens.compile(f, backend="eager")
    with pytest.raises(KeyError):
        compiled(X)


def test_environment_variable(monkeypatch):
    monkeypatch.setenv("FUSELENS_TEST_SCALE", "3")

    def f(x):
        return x * int(os.environ["FUSELENS_TEST_SCALE"])

    compiled = fuselens.compile(f, backend="eager")
    assert torch.equal(compiled(X), X * 3)
    monkeypatch.setenv("FUSELENS_TEST_SCALE", "4")
    assert torch.equal(compiled(X), X * 4)


def test_setting_of_a_library():
    def f(x):
        return x * 2 if torch.backends.cudnn.benchmark else x * 3

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    before = torch.backends.cudnn.benchmark
    try:
        for value in (True, False, True):
            torch.backends.cudnn.benchmark = value
            assert torch.equal(compiled(X), f(X))
    finally:
        torch.backends.cudnn.benchmark = before


@typing.runtime_checkable
class Sized2D(typing.Protocol):
    width: int
    height: int


class Rectangle:
    def __init__(self, width, height=None):
        self.width = width
        if height is not None:
            self.height = height


class Square:
    width = 3

    @property
    def height(self):
        return 3


rectangle = Rectangle(1, 2)


def test_attributes_set_while_tracing_fit_protocols():
    """A protocol asks the object, whose attributes only the trace knows."""

    def f(x):
        made = Rectangle(1)
        before = isinstance(made, Sized2D)
        made.height = 2
        others = isinstance(rectangle, Sized2D), isinstance(Square(), (int, Sized2D))
        return x + 1, before, isinstance(made, Sized2D), isinstance(Rectangle(1, 2), Sized2D), others

    agrees_with_eager(f, (torch.ones(2),), breaks=0)
