"""Instructions that do one thing each, right for the running version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from .instruction import NULL_FIRST, VERSION, Instruction
from .opcodes import COMPARE_MASK

Instructions = list[Instruction]


def _one(op: str, argval: Any = None, flag: int = 0) -> Instructions:
    return [Instruction(op, None, argval, flag=flag)]


def load_const(value: Any) -> Instructions:
    """Any object may be a constant of code that is not marshalled."""
    return _one("LOAD_CONST", value)


def load_fast(name: str, maybe_unbound: bool = False) -> Instructions:
    """`maybe_unbound` raises UnboundLocalError; without it an unbound local crashes the interpreter from 3.12 on."""
    return _one("LOAD_FAST_CHECK" if maybe_unbound and VERSION >= (3, 12) else "LOAD_FAST", name)


def store_fast(name: str) -> Instructions:
    return _one("STORE_FAST", name)


def delete_fast(name: str) -> Instructions:
    return _one("DELETE_FAST", name)


def load_deref(name: str) -> Instructions:
    return _one("LOAD_DEREF", name)


def store_deref(name: str) -> Instructions:
    return _one("STORE_DEREF", name)


def delete_deref(name: str) -> Instructions:
    return _one("DELETE_DEREF", name)


def load_closure(name: str) -> Instructions:
    """The cell itself."""
    return _one("LOAD_CLOSURE", name) if VERSION < (3, 13) else _one("LOAD_FAST", name, 1)


def make_cell(name: str) -> Instructions:
    return _one("MAKE_CELL", name)


def copy_free_vars(n: int) -> Instructions:
    return _one("COPY_FREE_VARS", n)


def resume() -> Instructions:
    return _one("RESUME", 0)


def prologue(cellvars: Sequence[str], freevars: Sequence[str]) -> Instructions:
    """What a function's code starts with, in the order that CPython's compiler uses."""
    free = copy_free_vars(len(freevars)) if freevars else []
    return [*free, *(it for name in cellvars for it in make_cell(name)), *resume()]


def load_attr(name: str) -> Instructions:
    return _one("LOAD_ATTR", name)


def binary_subscr() -> Instructions:
    return _one("BINARY_SUBSCR") if VERSION < (3, 14) else _one("BINARY_OP", "[]")


def binary_op(symbol: str) -> Instructions:
    return _one("BINARY_OP", symbol)


def compare(symbol: str) -> Instructions:
    return _one("COMPARE_OP", symbol, COMPARE_MASK[symbol] if VERSION >= (3, 12) else 0)


def is_op(inverted: bool = False) -> Instructions:
    return _one("IS_OP", int(inverted))


def unary_not() -> Instructions:
    return [*(_one("TO_BOOL") if VERSION >= (3, 13) else []), *_one("UNARY_NOT")]


def push_null() -> Instructions:
    return _one("PUSH_NULL")


def prepare_call(load_callable: Instructions) -> Instructions:
    """Pushes a callable and the NULL that a call expects beside it; the arguments and `call` follow."""
    return [*push_null(), *load_callable] if NULL_FIRST else [*load_callable, *push_null()]


def prepare_call_below(n: int) -> Instructions:
    """Like prepare_call for a callable that is on the stack already, under n - 1 other values (1: on top)."""
    if NULL_FIRST:  # ... f a b -> ... NULL f a b
        return [*push_null(), *(it for i in range(n + 1, 1, -1) for it in swap(i))]
    return [*push_null(), *(it for i in range(n, 1, -1) for it in swap(i))]


def call(n: int, kwnames: tuple[str, ...] = ()) -> Instructions:
    """Calls with n arguments, of which the last len(kwnames) are by keyword."""
    if VERSION >= (3, 13):
        return [*load_const(kwnames), *_one("CALL_KW", n)] if kwnames else _one("CALL", n)
    precall = _one("PRECALL", n) if VERSION < (3, 12) else []
    return [*(_one("KW_NAMES", kwnames) if kwnames else []), *precall, *_one("CALL", n)]


def call_function_ex(kwargs: bool = False) -> Instructions:
    """Calls what prepare_call left, with a tuple, and a dict when `kwargs`."""
    if VERSION >= (3, 14):
        return [*(() if kwargs else push_null()), *_one("CALL_FUNCTION_EX")]
    return _one("CALL_FUNCTION_EX", int(kwargs))


def before_with(exit_of: Callable[[Any], Any]) -> Instructions:
    """What BEFORE_WITH does on 3.14, but with the method that ``exit_of`` finds in the place of __exit__ and its NULL or object."""
    bind = [*load_const(exit_of), *swap(2), *push_null(), *swap(2), *call(1)]
    return [*copy(1), *bind, *swap(2), *_one("LOAD_SPECIAL", 0), *call(0)]


def make_function(
    code: CodeType | Instructions, closure: Sequence[str] = (), defaults: bool = False, kwdefaults: bool = False
) -> Instructions:
    """A function of the code, or of that which instructions push; `closure` names the cells it closes over. Defaults (a
    tuple), then keyword defaults (a dict) are on the stack when asked for."""
    cells = [*(it for name in closure for it in load_closure(name)), *build_tuple(len(closure))] if closure else []
    load = code if isinstance(code, list) else load_const(code)
    flags = (1 if defaults else 0) | (2 if kwdefaults else 0) | (8 if closure else 0)
    if VERSION < (3, 13):
        return [*cells, *load, *_one("MAKE_FUNCTION", flags)]
    attributes = [it for flag in (8, 2, 1) if flags & flag for it in _one("SET_FUNCTION_ATTRIBUTE", flag)]
    return [*cells, *load, *_one("MAKE_FUNCTION"), *attributes]


def set_annotations(by_function: bool) -> Instructions:
    """Gives the function below the top what is on top: its annotations, or (3.14) the function that makes them."""
    return [*swap(2), *_one("SET_FUNCTION_ATTRIBUTE", 16 if by_function else 4)]


def build_tuple(n: int) -> Instructions:
    return _one("BUILD_TUPLE", n)


def build_list(n: int) -> Instructions:
    return _one("BUILD_LIST", n)


def build_map(n: int) -> Instructions:
    return _one("BUILD_MAP", n)


def list_extend(i: int) -> Instructions:
    return _one("LIST_EXTEND", i)


def dict_update(i: int) -> Instructions:
    return _one("DICT_UPDATE", i)


def return_value() -> Instructions:
    return _one("RETURN_VALUE")


def raise_varargs(n: int = 1) -> Instructions:
    return _one("RAISE_VARARGS", n)


def push_exc_info() -> Instructions:
    return _one("PUSH_EXC_INFO")


def pop_except() -> Instructions:
    return _one("POP_EXCEPT")


def reraise() -> Instructions:
    return _one("RERAISE", 0)


def pop_top() -> Instructions:
    return _one("POP_TOP")


def swap(i: int) -> Instructions:
    return _one("SWAP", i)


def copy(i: int) -> Instructions:
    return _one("COPY", i)


def nop() -> Instructions:
    return _one("NOP")


def jump(target: Instruction) -> Instructions:
    return [Instruction("JUMP", target=target)]


def pop_jump_if(truth: bool, target: Instruction) -> Instructions:
    to_bool = _one("TO_BOOL") if VERSION >= (3, 13) else []
    not_taken = _one("NOT_TAKEN") if VERSION >= (3, 14) else []
    return [*to_bool, Instruction("POP_JUMP_IF_TRUE" if truth else "POP_JUMP_IF_FALSE", target=target), *not_taken]
