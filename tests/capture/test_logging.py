"""What a program logs while it is traced: after the graph, each time, and as from the program's own line."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens

log = logging.getLogger("tests.capture.logging")
root = logging.getLogger()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        place = record.pathname, record.lineno, record.funcName
        self.found.append((record.name, record.levelname, record.getMessage(), *place))


@pytest.fixture
def handler() -> Iterator[Kept]:
    kept, before = Kept(), log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    yield kept
    log.removeHandler(kept)
    log.setLevel(before)


def inner(x: Tensor, count: int) -> Tensor:
    log.info(
        "%d of %s",
        count,
        "x",
    )
    return x * 2


def levels(x: Tensor) -> Tensor:
    y = x.sin()
    log.debug("never")
    log.warning("first")
    y = inner(y, x.shape[0])
    log.error(f"rows: {x.shape[0]}")
    logging.getLogger("tests.capture.logging").critical("last")
    return y + 1


def in_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        x = x + i
        log.info("step %s of %.1f", i, 3.0)
    return x


def in_a_generator(x: Tensor) -> Tensor:
    def rows() -> Iterator[Tensor]:
        for i in range(x.shape[0]):
            log.info("row %d", i)
            yield x[i]

    return torch.stack(list(rows()))


@pytest.mark.parametrize("function", [levels, in_a_loop, in_a_generator])
def test_logged_as_in_eager(function: Callable[[Tensor], Tensor], handler: Kept) -> None:
    x = torch.arange(4.0)
    wanted = function(x)
    told, handler.found = handler.found, []
    compiled = fuselens.compile(function, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), wanted)
        assert handler.found == told and told
        handler.found = []
    log.setLevel(logging.CRITICAL + 1)
    compiled(x)
    assert not handler.found


def test_a_graph_that_fails_logs_once(handler: Kept) -> None:
    def checked(x: Tensor) -> Tensor:
        log.warning("before")
        torch._assert(x.sum() > 0, "not positive")
        log.warning("after")
        return x + 1

    compiled = fuselens.compile(checked, fullgraph=True)
    compiled(torch.ones(3))
    assert [found[2] for found in handler.found] == ["before", "after"]
    handler.found = []
    with pytest.raises(AssertionError, match="not positive"):
        compiled(-torch.ones(3))
    assert [found[2] for found in handler.found] == ["before"]


class Loud(logging.Logger):
    def handle(self, record: logging.LogRecord) -> None:
        record.msg = record.msg.upper()
        super().handle(record)


loud = Loud("tests.capture.loud")
values: list[int] = []


def a_tensor(x: Tensor) -> Tensor:
    log.warning("%s", x)
    return x + 1


def what_changes(x: Tensor) -> Tensor:
    values.append(1)
    log.warning("%s", values)
    values.append(2)
    return x + 1


def a_class_of_its_own(x: Tensor) -> Tensor:
    loud.warning("quiet")
    return x + 1


def with_a_trace(x: Tensor) -> Tensor:
    log.warning("where", stack_info=True)
    return x + 1


@pytest.mark.parametrize("function", [a_tensor, what_changes, a_class_of_its_own, with_a_trace])
def test_what_is_not_known_breaks_the_graph(function: Callable[[Tensor], Tensor], handler: Kept) -> None:
    loud.handlers, x = [handler], torch.ones(2)
    values.clear()
    wanted = function(x)
    told, handler.found = handler.found, []
    values.clear()
    compiled = fuselens.compile(function)
    torch.testing.assert_close(compiled(x), wanted)
    assert [found[:3] for found in handler.found] == [found[:3] for found in told] and told
    assert compiled.__fuselens__.recorder.report.breaks[0].code == "FL103"


@functools.lru_cache(None)
def once(logger: logging.Logger, *args: Any, **kwargs: Any) -> None:
    logger.warning(*args, **kwargs)


@functools.lru_cache(None)
def once_of(logger: logging.Logger, text: str) -> str:
    logger.warning(text)
    return text.upper()


def test_what_is_logged_once_is(handler: Kept) -> None:
    """The cache decides whether it is logged, when the graph has run."""

    def program(x: Tensor, n: int) -> Tensor:
        y = x.sin()
        once(log, f"a text of {n}")
        once(log, "another")
        return y * n

    once.cache_clear()
    compiled = fuselens.compile(program, backend="eager")
    x = torch.ones(3)
    for n in (2, 2, 3, 3, 2):
        assert torch.equal(compiled(x, n), program(x, n) if n == 0 else x.sin() * n)
    mine = list(handler.found)
    assert len(compiled.__fuselens__.recorder.report.graphs) == 2
    assert not compiled.__fuselens__.recorder.report.breaks
    handler.found.clear()
    once.cache_clear()
    for n in (2, 2, 3, 3, 2):
        program(x, n)
    assert mine == handler.found and len(mine) == 3


def test_what_a_function_gives_that_logs_once_is_not_known(handler: Kept) -> None:
    def program(x: Tensor) -> tuple[Tensor, str]:
        return x.sin() * 2, once_of(log, "text")

    once_of.cache_clear()
    compiled = fuselens.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(3))[1] == "TEXT"
    assert [record[2] for record in handler.found] == ["text"]
