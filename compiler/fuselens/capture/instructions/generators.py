"""Instructions of generators; their frames are machines of their own, which ``iterators`` goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..breaks import Break, Raised, raising
from ..values import assignments, attributes, iterators
from ..values.algebra import NULL, Constant, GeneratorValue
from .exceptions import exception_of
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("RETURN_GENERATOR")
def _return_generator(m: Machine, arg: Any) -> None:
    m.push(NULL)  # the generator object; the frame of a running generator pops it


@handles("YIELD_VALUE")
def _yield_value(m: Machine, arg: Any) -> None:
    m.yielded = m.take()


@handles("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(m: Machine, arg: Any) -> None:
    m.push(iterators.iterator(m, m.pop()))


@handles("SEND")
def _send(m: Machine, arg: Any) -> None:
    target, pops = arg
    sent, receiver = m.pop(), m.use(m.stack[-1])
    if not isinstance(receiver, iterators.ITERATORS):
        raise Break("FL105", what="yield from", why=f"of {receiver.describe()}")
    nothing = isinstance(sent, Constant) and sent.value is None
    if isinstance(receiver, GeneratorValue):
        item = iterators.resume_generator(m, receiver, sent)
    elif nothing:
        item = iterators.advance(m, receiver)
    else:
        raise Break("FL105", what="yield from", why=f"sends a value to {receiver.describe()}")
    if item is not None:
        m.push(item)
        return
    returned = receiver.returned if isinstance(receiver, GeneratorValue) else None
    if pops:
        m.take()
    m.push(returned or Constant(None))
    m.jump(target)


@handles("END_SEND")
def _end_send(m: Machine, arg: Any) -> None:
    value = m.take()
    m.take()
    m.push(value)


@handles("CLEANUP_THROW")
def _cleanup_throw(m: Machine, arg: Any) -> None:
    exception = exception_of(m, m.pop())
    if not issubclass(exception.python_type, StopIteration):
        raise Raised(exception, chains=False)
    m.take()
    m.take()
    m.push(NULL)
    m.push(attributes.load(m, exception, "value"))


@handles("CALL_INTRINSIC_1")
def _call_intrinsic_1(m: Machine, arg: Any) -> None:
    if arg == "INTRINSIC_STOPITERATION_ERROR":
        exception = exception_of(m, m.pop())
        if issubclass(exception.python_type, StopIteration):
            error = raising(RuntimeError("generator raised StopIteration"))
            assignments.store_directly(m, error.value, "__cause__", exception)
            attributes.assign(m, error.value, "__context__", exception)
            exception = error.value
        m.push(exception)
        return
    raise Break("FL105", what=f"intrinsic {arg}", why="not traced")
