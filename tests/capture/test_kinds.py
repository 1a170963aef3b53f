"""Tables of handlers by class."""

from fuselens.capture.values.kinds import PerKind


class Base: ...


class Derived(Base): ...


def test_the_nearest_base_answers() -> None:
    table: PerKind[str] = PerKind(lambda: "otherwise")
    table.of(Base)(lambda: "base")
    assert table[Derived]() == "base"
    assert table[int]() == "otherwise"


def test_a_handler_that_comes_later_is_found() -> None:
    table: PerKind[str] = PerKind(lambda: "otherwise")
    assert table[Derived]() == "otherwise"
    table.of(Base)(lambda: "base")
    assert table[Derived]() == "base"
    table.of(Derived)(lambda: "derived")
    assert (table[Base](), table[Derived]()) == ("base", "derived")
