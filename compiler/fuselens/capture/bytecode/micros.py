"""Micro-operations: one instruction set for all versions, into which :func:`normalise` splits instructions.

======================== ================= ==================== ====================================================
micro                    arg               stack, top right     meaning
======================== ================= ==================== ====================================================
LOAD_CONST               object            -- v
LOAD_FAST                name              -- v                 may be unbound, then UnboundLocalError
LOAD_FAST_AND_CLEAR      name              -- v                 NULL when unbound; unbinds (inlined comprehensions)
STORE_FAST               name              v --                 NULL unbinds; on a cell variable, acts on the slot
DELETE_FAST              name              --
MAKE_CELL                name              --                   the slot's value, if any, moves into a new cell
COPY_FREE_VARS           n                 --                   the closure's cells become the last n slots
LOAD_CLOSURE             name              -- cell
LOAD_DEREF               name              -- v
STORE_DEREF              name              v --
DELETE_DEREF             name              --
LOAD_CLASSDEREF          name              -- v                 class namespace, then cell
LOAD_FROM_DICT_OR_DEREF  name              dict -- v
LOAD_FROM_DICT_OR_GLOBALS name             dict -- v            then builtins
LOAD_GLOBAL              name              -- v                 globals, then builtins
STORE_GLOBAL             name              v --
DELETE_GLOBAL            name              --
LOAD_NAME                name              -- v
STORE_NAME               name              v --
DELETE_NAME              name              --
LOAD_LOCALS                                -- dict
LOAD_BUILD_CLASS                           -- v
LOAD_ASSERTION_ERROR                       -- v
SETUP_ANNOTATIONS                          --
LOAD_ATTR                name              o -- v
LOAD_METHOD              name              o -- a b             a callable and its NULL, in the order of PUSH_NULL; or
                                                                function, self
STORE_ATTR               name              v o --
DELETE_ATTR              name              o --
LOAD_SPECIAL             name              o -- a b             like LOAD_METHOD, found on the type
LOAD_SUPER_ATTR          (name, explicit)  super cls self -- v  explicit: super was called with two arguments
LOAD_SUPER_METHOD        (name, explicit)  super cls self -- a b  like LOAD_METHOD
POP_TOP                                    v --
PUSH_NULL                                  -- NULL
COPY                     i                 -- v                 the i-th from the top, 1 is the top
SWAP                     i                 --                   the top with the i-th
BINARY_OP                "+", "+=", ...    a b -- v
COMPARE                  "<", "==", ...    a b -- v
IS_OP                    inverted          a b -- bool
CONTAINS_OP              inverted          item container -- bool
UNARY_NEGATIVE, UNARY_POSITIVE, UNARY_INVERT, UNARY_NOT, TO_BOOL    a -- v
BINARY_SUBSCR                              o key -- v
STORE_SUBSCR                               v o key --
DELETE_SUBSCR                              o key --
BINARY_SLICE                               o start stop -- v
STORE_SLICE                                v o start stop --
GET_LEN                                    o -- o n
BUILD_TUPLE, BUILD_LIST, BUILD_SET, BUILD_STRING, BUILD_SLICE  n    v*n -- v
BUILD_MAP                n                 (k v)*n -- dict
BUILD_CONST_KEY_MAP      n                 v*n keys -- dict
LIST_APPEND, SET_ADD, LIST_EXTEND, SET_UPDATE, DICT_UPDATE, DICT_MERGE  i   v --   into the i-th from the top, after
MAP_ADD                  i                 k v --               likewise
LIST_TO_TUPLE                              list -- tuple
UNPACK_SEQUENCE          n                 seq -- v*n           first item on top
UNPACK_EX                before+(after<<8) seq -- v*            first item on top, the rest as one list
CONVERT_VALUE            1, 2, 3           v -- s               str, repr, ascii
FORMAT_SIMPLE                              v -- s
FORMAT_WITH_SPEC                           v spec -- s
BUILD_INTERPOLATION      flags             v text [spec] -- i   of a t-string: spec when flags & 1, conversion in flags >> 2
BUILD_TEMPLATE                             strings interpolations -- t
KW_NAMES                 names             --                   names for the next CALL
CALL                     n                 a b args*n -- v      a, b: see LOAD_METHOD
CALL_KW                  n                 a b args*n names -- v
CALL_FUNCTION_EX         flags             a b args [kwargs] -- v   kwargs, or NULL for none, when flags & 1
MAKE_FUNCTION            flags             [defaults] [kwdefaults] [annotations] [closure] code -- f    flags 1 2 4 8
SET_FUNCTION_ATTRIBUTE   flag              v f -- f         16: the function that makes the annotations
CALL_INTRINSIC_1         name              v -- v               "INTRINSIC_PRINT" and so on
CALL_INTRINSIC_2         name              a b -- v
IMPORT_NAME              name              level fromlist -- m
IMPORT_FROM              name              m -- m v
GET_ITER, GET_YIELD_FROM_ITER, GET_AWAITABLE, GET_AITER             o -- v
FOR_ITER                 target            it -- it v           exhausted: it -- , and jump
JUMP                     target            --
POP_JUMP_IF              (when, target)    v --                 when: True, False, "none", "not_none"
JUMP_IF_OR_POP           (when, target)    v -- ; jump: v -- v
RETURN_VALUE                               v --
RAISE_VARARGS            n                 v*n --
RERAISE                  0 or 1            e --                 1: the instruction to blame is below
PUSH_EXC_INFO                              e -- previous e
POP_EXCEPT                                 e --
CHECK_EXC_MATCH                              e t -- e v
CHECK_EG_MATCH                               e t -- rest match    and match is being handled
WITH_EXCEPT_START        i                 exit .. e -- exit .. e v    exit: the i-th from the top
BEFORE_WITH, BEFORE_ASYNC_WITH             o -- exit v
RETURN_GENERATOR                           -- v
YIELD_VALUE                                v -- sent
GET_ANEXT                                  it -- it v
SEND                     (target, pops)    r v -- r v           finished: r v -- r v (pops: -- v), and jump
END_SEND                                   r v -- v
CLEANUP_THROW                              r l e -- NULL v
END_ASYNC_FOR                              it e --
MATCH_MAPPING, MATCH_SEQUENCE              o -- o bool
MATCH_KEYS                                 o keys -- o keys v
MATCH_CLASS              n                 o cls names -- v
UNSUPPORTED              opcode name       unknown
======================== ================= ==================== ====================================================

RESUME, NOP, NOT_TAKEN, CACHE and PRECALL are nothing. :func:`effect` gives the change in depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .instruction import NULL_FIRST, VERSION, Instruction
from .opcodes import COMMON_CONSTANTS, INTRINSICS_1, INTRINSICS_2, PAIR_OPS, SPECIAL_METHODS, pair_opcodes


class Micro(NamedTuple):
    """One operation of the version-independent instruction set of the module's docstring."""

    op: str
    arg: Any = None


Micros = tuple[Micro, ...]


def normalise(instruction: Instruction) -> Micros:
    """What the instruction does, as micro-operations to be run in order."""
    rule = _RULES.get(instruction.op)
    return rule(instruction) if rule is not None else (Micro("UNSUPPORTED", instruction.op),)


def _nothing(_: Instruction) -> Micros:
    return ()


def _same(it: Instruction) -> Micros:
    return (Micro(it.op, it.argval if it.argval is not None else it.arg),)


def _renamed(name: str) -> Callable[[Instruction], Micros]:
    return lambda it: (Micro(name, it.argval if it.argval is not None else it.arg),)


def _const(it: Instruction) -> Micros:
    return (Micro("LOAD_CONST", it.argval),)


def _load_fast(it: Instruction) -> Micros:
    return (Micro("LOAD_CLOSURE" if it.flag else "LOAD_FAST", it.argval),)


def _pair(it: Instruction) -> Micros:
    one, two = pair_opcodes(it.op.replace("_BORROW", ""))
    return Micro(one, it.argval[0]), Micro(two, it.argval[1])


def _load_global(it: Instruction) -> Micros:
    load, null = Micro("LOAD_GLOBAL", it.argval), Micro("PUSH_NULL")
    if not it.flag:
        return (load,)
    return (null, load) if NULL_FIRST else (load, null)


def _load_attr(it: Instruction) -> Micros:
    return (Micro("LOAD_METHOD" if it.flag else "LOAD_ATTR", it.argval),)


def _load_super_attr(it: Instruction) -> Micros:
    return (Micro("LOAD_SUPER_METHOD" if it.flag & 1 else "LOAD_SUPER_ATTR", (it.argval, bool(it.flag & 2))),)


def _compare(it: Instruction) -> Micros:
    compared = Micro("COMPARE", it.argval)
    return (compared, Micro("TO_BOOL")) if VERSION >= (3, 13) and it.flag & 16 else (compared,)


def _return_const(it: Instruction) -> Micros:
    return Micro("LOAD_CONST", it.argval), Micro("RETURN_VALUE")


def _jump(it: Instruction) -> Micros:
    return (Micro("JUMP", it.target),)


def _pop_jump(it: Instruction) -> Micros:
    condition = it.op.rsplit("IF_", 1)[1]
    when = {"TRUE": True, "FALSE": False}.get(condition, condition.lower())
    return (Micro("POP_JUMP_IF", (when, it.target)),)


def _jump_or_pop(it: Instruction) -> Micros:
    return (Micro("JUMP_IF_OR_POP", ("TRUE" in it.op, it.target)),)


def _for_iter(it: Instruction) -> Micros:
    return (Micro("FOR_ITER", it.argval if isinstance(it.argval, Instruction) else it.target),)


def _end_for(_: Instruction) -> Micros:
    """Never reached: FOR_ITER jumps past it."""
    return (Micro("POP_TOP"),) * (2 if VERSION < (3, 13) else 1)


def _send(it: Instruction) -> Micros:
    return (Micro("SEND", (it.target, VERSION < (3, 12))),)


def _intrinsic_1(it: Instruction) -> Micros:
    name = INTRINSICS_1[it.arg if it.arg is not None else it.argval]
    own = {"INTRINSIC_LIST_TO_TUPLE": "LIST_TO_TUPLE", "INTRINSIC_UNARY_POSITIVE": "UNARY_POSITIVE"}.get(name)
    return (Micro(own) if own else Micro("CALL_INTRINSIC_1", name),)


def _intrinsic_2(it: Instruction) -> Micros:
    return (Micro("CALL_INTRINSIC_2", INTRINSICS_2[it.arg if it.arg is not None else it.argval]),)


def _format_value(it: Instruction) -> Micros:
    flags = it.arg if it.arg is not None else it.argval
    convert = (Micro("CONVERT_VALUE", flags & 3),) if flags & 3 else ()
    if not flags & 4:
        return *convert, Micro("FORMAT_SIMPLE")
    below = (Micro("SWAP", 2), *convert, Micro("SWAP", 2)) if convert else ()
    return *below, Micro("FORMAT_WITH_SPEC")


def _binary_op(it: Instruction) -> Micros:
    return (Micro("BINARY_SUBSCR") if it.argval == "[]" else Micro("BINARY_OP", it.argval),)


def _common_constant(it: Instruction) -> Micros:
    return (Micro("LOAD_CONST", COMMON_CONSTANTS[it.arg if it.arg is not None else it.argval]),)


def _load_special(it: Instruction) -> Micros:
    return (Micro("LOAD_SPECIAL", SPECIAL_METHODS[it.arg if it.arg is not None else it.argval]),)


def _call_function_ex(it: Instruction) -> Micros:
    """From 3.14 on, keyword arguments are always there, or NULL."""
    return (Micro("CALL_FUNCTION_EX", 1 if VERSION >= (3, 14) else it.argval),)


def _before_with(it: Instruction) -> Micros:
    """3.14 keeps __exit__ as a call expects it: with a NULL or its object above it."""
    return Micro(it.op), *((Micro("PUSH_NULL"), Micro("SWAP", 2)) if VERSION >= (3, 14) else ())


def _with_except_start(_: Instruction) -> Micros:
    return (Micro("WITH_EXCEPT_START", 5 if VERSION >= (3, 14) else 4),)


def _make_function(it: Instruction) -> Micros:
    return (Micro("MAKE_FUNCTION", it.arg or it.argval or 0),)


def _words(text: str) -> list[str]:
    return text.split()


def _fixed(*micros: Micro) -> Callable[[Instruction], Micros]:
    return lambda _: micros


_RULES: dict[str, Callable[[Instruction], Micros]] = {
    **dict.fromkeys(["RESUME", "NOP", "NOT_TAKEN", "CACHE", "PRECALL", "EXTENDED_ARG"], _nothing),
    **dict.fromkeys(
        _words("""
            STORE_FAST DELETE_FAST LOAD_FAST_AND_CLEAR MAKE_CELL COPY_FREE_VARS LOAD_CLOSURE LOAD_DEREF
            STORE_DEREF DELETE_DEREF LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS
            STORE_GLOBAL DELETE_GLOBAL LOAD_NAME STORE_NAME DELETE_NAME LOAD_LOCALS LOAD_BUILD_CLASS
            LOAD_ASSERTION_ERROR SETUP_ANNOTATIONS LOAD_METHOD STORE_ATTR DELETE_ATTR POP_TOP PUSH_NULL
            COPY SWAP IS_OP CONTAINS_OP UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT
            TO_BOOL BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE GET_LEN
            BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_STRING BUILD_SLICE BUILD_MAP BUILD_CONST_KEY_MAP
            LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE MAP_ADD LIST_TO_TUPLE
            UNPACK_SEQUENCE UNPACK_EX CONVERT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC KW_NAMES CALL CALL_KW
            SET_FUNCTION_ATTRIBUTE IMPORT_NAME IMPORT_FROM GET_ITER GET_YIELD_FROM_ITER
            GET_AWAITABLE GET_AITER GET_ANEXT RETURN_VALUE RAISE_VARARGS RERAISE PUSH_EXC_INFO
            POP_EXCEPT CHECK_EXC_MATCH CHECK_EG_MATCH BEFORE_ASYNC_WITH BUILD_INTERPOLATION BUILD_TEMPLATE
            RETURN_GENERATOR YIELD_VALUE END_SEND CLEANUP_THROW END_ASYNC_FOR MATCH_MAPPING
            MATCH_SEQUENCE MATCH_KEYS MATCH_CLASS
        """),
        _same,
    ),
    **dict.fromkeys(["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"], _load_fast),
    **dict.fromkeys(PAIR_OPS, _pair),
    **dict.fromkeys(["JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"], _jump),
    **{
        f"POP_JUMP_{way}IF_{when}": _pop_jump
        for way in ("", "FORWARD_", "BACKWARD_")
        for when in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
    **dict.fromkeys(["JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"], _jump_or_pop),
    **dict.fromkeys(["LOAD_CONST", "LOAD_SMALL_INT"], _const),
    "LOAD_COMMON_CONSTANT": _common_constant,
    "LOAD_SPECIAL": _load_special,
    "RETURN_CONST": _return_const,
    "LOAD_GLOBAL": _load_global,
    "LOAD_ATTR": _load_attr,
    "LOAD_SUPER_ATTR": _load_super_attr,
    "COMPARE_OP": _compare,
    "BINARY_OP": _binary_op,
    "CALL_FUNCTION_EX": _call_function_ex,
    "BEFORE_WITH": _before_with,
    "WITH_EXCEPT_START": _with_except_start,
    "FOR_ITER": _for_iter,
    "POP_ITER": _fixed(Micro("POP_TOP")),
    "END_FOR": _end_for,
    "SEND": _send,
    "CALL_INTRINSIC_1": _intrinsic_1,
    "CALL_INTRINSIC_2": _intrinsic_2,
    "FORMAT_VALUE": _format_value,
    "MAKE_FUNCTION": _make_function,
    "PRINT_EXPR": _fixed(Micro("CALL_INTRINSIC_1", "INTRINSIC_PRINT"), Micro("POP_TOP")),
    "IMPORT_STAR": _fixed(Micro("CALL_INTRINSIC_1", "INTRINSIC_IMPORT_STAR"), Micro("POP_TOP")),
    "ASYNC_GEN_WRAP": _fixed(Micro("CALL_INTRINSIC_1", "INTRINSIC_ASYNC_GEN_WRAP")),
    "PREP_RERAISE_STAR": _fixed(Micro("CALL_INTRINSIC_2", "INTRINSIC_PREP_RERAISE_STAR")),
}

_EFFECTS: dict[str, int | Callable[[Any], int]] = {
    **dict.fromkeys(
        _words("""
            LOAD_CONST LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_CLOSURE LOAD_DEREF LOAD_CLASSDEREF LOAD_GLOBAL
            LOAD_NAME LOAD_LOCALS LOAD_BUILD_CLASS LOAD_ASSERTION_ERROR LOAD_METHOD LOAD_SPECIAL PUSH_NULL COPY
            GET_LEN IMPORT_FROM FOR_ITER PUSH_EXC_INFO WITH_EXCEPT_START BEFORE_WITH BEFORE_ASYNC_WITH
            RETURN_GENERATOR GET_ANEXT MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS
        """),
        1,
    ),
    **dict.fromkeys(
        _words("""
            DELETE_FAST MAKE_CELL COPY_FREE_VARS DELETE_DEREF LOAD_FROM_DICT_OR_DEREF
            LOAD_FROM_DICT_OR_GLOBALS DELETE_GLOBAL DELETE_NAME SETUP_ANNOTATIONS LOAD_ATTR SWAP
            UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT TO_BOOL LIST_TO_TUPLE CONVERT_VALUE
            FORMAT_SIMPLE KW_NAMES CALL_INTRINSIC_1 GET_ITER GET_YIELD_FROM_ITER GET_AWAITABLE GET_AITER
            JUMP CHECK_EXC_MATCH CHECK_EG_MATCH YIELD_VALUE SEND
        """),
        0,
    ),
    **dict.fromkeys(
        _words("""
            STORE_FAST STORE_DEREF STORE_GLOBAL STORE_NAME DELETE_ATTR LOAD_SUPER_METHOD POP_TOP
            BINARY_OP COMPARE IS_OP CONTAINS_OP BINARY_SUBSCR LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE
            DICT_UPDATE DICT_MERGE FORMAT_WITH_SPEC SET_FUNCTION_ATTRIBUTE CALL_INTRINSIC_2 IMPORT_NAME
            POP_JUMP_IF JUMP_IF_OR_POP RETURN_VALUE RERAISE POP_EXCEPT END_SEND CLEANUP_THROW BUILD_TEMPLATE
        """),
        -1,
    ),
    **dict.fromkeys(
        _words("STORE_ATTR LOAD_SUPER_ATTR DELETE_SUBSCR BINARY_SLICE MAP_ADD END_ASYNC_FOR MATCH_CLASS"), -2
    ),
    "STORE_SUBSCR": -3,
    "STORE_SLICE": -4,
    **dict.fromkeys(_words("BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_STRING BUILD_SLICE"), lambda n: 1 - n),
    "BUILD_MAP": lambda n: 1 - 2 * n,
    "BUILD_CONST_KEY_MAP": lambda n: -n,
    "UNPACK_SEQUENCE": lambda n: n - 1,
    "UNPACK_EX": lambda n: (n & 255) + (n >> 8),
    "CALL": lambda n: -1 - n,
    "CALL_KW": lambda n: -2 - n,
    "CALL_FUNCTION_EX": lambda flags: -2 - (flags & 1),
    "MAKE_FUNCTION": lambda flags: -(flags & 15).bit_count(),
    "BUILD_INTERPOLATION": lambda flags: -1 - (flags & 1),
    "RAISE_VARARGS": lambda n: -n,
}
MICRO_OPS = frozenset(_EFFECTS) | {"UNSUPPORTED"}
"""Every micro-operation that `normalise` can give."""


def effect(micro: Micro, jump: bool = False) -> int:
    """How the stack's depth changes; `jump`: when the micro jumps."""
    if jump:
        if micro.op == "JUMP_IF_OR_POP":
            return 0
        if micro.op == "FOR_ITER":
            return -1
        if micro.op == "SEND":
            return -1 if micro.arg[1] else 0
    change = _EFFECTS[micro.op]
    return change if isinstance(change, int) else change(micro.arg or 0)
