"""Details of builtins, iterators, exceptions and containers that CPython's own regression tests ask for."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import operator
import sys
from typing import Any

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

# --- calls whose arguments do not fit ---------------------------------------------------------------------------

MISFITS = {
    "len": lambda x: len(),  # type: ignore[call-arg]
    "isinstance": lambda x: isinstance(1),  # type: ignore[call-arg]
    "enumerate": lambda x: enumerate(),  # type: ignore[call-overload]
    "map": lambda x: map(len),  # type: ignore[call-overload]
    "sorted": lambda x: sorted([1], 2),  # type: ignore[call-overload]
    "range": lambda x: range(),  # type: ignore[call-overload]
    "max": lambda x: max(),  # type: ignore[call-overload]
    "dict": lambda x: dict(1, 2),  # type: ignore[call-overload]
    "list": lambda x: list(sequence=()),  # type: ignore[call-overload]
    "zip": lambda x: zip(1),  # type: ignore[call-overload]
    "bool": lambda x: bool(x=False),  # type: ignore[call-arg]
    "next": lambda x: next(),  # type: ignore[call-overload]
    "getattr": lambda x: getattr(1),  # type: ignore[call-overload]
    "list.append": lambda x: [].append(),  # type: ignore[call-arg]
    "list.clear": lambda x: [].clear(1),  # type: ignore[call-arg]
    "list.__contains__": lambda x: [].__contains__(),  # type: ignore[call-arg]
    "tuple.__getitem__": lambda x: (1,).__getitem__(),  # type: ignore[call-overload]
    "dict.get": lambda x: {}.get(),  # type: ignore[call-overload]
    "dict.__setitem__": lambda x: {}.__setitem__(1),  # type: ignore[call-arg]
    "set.add": lambda x: set().add(),  # type: ignore[call-arg]
    "keys.isdisjoint": lambda x: {}.keys().isdisjoint(),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfitting_arguments_raise_what_the_builtin_raises(name: str) -> None:
    misfit = MISFITS[name]

    def caught(x: torch.Tensor) -> Any:
        try:
            misfit(x)
        except TypeError as e:
            return x + 1, str(e)
        return x

    agrees_with_eager(caught, (torch.ones(2),), breaks=0)
    agrees_with_eager(misfit, (torch.ones(2),))


class KeywordList(list):
    pass


class InitialisedTuple(tuple):
    def __init__(self, items: Any, extra: int = 0) -> None:
        self.extra = extra


def test_keywords_of_subclasses_of_containers() -> None:
    def f(x: torch.Tensor) -> Any:
        made = InitialisedTuple([1, 2], extra=3)  # type: ignore[call-arg]
        try:
            KeywordList(sequence=())  # type: ignore[call-arg]
        except TypeError as e:
            return x + made.extra, str(e), tuple(made)
        return x

    agrees_with_eager(f, (torch.ones(2),), breaks=0)


def test_enumerate_takes_a_keyword() -> None:
    def f(x: torch.Tensor) -> Any:
        return x, list(enumerate(iterable=[3, 4], start=2))

    agrees_with_eager(f, (torch.ones(2),), breaks=0)


def test_a_mapping_that_is_unpacked_in_plain_python() -> None:
    class Opaque:
        def __init__(self) -> None:
            self.data = {"a": 1}

        def keys(self) -> Any:
            fuselens.graph_break()
            return self.data.keys()

        def __getitem__(self, key: str) -> int:
            return self.data[key]

    def target(**given: int) -> int:
        return given["a"]

    def f(x: torch.Tensor) -> Any:
        return x * target(**Opaque())  # type: ignore[arg-type]

    agrees_with_eager(f, (torch.ones(2),))


# --- iterators over what changes --------------------------------------------------------------------------------


def items_are_live(x: torch.Tensor) -> Any:
    d, seen = {"a": 1, "b": 2, "c": 3}, []
    for key, value in d.items():
        d["c"] = 10
        seen.append((key, value))
    return x, seen


def keys_change(x: torch.Tensor) -> Any:
    d, seen = {0: 0}, []
    try:
        for key in d:
            del d[0]
            d[0] = 0
            seen.append(key)
    except RuntimeError as e:
        return x, seen, str(e)
    return x, seen


def reversed_is_live(x: torch.Tensor) -> Any:
    items, seen = [1, 2, 3], []
    for item in reversed(items):
        if len(items) < 5:
            items.append(item)
        items[0] = 7
        seen.append(item)
    return x, seen, items


def deque_changes(x: torch.Tensor) -> Any:
    d, seen = collections.deque([1, 2, 3]), []
    try:
        for item in d:
            seen.append(item)
            d.append(item)
    except RuntimeError as e:
        return x, seen, str(e)
    return x, seen


def ordered_dict_changes(x: torch.Tensor) -> Any:
    d = collections.OrderedDict(a=1, b=2)
    try:
        for _ in d:
            d["c"] = 3
    except RuntimeError as e:
        return x, str(e)
    return x


def index_of_what_shrinks(x: torch.Tensor) -> Any:
    class Clears:
        def __eq__(self, other: object) -> bool:
            items.clear()
            return False

    items: list[Any] = [Clears(), Clears()]
    try:
        items.index(1)
    except ValueError:
        return x, len(items)
    return x


def lists_that_shrink_are_equal(x: torch.Tensor) -> Any:
    class Clears:
        def __init__(self, target: list[Any]) -> None:
            self.target = target

        def __eq__(self, other: object) -> Any:
            self.target.clear()
            return NotImplemented

    a: list[Any] = []
    b: list[Any] = []
    a.append(Clears(b))
    b.append(Clears(a))
    return x, a == b


ITERATIONS = [
    items_are_live, keys_change, reversed_is_live, deque_changes, ordered_dict_changes, index_of_what_shrinks,
    lists_that_shrink_are_equal,
]  # fmt: skip


@pytest.mark.parametrize("f", ITERATIONS, ids=lambda f: f.__name__)
def test_iterators_see_changes(f: Any) -> None:
    agrees_with_eager(f, (torch.ones(2),))


def test_iterators_that_cross_a_break() -> None:
    def over_a_list(x: torch.Tensor) -> Any:
        items = [1, 2, 3]
        rest = reversed(items)
        next(rest)
        fuselens.graph_break()
        items[0] = 9
        return x, list(rest), items

    def over_a_dict(x: torch.Tensor) -> Any:
        d = {"a": 1, "b": 2, "c": 3}
        rest, back = iter(d.items()), reversed(d)
        next(rest), next(back)
        fuselens.graph_break()
        d["c"] = 9
        return x, list(rest), list(back)

    def changed_meanwhile(x: torch.Tensor) -> Any:
        d = {"a": 1}
        try:
            for key in d:
                d[key + "b"] = 1
                fuselens.graph_break()
        except RuntimeError as e:
            return x, str(e)
        return x

    for f in (over_a_list, over_a_dict, changed_meanwhile):
        agrees_with_eager(f, (torch.ones(2),))


def same_tuples(t: tuple[int, ...]) -> list[bool]:
    return [t[:] is t, t * 1 is t, t + () is t, () + t is t, t[:1] is t, tuple(t) is t]


class TupleSubclass(tuple):
    pass


def test_tuples_that_are_the_same() -> None:
    for t in ((1, 2), (), TupleSubclass((1, 2))):
        agrees_with_eager(same_tuples, (t,), breaks=0)


def test_sequences_too_long_to_track() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            [0] * (1 << 62)
        except MemoryError:
            return x + len([None] * 2_000_000)
        return x

    agrees_with_eager(f, (torch.ones(2),))


# --- what instances of subclasses of containers hold ------------------------------------------------------------


class Mapping(dict):
    pass


class Twice(list):
    def append(self, item: Any) -> None:
        super().append(item)
        super().append(item)

    def once(self) -> Any:
        return super().append


class Unsized(tuple):
    first = property(lambda self: self[0])

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


class UnsizedList(list):
    first = property(lambda self: self[0])
    __len__, __iter__ = Unsized.__len__, Unsized.__iter__


@pytest.mark.parametrize("kind", [Unsized, UnsizedList])
def test_subclasses_that_tell_no_length(kind: Any) -> None:
    """What they hold is found without them."""
    held = kind((2, 1))
    agrees_with_eager(lambda x: x * held.first, (torch.ones(3),), breaks=0)
    given = fuselens.compile(lambda x, v: x * v.first, backend="eager", fullgraph=True)
    for n in (2, 2, 3):
        assert torch.equal(given(torch.ones(3), kind((n,))), torch.full((3,), float(n)))


def test_views_and_methods_of_subclasses_cross_a_break() -> None:
    def view(x: torch.Tensor) -> Any:
        d = Mapping()
        keys = d.keys()
        fuselens.graph_break()
        d["a"] = 1
        return x, list(keys), type(d).__name__

    def iterator(x: torch.Tensor) -> Any:
        items = Twice([1, 2, 3])
        rest = iter(items)
        next(rest)
        fuselens.graph_break()
        items.append(2)
        return x, list(rest)

    def method(x: torch.Tensor) -> Any:
        items = Twice([x])
        once, twice = items.once(), items.append
        fuselens.graph_break()
        once(x + 1)
        twice(x + 2)
        return list(items)

    for f in (view, iterator, method):
        agrees_with_eager(f, (torch.ones(2),))


# --- keys that hash themselves ----------------------------------------------------------------------------------


class Key:
    fail = False
    hashed = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        if self.fail:
            raise ValueError("no hash")
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.value == self.value


class Counting:
    hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        return 4


def test_keys_are_not_hashed_again() -> None:
    def plain(x: torch.Tensor) -> Any:
        d = {Key(1): 1, Key(2): 2}
        fuselens.graph_break()
        return x, d[Key(1)], len(d)

    def failing(x: torch.Tensor) -> Any:
        key = Key(1)
        d = {key: 1}
        key.fail = True
        fuselens.graph_break()
        return x, len(d)

    def counting(x: torch.Tensor) -> Any:
        key = Counting()
        d = {key: 1}
        fuselens.graph_break()
        return x, key.hashed, len(d)

    def colliding(x: torch.Tensor) -> Any:
        d = {Key(3): 1, 3: 2}
        fuselens.graph_break()
        return x, list(d.values())

    for f in (plain, failing, counting, colliding):
        agrees_with_eager(f, (torch.ones(2),))


# --- exceptions -------------------------------------------------------------------------------------------------


class NotThere(OSError):
    def __init__(self, what: str) -> None:
        super().__init__(2, what)
        self.what = what


class Refused(OSError):
    pass


def made() -> list[BaseException]:
    return [
        OSError(2, "no", "file"), OSError("x"), NotThere("q"), Refused(13, "z"), FileNotFoundError(), StopIteration(4),
        SystemExit(3), ImportError("a", name="n"), KeyError("k"), UnicodeDecodeError("utf8", b"abc", 1, 2, "why"),
        MemoryError(), NameError("q", name="z"), AttributeError("w", name="y", obj=3), SyntaxError("s"),
        RecursionError("r"), TimeoutError(1, 2), BlockingIOError(1, "b", 5),
    ]  # fmt: skip


def described(e: BaseException) -> Any:
    names = ("errno", "strerror", "filename", "name", "value", "code", "obj", "reason", "msg")
    return type(e), str(e), e.args, [getattr(e, n, None) for n in names], vars(e)


def test_builtin_exceptions_keep_what_they_were_made_of() -> None:
    def at_once(x: torch.Tensor) -> Any:
        return x, [described(e) for e in made()]

    def later(x: torch.Tensor) -> Any:
        exceptions = made()
        fuselens.graph_break()
        return x, [described(e) for e in exceptions]

    def caught(x: torch.Tensor) -> Any:
        found: list[Any] = []
        for i in range(3):
            try:
                if i == 0:
                    raise FileNotFoundError(2, "nothing", "here")
                if i == 1:
                    raise NotThere("there")
                raise OSError(17, "x")
            except FileNotFoundError as e:
                found.append((e.errno, e.filename))
            except OSError as e:
                found.append((e.errno, type(e)))
        return x, found

    agrees_with_eager(at_once, (torch.ones(2),))
    agrees_with_eager(later, (torch.ones(2),))
    agrees_with_eager(caught, (torch.ones(2),), breaks=0)


def test_contexts_of_exceptions() -> None:
    def circle(x: torch.Tensor) -> Any:
        try:
            try:
                raise KeyError(1)
            except KeyError as first:
                try:
                    raise IndexError(2)
                except IndexError:
                    raise first  # noqa: B904
        except KeyError as e:
            return x, repr(e.__context__), repr(e.__context__.__context__)  # type: ignore[union-attr]

    def raised_again(x: torch.Tensor) -> Any:
        error = ValueError("v")
        for other in (KeyError("k"), IndexError("i")):
            try:
                try:
                    raise other
                except LookupError:
                    raise error  # noqa: B904
            except ValueError:
                pass
        return x, repr(error.__context__)

    def suppressed(x: torch.Tensor) -> Any:
        error = ValueError()
        error.__cause__ = None
        before = error.__suppress_context__
        error.__suppress_context__ = False
        return x, before, error.__suppress_context__

    def bad_cause(x: torch.Tensor) -> Any:
        try:
            raise IndexError from 5  # type: ignore[misc]
        except TypeError as e:
            return x, str(e)

    for f in (circle, raised_again, suppressed, bad_cause):
        agrees_with_eager(f, (torch.ones(2),), breaks=0)


class Answers(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        raise AssertionError("asked")


def test_except_does_not_ask_the_metaclass() -> None:
    class Mine(Exception, metaclass=Answers):
        pass

    def f(x: torch.Tensor) -> Any:
        try:
            raise ValueError(1)
        except Mine:
            return x
        except ValueError:
            return x + 1

    agrees_with_eager(f, (torch.ones(2),), breaks=0)


class Bare:
    def here(self) -> int:
        return 1


def test_attribute_errors_know_whose_attribute_was_asked_for() -> None:
    def f(x: torch.Tensor) -> Any:
        found = []
        for owner in (Bare(), 1, [2]):
            try:
                owner.nowhere  # type: ignore[attr-defined]  # noqa: B018
            except AttributeError as e:
                found.append((e.name, type(e.obj), str(e)))
        return x, found

    agrees_with_eager(f, (torch.ones(2),), breaks=0)


def test_exceptions_that_cross_a_break_have_tracebacks() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            Bare().nowhere  # type: ignore[attr-defined]  # noqa: B018
        except AttributeError as e:
            error = e
        fuselens.graph_break()
        return x, error.name, type(error.obj), error.__traceback__.tb_lineno  # type: ignore[union-attr]

    agrees_with_eager(f, (torch.ones(2),))


# --- attributes, classes and operators --------------------------------------------------------------------------


class Settable:
    @property
    def fixed(self) -> int:
        return 1

    none = property()


def names_of_methods(x: torch.Tensor) -> Any:
    items: list[int] = []
    return x, items.append.__name__, items.__add__.__name__, items.append.__self__ is items, items.append.__doc__


def methods_of_other_classes(x: torch.Tensor) -> Any:
    found = []
    for call in (lambda: set.add(), lambda: set.add(0), lambda: list.__len__(3), lambda: str.upper(b"x")):  # type: ignore[call-arg,arg-type]
        try:
            call()
        except TypeError as e:
            found.append(str(e))
    return x, found


def augmented_operators(x: torch.Tensor) -> Any:
    found = []
    for value in (None, [1], 3):
        try:
            value **= 2  # type: ignore[operator]
        except TypeError as e:
            found.append(str(e))
        try:
            value += "a"  # type: ignore[operator]
        except TypeError as e:
            found.append(str(e))
    return x, found


def properties_without_functions(x: torch.Tensor) -> Any:
    found = []
    for name in ("fixed", "none"):
        try:
            setattr(Settable(), name, 1)
        except AttributeError as e:
            found.append(str(e))
    return x, found


class IndexedInt(int):
    def __index__(self) -> int:
        return 42


class IntInt(int):
    def __int__(self) -> int:
        return 9


def integers_of_subclasses(x: torch.Tensor) -> Any:
    seven = IndexedInt(7)
    return x, int(seven), int(IntInt(7)), float(seven), range(IndexedInt(3)), [1, 2, 3, 4][IndexedInt(2) :]


def slices(x: torch.Tensor) -> Any:
    part = [4]
    return x, slice([1], [2], [3]), slice(part).stop is part, slice(3), slice(1, None, 2)


def huge_ranges(x: torch.Tensor) -> Any:
    rest = iter(range(2**40))
    next(rest)
    back = reversed(range(2**40))
    return x, next(rest), next(back), sum(1 for _ in zip(range(2**40), "abc"))  # noqa: B905


def text_of_objects(x: torch.Tensor) -> Any:
    found = []
    for pattern in ("plain", "%d"):
        try:
            found.append(pattern % Settable())
        except TypeError as e:
            found.append(str(e))
    return x, found


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Loud(enum.Enum):
    A = 1

    def __repr__(self) -> str:
        raise AssertionError("shown")


def members(x: torch.Tensor) -> Any:
    return x, Number.ONE is Number(1), Number(2) is Number["TWO"], {Loud.A: 1}[Loud(1)]


DETAILS = [
    names_of_methods, methods_of_other_classes, augmented_operators, properties_without_functions, integers_of_subclasses,
    slices, huge_ranges, text_of_objects, members,
]  # fmt: skip


@pytest.mark.parametrize("f", DETAILS, ids=lambda f: f.__name__)
def test_details(f: Any) -> None:
    agrees_with_eager(f, (torch.ones(2),), breaks=0)


class Repeated:
    __match_args__ = ("a", "a")
    a = 1


@pytest.mark.parametrize("subject", [{"a": 1, "b": 2}, [1, 2], (), "abc", range(3), b"x", collections.deque([5])])
def test_patterns(subject: Any) -> None:
    def f(subject: Any) -> Any:
        match subject:
            case {"a": 1, "b": y}:
                return y
            case [first, *_]:
                return first
            case str():
                return "s"
        return None

    agrees_with_eager(f, (subject,), breaks=0)


def test_patterns_that_raise() -> None:
    def f(x: torch.Tensor, key: str) -> Any:
        try:
            match {"a": 1}:
                case {"a": _, Keys.KEY: _}:
                    return x
        except ValueError as e:
            return x + 1, str(e)
        try:
            match Repeated():
                case Repeated(_, _):
                    return x
        except TypeError as e:
            return x + 2, str(e)

    agrees_with_eager(f, (torch.ones(2), "a"))


class Keys:
    KEY = "a"


class OwnSetter(dict):
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


def test_classes_that_store_attributes_in_their_own_way() -> None:
    def f(x: torch.Tensor) -> Any:
        made = OwnSetter()
        made.name = 3  # type: ignore[attr-defined]
        return x, dict(made)

    agrees_with_eager(f, (torch.ones(2),))


# --- exception groups, watchers, hashes, operators of classes ---------------------------------------------------


def group_is_split(x: torch.Tensor) -> Any:
    found = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as e:
        found.append(repr(e))
    except* (TypeError, KeyError) as e:
        found.append(repr(e))
    return x, found


def naked_in_except_star(x: torch.Tensor) -> Any:
    found = []
    try:
        try:
            raise ValueError(4)
        except* ValueError as e:
            found.append(repr(e))
            raise KeyError(5) from None
        except* TypeError:
            found.append("no")
    except ExceptionGroup as e:
        found.append(repr(e))
    return x, found


def break_before_except_star(x: torch.Tensor) -> Any:
    try:
        fuselens.graph_break()
        _ = 1 / 0
    except* ZeroDivisionError as e:
        return_value = repr(e)
    return x, return_value


def inlined_except_star(x: torch.Tensor) -> Any:
    first = naked_in_except_star(x + 1)
    fuselens.graph_break()
    return first, group_is_split(x)


def except_star_without_exception(x: torch.Tensor) -> Any:
    try:
        y = x + 1
    except* ZeroDivisionError:
        y = x
    return y


GROUPS = [
    group_is_split, naked_in_except_star, break_before_except_star, inlined_except_star, except_star_without_exception,
]  # fmt: skip


@pytest.mark.parametrize("f", GROUPS, ids=lambda f: f.__name__)
def test_exception_groups(f: Any) -> None:
    agrees_with_eager(f, (torch.ones(2),))


def watched() -> int:
    return 1


def watches(x: torch.Tensor) -> Any:
    seen: list[Any] = []
    before = sys.gettrace()

    def watch(frame: Any, event: str, arg: Any) -> Any:
        seen.append((frame.f_code.co_name, event))
        return watch

    sys.settrace(watch)
    watched()
    sys.settrace(before)
    watched()
    return x, seen


def test_functions_that_set_a_trace_function() -> None:
    def outer(x: torch.Tensor) -> Any:
        return watches(x * 2)

    agrees_with_eager(watches, (torch.ones(2),))
    agrees_with_eager(outer, (torch.ones(2),))


class LikeText:
    def __hash__(self) -> int:
        return hash("a text whose hash is long")

    def __eq__(self, other: object) -> bool:
        return other == "a text whose hash is long"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    y: str


def hashes(x: torch.Tensor) -> Any:
    texts = {"a text whose hash is long", LikeText()}
    frozen = Frozen(1, "a")
    return x, len(texts), hash(frozen), frozen.__hash__() == hash(frozen), {frozen: 3}[Frozen(1, "a")]


class Augmented:
    def __iadd__(self, other: Any) -> Any:
        return self


class NotAugmented(Augmented):
    __iadd__ = None  # type: ignore[assignment]


class Divides:
    def __rdivmod__(self, other: Any) -> Any:
        return "divided", other


def operators_of_classes(x: torch.Tensor) -> Any:
    found: list[Any] = [divmod(1, Divides())]
    for act in (
        lambda: divmod(Divides(), 1),  # type: ignore[operator]
        lambda: operator.iadd(NotAugmented(), 1),
        lambda: Bare(4),  # type: ignore[call-arg]
        lambda: Bare.__new__(Bare, 4),  # type: ignore[call-arg]
        lambda: Bare().__init__(4),  # type: ignore[misc]
        lambda: Frozen(1),  # type: ignore[call-arg]
        lambda: (lambda **given: given)(**{1: 2}),  # type: ignore[misc]
        lambda: [(a, b) for a, b in [Bare()]],  # type: ignore[misc]
    ):
        try:
            act()
        except TypeError as e:
            found.append(str(e))
    return x, found


@pytest.mark.parametrize("f", [hashes, operators_of_classes], ids=lambda f: f.__name__)
def test_classes(f: Any) -> None:
    agrees_with_eager(f, (torch.ones(2),))


def test_circles_of_contexts_and_dropped_tracebacks() -> None:
    def circle(x: torch.Tensor) -> Any:
        first, second = KeyError(1), IndexError(2)
        first.__context__, second.__context__ = second, first
        try:
            try:
                raise first
            except KeyError:
                raise ValueError(3)  # noqa: B904
        except ValueError as e:
            return x, repr(e.__context__)

    def dropped(x: torch.Tensor) -> Any:
        error = ValueError(1)
        fuselens.graph_break()
        try:
            raise error
        except ValueError as e:
            same = e.with_traceback(None) is e
        return x, same, error.__traceback__

    agrees_with_eager(circle, (torch.ones(2),), breaks=0)
    agrees_with_eager(dropped, (torch.ones(2),))


class FloatMember(float, enum.Enum):
    A = 2.5


class OwnBytes(bytes):
    def __bytes__(self) -> bytes:
        return b"own"


class OwnText(str):
    def __str__(self) -> str:
        return "own"


class OwnComplex(complex):
    pass


def values_of_subclasses(x: torch.Tensor) -> Any:
    number, text, data, pair = IntInt(4), OwnText("x"), OwnBytes(b"abc"), OwnComplex(1 + 2j)
    shown = float.__repr__(FloatMember.A), str(text), text + "y", bytes(data), data + b"1"
    return x, shown, number + 1, int(number), number.numerator, pair.real, pair.imag


def test_values_of_subclasses() -> None:
    agrees_with_eager(values_of_subclasses, (torch.ones(2),), breaks=0)
