"""Objects as data that means the same in another process: what is read is the very object, or equal and of the same type."""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import logging
import math
import operator
import types
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuselens import torch_private
from fuselens.capture.kept.names import Gone, Nameless, Reader, Writer, described, fingerprint
from fuselens.pipeline.graph_cache import form


class Kind(enum.Enum):
    A = 1
    B = (2, 3)


class Point:
    def move(self) -> None: ...

    @property
    def x(self) -> int:
        return 1


def function() -> int:
    return 1


def through(obj: Any) -> Any:
    """What another process reads, which has the bytes alone."""
    return Reader()(form().read(form().written(Writer()(obj))))


SAME = [
    int, dict, type(iter(())), type({}.items()), types.FunctionType, type(None), torch.Tensor, nn.Parameter, nn.Linear, collections.OrderedDict, Point, Kind.A, Kind.B,
    function, F.relu, torch.add, torch._C._nn.gelu, math.sin, operator.add, len, functools.reduce, torch.ops.aten.add.Tensor,
    torch.ops.aten.relu, torch, math, builtins, vars(math), globals(), nn.modules.module._global_forward_hooks, object.__setattr__,
    torch.Tensor.view, str.join, torch.float32, torch.strided, torch.channels_last, ..., NotImplemented, None, True,
    logging.getLogger("fuselens"), logging.root, Point.move, *torch_private.AMBIENT.values(), *torch_private.ATTENTION.values(),
]  # fmt: skip
EQUAL = [
    0, -(2**70), 2.5, -0.0, math.inf, 3 - 4j, "text", "\ud800", b"\x00\xff", (), (1, (2.0, "a")), frozenset({1, "a"}), range(2, 9, 3),
    slice(None, 3), torch.device("cuda:1"), torch.Size([2, 3]), ((int, None), F.gelu), dict.fromkeys, torch_private.AutocastState().settings,
]  # fmt: skip


@pytest.mark.parametrize("obj", SAME, ids=lambda obj: type(obj).__name__)
def test_the_very_object(obj: Any) -> None:
    assert through(obj) is obj


@pytest.mark.parametrize("obj", EQUAL, ids=lambda obj: type(obj).__name__)
def test_an_equal_one(obj: Any) -> None:
    found = through(obj)
    assert type(found) is type(obj)
    assert repr(found) == repr(obj)


def test_weak_references_and_objects_of_ours() -> None:
    assert through(weakref.ref(function))() is function
    state = torch_private.AutocastState()
    assert through(state).settings == state.settings


LOCAL = [
    lambda: 1,
    type("Local", (), {}),
    Point(),
    object(),
    [1],
    {"a": 1},
    1 << 5000,
    torch.ones(1),
    (1, Point()),
    vars(Point()),
]


@pytest.mark.parametrize("obj", LOCAL, ids=lambda obj: type(obj).__name__)
def test_without_a_name(obj: Any) -> None:
    with pytest.raises(Nameless):
        Writer()(obj)


class Loud:
    """Whatever asks it is told."""

    def __getattribute__(self, name: str) -> Any:
        pytest.fail(name)

    def __repr__(self) -> str:
        pytest.fail("repr")

    def method(self) -> None: ...


@pytest.mark.parametrize(
    "made", [Loud, lambda: types.MethodType(Loud.method, Loud()), lambda: (Loud(),), lambda: {"a": Loud()}]
)
def test_nothing_of_the_program_runs_to_find_that_there_is_no_name(made: Any) -> None:
    with pytest.raises(Nameless):
        Writer()(made())


def test_a_name_that_means_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Writer()(function), Writer()(Point), Writer()(Kind.A)
    monkeypatch.delitem(globals(), "function")
    with pytest.raises(Gone):
        Reader()(written[0])
    monkeypatch.setitem(globals(), "Point", type("Point", (dict,), {"__module__": __name__}))
    with pytest.raises(Gone):
        Reader()(written[1])
    monkeypatch.setitem(globals(), "Kind", enum.Enum("Kind", {"A": 7}, module=__name__))
    with pytest.raises(Gone):
        Reader()(written[2])


def test_nothing_of_the_program_runs_to_find_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("lazy")
    module.__getattr__ = lambda name: pytest.fail(name)  # type: ignore[method-assign]
    monkeypatch.setitem(__import__("sys").modules, "lazy", module)
    with pytest.raises(Gone):
        Reader()(("name", "lazy", "thing"))
    with pytest.raises(Gone):
        Reader()(("name", "not_imported_at_all", "thing"))


TEXTS = [
    "x = 1",
    "x = 2",
    "x = 1.0",
    "y = 1",
    "x = (1, 'a')",
    "x = (1, 'b')",
    "def f(): return 1",
    "def f(): return 2",
    "\nx = 1",
]


def test_fingerprints_tell_code_apart() -> None:
    codes = [compile(text, "a.py", "exec") for text in TEXTS] + [compile("x = 1", "b.py", "exec")]
    assert len({fingerprint(code) for code in codes}) == len(codes)
    assert fingerprint(compile("x = 1", "a.py", "exec")) == fingerprint(codes[0])


def test_descriptions_tell_what_was_put_in_the_place_of_a_library_s() -> None:
    @functools.wraps(F.relu)
    def relu(x: Any) -> Any:
        return x

    assert described(relu) != described(F.relu)
    assert described(F.relu) == described(F.relu)
    assert described(1) != described(2)
