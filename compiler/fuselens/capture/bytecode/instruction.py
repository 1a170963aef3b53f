"""CPython bytecode of 3.11 to 3.14: decode, assemble, emit, and one instruction set for all of them.

Nothing else in the compiler knows versions. `decode` gives instructions that refer to constants, names, locals and jump
targets themselves; `assemble` interns them, chooses jump directions and widths, and lays out caches, exception table,
position table and stack size. The emitters return instructions right for the running version. `normalise` splits one
instruction into micro-operations, the same on every version:

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

RESUME, NOP, NOT_TAKEN, CACHE and PRECALL are nothing. `effect` gives the change in depth.
"""

from __future__ import annotations

import dis
import opcode
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

VERSION = sys.version_info[:2]
NULL_FIRST = VERSION < (3, 13)
"""Whether a call's NULL lies below the callable (3.11, 3.12) or above it (from 3.13 on)."""
POPS_NULL = VERSION >= (3, 14)
"""Whether POP_TOP takes a NULL."""

Position = tuple["int | None", "int | None", "int | None", "int | None"]
"""(line, end line, column, end column), columns in UTF-8 bytes, as co_positions gives them."""
NO_POSITION: Position = (None, None, None, None)


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction.

    `argval` is what it refers to and decides what is assembled: a constant, a name, a local's name, an operator, a pair
    of names; `arg` is its raw argument, only a hint where argval says the same. `flag` holds the low bits that share an
    argument with a name or operator: LOAD_GLOBAL's and LOAD_ATTR's push-two bit, LOAD_SUPER_ATTR's two bits,
    COMPARE_OP's mask; for LOAD_FAST and its kin 1 when the slot is that of a cell or free variable. For FOR_ITER,
    argval is the instruction at which the loop is left, after the clean-up at `target`.
    """

    op: str
    arg: int | None = None
    argval: Any = None
    target: Instruction | None = None
    position: Position | None = None
    flag: int = 0

    def __repr__(self) -> str:
        what = (
            f" -> {self.target.op}" if self.target is not None else "" if self.argval is None else f" {self.argval!r}"
        )
        return f"<{self.op}{'' if self.arg is None else f' {self.arg}'}{what}>"

    def copy(self) -> Instruction:
        return Instruction(self.op, self.arg, self.argval, self.target, self.position, self.flag)


@dataclass(slots=True)
class Handler:
    """An exception raised from `start` to `end`, both included, goes to `target` with the stack cut to `depth`."""

    start: Instruction
    end: Instruction
    target: Instruction
    depth: int
    lasti: bool


@dataclass(slots=True)
class Decoded:
    instructions: list[Instruction]
    handlers: list[Handler]
    code: CodeType


# --- opcode tables ------------------------------------------------------------------------------------------------

_N_OPCODES = 256
_CACHES: list[int] = (
    [opcode._inline_cache_entries.get(dis.opname[i], 0) for i in range(_N_OPCODES)]  # type: ignore[attr-defined]
    if isinstance(opcode._inline_cache_entries, dict)  # type: ignore[attr-defined]
    else list(opcode._inline_cache_entries)  # type: ignore[attr-defined]
)
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_HAS_ARG = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, _N_OPCODES)))
_BINARY: list[str] = [symbol for _, symbol in opcode._nb_ops]  # type: ignore[attr-defined]
_INTRINSICS_1: list[str] = getattr(opcode, "_intrinsic_1_descs", [])
_INTRINSICS_2: list[str] = getattr(opcode, "_intrinsic_2_descs", [])
_COMMON_CONSTANTS: list[Any] = getattr(opcode, "_common_constants", [])
_SPECIAL_METHODS: list[str] = getattr(opcode, "_special_method_names", [])
# What COMPARE_OP's specialised forms test, from 3.12 on: unordered 1, less 2, greater 4, equal 8.
_COMPARE_MASK = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
_COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)

_LOCAL_OPS = {"LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW"}
_PAIR_OPS = {
    "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
}  # fmt: skip
_CELL_OPS = {
    "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
    "MAKE_CELL",
}  # fmt: skip
_KIND: dict[str, str] = {
    **dict.fromkeys(["LOAD_CONST", "RETURN_CONST", "KW_NAMES"], "const"),
    **{dis.opname[op]: "name" for op in dis.hasname},
    **dict.fromkeys(_LOCAL_OPS, "local"),
    **dict.fromkeys(_PAIR_OPS, "pair"),
    **dict.fromkeys(_CELL_OPS, "cell"),
    **{dis.opname[op]: "jump" for op in dis.hasjrel if op < _N_OPCODES},
    "LOAD_GLOBAL": "name1",
    "LOAD_SUPER_ATTR": "name2",
    "COMPARE_OP": "compare",
    "BINARY_OP": "binary",
}
if VERSION >= (3, 12):
    _KIND["LOAD_ATTR"] = "name1"
_KINDS: list[str] = [_KIND.get(name, "") for name in dis.opname[:_N_OPCODES]]
_SHIFT = {"name1": 1, "name2": 2, "compare": _COMPARE_SHIFT}
_TERMINAL = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"}
_UNCONDITIONAL = {"JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_BACKWARD = {dis.opmap[n] for n in dis.opmap if "BACKWARD" in n and "JUMP" in n and dis.opmap[n] < _N_OPCODES}
if _KIND.get("END_ASYNC_FOR") == "jump":  # 3.14: it names the SEND of its loop, for monitoring tools, and never jumps
    _BACKWARD.add(dis.opmap["END_ASYNC_FOR"])
_WITH = [
    ("COPY", 1), ("LOAD_SPECIAL", 1), ("SWAP", 2), ("SWAP", 3), ("LOAD_SPECIAL", 0), ("CALL", 0),
]  # fmt: skip
"""How code of 3.14 enters a context: it looks up __exit__, then __enter__, which it calls."""


def slot_names(code: CodeType) -> list[str]:
    """Names of the frame's slots: locals, then cells that are no arguments, then free variables."""
    local = set(code.co_varnames)
    return [*code.co_varnames, *(n for n in code.co_cellvars if n not in local), *code.co_freevars]


# --- decoding -----------------------------------------------------------------------------------------------------


def decode(code: CodeType) -> Decoded:
    """The code's instructions, without caches and EXTENDED_ARG, and its exception table."""
    raw = code.co_code
    positions = list(code.co_positions())
    slots = slot_names(code)
    is_cell = [i >= code.co_nlocals or n in code.co_cellvars for i, n in enumerate(slots)]
    consts, names = code.co_consts, code.co_names
    instructions: list[Instruction] = []
    at: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    unit, n_units = 0, len(raw) // 2
    while unit < n_units:
        start, arg = unit, 0
        while raw[2 * unit] == _EXTENDED_ARG:
            arg = (arg | raw[2 * unit + 1]) << 8
            unit += 1
        op = raw[2 * unit]
        arg |= raw[2 * unit + 1]
        position = positions[unit]
        unit += 1 + _CACHES[op]
        it = Instruction(dis.opname[op], arg if op in _HAS_ARG else None, None, None, position)
        kind = _KINDS[op]
        if not kind:
            it.argval = it.arg
        elif kind == "const":
            it.argval = consts[arg]
        elif kind == "local":
            it.argval, it.flag = slots[arg], int(is_cell[arg])
        elif kind == "name":
            it.argval = names[arg]
        elif kind == "name1":
            it.argval, it.flag = names[arg >> 1], arg & 1
        elif kind == "jump":
            jumps.append((it, unit - arg if op in _BACKWARD else unit + arg))
        elif kind == "cell":
            it.argval = slots[arg]
        elif kind == "binary":
            it.argval = _BINARY[arg]
        elif kind == "compare":
            it.argval, it.flag = dis.cmp_op[arg >> _COMPARE_SHIFT], arg & ((1 << _COMPARE_SHIFT) - 1)
        elif kind == "pair":
            it.argval = (slots[arg >> 4], slots[arg & 15])
        else:
            it.argval, it.flag = names[arg >> 2], arg & 3
        at[start] = it
        instructions.append(it)
    for it, offset in jumps:
        it.target = at[offset]
    _find_loop_exits(instructions)
    return Decoded(instructions, _decode_handlers(code, at, n_units), code)


def spell_out_super(decoded: Decoded) -> None:
    """Gives each ``super()`` the arguments that CPython takes from the frame, whose first variable a resume function lacks."""
    code = decoded.code
    if "super" not in code.co_names or "__class__" not in code.co_freevars or not code.co_argcount:
        return
    first = code.co_varnames[0]
    load_first = load_deref if first in code.co_cellvars else load_fast
    found: list[Instruction] = []
    previous = None
    for it in decoded.instructions:
        if it.op in ("CALL", "PRECALL") and it.argval == 0 and previous is not None:
            if previous.op == "LOAD_GLOBAL" and previous.argval == "super":
                arguments = [*load_deref("__class__"), *load_first(first)]
                for argument in arguments:
                    argument.position = it.position
                found += arguments
                it.arg = it.argval = 2
            elif previous.op == "PRECALL" and previous.argval == 2:
                it.arg = it.argval = 2
        found.append(it)
        previous = it
    decoded.instructions[:] = found


def join_with(decoded: Decoded) -> None:
    """Makes one BEFORE_WITH, as older versions have it, of the instructions by which 3.14 enters a context. `assemble`
    makes them of it again."""
    joined: dict[Instruction, Instruction] = {}
    found: list[Instruction] = []
    for it in decoded.instructions:
        found.append(it)
        last = found[-len(_WITH) :]
        if it.op == "CALL" and [(i.op, i.arg) for i in last] == _WITH:
            first = last[0]
            del found[-len(_WITH) + 1 :]
            first.op, first.arg, first.argval = "BEFORE_WITH", None, None
            joined.update(dict.fromkeys(last, first))
    for handler in decoded.handlers:
        handler.start = joined.get(handler.start, handler.start)
        handler.end = joined.get(handler.end, handler.end)
    decoded.instructions[:] = found


def own_loads(decoded: Decoded) -> None:
    """Makes plain loads of those that borrow from the local: 3.14's compiler has proved that the local keeps the value
    for so long, which need not hold where the instructions are to run among others."""
    for it in decoded.instructions:
        it.op = it.op.replace("_BORROW", "")


def split_pairs(decoded: Decoded) -> None:
    """Makes two instructions of each that handles two locals: `assemble` would, where a slot is too high for a pair, and
    what is made of these instructions is to decode to as many."""
    split: dict[Instruction, Instruction] = {}
    found: list[Instruction] = []
    for it in decoded.instructions:
        found.append(it)
        if it.op in _PAIR_OPS:
            (first, name), (second, other) = zip(_pair_opcodes(it.op), it.argval, strict=True)
            it.op, it.arg, it.argval = first, None, name
            split[it] = Instruction(second, None, other, None, it.position)
            found.append(split[it])
    for handler in decoded.handlers:
        handler.end = split.get(handler.end, handler.end)
    decoded.instructions[:] = found


def _pair_opcodes(name: str) -> tuple[str, str]:
    """LOAD_FAST_LOAD_FAST → LOAD_FAST, LOAD_FAST, and so on."""
    end = max(name.rfind("_LOAD_"), name.rfind("_STORE_"))
    return name[:end], name[end + 1 :]


def _find_loop_exits(instructions: list[Instruction]) -> None:
    """3.12 ends a loop with END_FOR, 3.13 with END_FOR and POP_TOP, 3.14 with END_FOR and POP_ITER; an exhausted FOR_ITER
    has the effect of both."""
    index: dict[Instruction, int] | None = None
    for it in instructions:
        if it.op == "FOR_ITER":
            exit_ = it.target
            if exit_ is not None and exit_.op == "END_FOR":
                index = index or {other: i for i, other in enumerate(instructions)}
                exit_ = instructions[index[exit_] + (1 if VERSION < (3, 13) else 2)]
            it.argval = exit_


def _decode_handlers(code: CodeType, at: dict[int, Instruction], n_units: int) -> list[Handler]:
    table = iter(code.co_exceptiontable)

    def number(byte: int) -> int:
        value = byte & 63
        while byte & 64:
            byte = next(table)
            value = value << 6 | byte & 63
        return value

    handlers: list[Handler] = []
    last_before: dict[int, Instruction] = {}
    if code.co_exceptiontable:
        previous: Instruction | None = None
        for offset, it in at.items():
            if previous is not None:
                last_before[offset] = previous
            previous = it
        if previous is not None:
            last_before[n_units] = previous
    for byte in table:
        start, length, target, depth = number(byte), number(next(table)), number(next(table)), number(next(table))
        handlers.append(Handler(at[start], last_before[start + length], at[target], depth >> 1, bool(depth & 1)))
    return handlers


# --- assembling ---------------------------------------------------------------------------------------------------


def _const_key(value: Any) -> Any:
    """Constants are one when types and values are, to the last bit and through tuples; other objects by identity."""
    kind = type(value)
    if kind in (int, bool, str, bytes, type(None), type(Ellipsis)):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple:
        return kind, tuple(map(_const_key, value))
    return "identity", id(value)  # of frozensets too: equal ones differ in order


class _Pool:
    """Constants, names and slots of the code that is being assembled."""

    def __init__(self, template: CodeType, changes: dict[str, Any]) -> None:
        self.consts: list[Any] = list(changes.get("co_consts", template.co_consts))
        self.names: list[str] = list(changes.get("co_names", template.co_names))
        self.varnames: list[str] = list(changes.get("co_varnames", template.co_varnames))
        self.cellvars: list[str] = list(changes.get("co_cellvars", template.co_cellvars))
        self.freevars: list[str] = list(changes.get("co_freevars", template.co_freevars))
        self._const_index = {_const_key(v): i for i, v in reversed(list(enumerate(self.consts)))}
        self._name_index = {n: i for i, n in enumerate(self.names)}
        self.slots: list[str] = []
        self._local_slot: dict[str, int] = {}
        self._cell_slot: dict[str, int] = {}

    def add_locals(self, instructions: Iterable[Instruction]) -> None:
        """Gives every local an instruction names a slot, then fixes the slots."""
        known = {*self.varnames, *self.cellvars, *self.freevars}
        for it in instructions:
            if it.op in _LOCAL_OPS or it.op in _PAIR_OPS:
                for name in (it.argval,) if isinstance(it.argval, str) else it.argval:
                    if name not in known:
                        known.add(name)
                        self.varnames.append(name)
        local = set(self.varnames)
        self.slots = [*self.varnames, *(n for n in self.cellvars if n not in local), *self.freevars]
        self._cell_slot = {n: i for i, n in enumerate(self.slots)}  # the last one of a name: cells and free variables
        self._local_slot = {n: i for i, n in reversed(list(enumerate(self.slots)))}

    def const(self, value: Any, hint: int) -> int:
        if 0 <= hint < len(self.consts) and self.consts[hint] is value:
            return hint
        index = self._const_index.setdefault(_const_key(value), len(self.consts))
        if index == len(self.consts):
            self.consts.append(value)
        return index

    def name(self, name: str, hint: int) -> int:
        if 0 <= hint < len(self.names) and self.names[hint] == name:
            return hint
        index = self._name_index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    def slot(self, name: str, hint: int, cell: bool) -> int:
        if 0 <= hint < len(self.slots) and self.slots[hint] == name:
            return hint
        slots = self._cell_slot if cell else self._local_slot
        if name not in slots:
            raise ValueError(f"variable {name!r} is neither cell nor free variable of the code")
        return slots[name]


class _Unit:
    """One instruction as it will be laid out: an argument that is final, or a jump."""

    __slots__ = ("arg", "backward", "caches", "instruction", "offset", "op", "size", "target")

    def __init__(self, op: int, arg: int, instruction: Instruction) -> None:
        self.op = op
        self.arg = arg
        self.instruction = instruction
        self.target: _Unit | None = None
        self.backward = False
        self.caches = _CACHES[op]
        self.size = 1 + _extensions(arg) + self.caches
        self.offset = 0


def _extensions(arg: int) -> int:
    return 0 if arg < 1 << 8 else 1 if arg < 1 << 16 else 2 if arg < 1 << 24 else 3


def assemble(
    template: CodeType, instructions: Sequence[Instruction], handlers: Iterable[Handler] = (), **changes: Any
) -> CodeType:
    """A code object like the template with these instructions and handlers.

    `changes` are those of `CodeType.replace`. Constants, names and locals that the instructions use and the pools lack
    are added to them; so pass co_varnames, co_cellvars, co_freevars to change the layout, not to list what is new.
    Jumps may use any of a family of opcodes (or JUMP, POP_JUMP_IF_TRUE...): direction and width are found here. Raises
    ValueError for a jump out of the list or an undeclared cell variable.
    """
    pool = _Pool(template, changes)
    pool.add_locals(instructions)
    units, first, last = _select(instructions, pool)
    _lay_out(units)
    spans = [(first[h.start], last[h.end], first[h.target], h) for h in handlers]
    spans.sort(key=lambda span: span[0].offset)  # CPython looks an instruction up by halving the table
    firstlineno = changes.get("co_firstlineno", template.co_firstlineno)
    layout = {
        "co_code": _encode(units),
        "co_consts": tuple(pool.consts),
        "co_names": tuple(pool.names),
        "co_varnames": tuple(pool.varnames),
        "co_nlocals": len(pool.varnames),
        "co_cellvars": tuple(pool.cellvars),
        "co_freevars": tuple(pool.freevars),
        "co_linetable": _encode_positions(units, firstlineno),
        "co_exceptiontable": _encode_handlers(spans),
        "co_stacksize": _stack_size(units, spans),
    }
    return template.replace(**{**changes, **layout})


def _select(
    instructions: Sequence[Instruction], pool: _Pool
) -> tuple[list[_Unit], dict[Instruction, _Unit], dict[Instruction, _Unit]]:
    """Chooses opcodes and arguments: what is laid out, and each instruction's first and last unit."""
    index = {it: i for i, it in enumerate(instructions)}
    units: list[_Unit] = []
    first: dict[Instruction, _Unit] = {}
    last: dict[Instruction, _Unit] = {}
    jumps: list[tuple[_Unit, Instruction]] = []
    skips: list[tuple[_Unit, int]] = []  # jumps over the next instruction
    for i, it in enumerate(instructions):
        start = len(units)
        if it.target is not None:
            if it.target not in index:
                raise ValueError(f"{it!r} jumps out of the instructions given")
            backward = index[it.target] <= i
            names = _jump_opcodes(it.op, backward)
            for name in names:
                unit = _Unit(dis.opmap[name], 0, it)
                units.append(unit)
                jumps.append((unit, it.target))
                unit.backward = unit.op in _BACKWARD
            if len(names) > 1:  # the first, inverted, jumps over the second
                jumps.pop(-2)
                skips.append((units[-2], len(units)))
        else:
            units.extend(_Unit(dis.opmap[name], arg, it) for name, arg in _arguments(it, pool))
        first[it], last[it] = units[start], units[-1]
    for unit, target in jumps:
        unit.target = first[target]
    for unit, over in skips:
        if over == len(units):
            raise ValueError("a conditional jump ends the code")
        unit.target = units[over]
    return units, first, last


_INVERSE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE", "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}  # fmt: skip


def _jump_opcodes(name: str, backward: bool) -> tuple[str, ...]:
    """The opcodes of this version that make the jump."""
    if name in _UNCONDITIONAL:
        if not backward:
            return ("JUMP_FORWARD",)
        return (name if name.startswith("JUMP_BACKWARD") else "JUMP_BACKWARD",)
    if name.startswith("POP_JUMP"):
        condition = name.replace("FORWARD_", "").replace("BACKWARD_", "")
        if VERSION < (3, 12):
            return (condition.replace("JUMP_", "JUMP_BACKWARD_" if backward else "JUMP_FORWARD_"),)
        return (_INVERSE[condition], "JUMP_BACKWARD") if backward else (condition,)
    if backward and name != "END_ASYNC_FOR":
        raise ValueError(f"{name} cannot jump backwards")
    return (name,)


def _arguments(it: Instruction, pool: _Pool) -> list[tuple[str, int]]:
    """Opcode and raw argument of an instruction that does not jump; a pair whose slots do not fit nibbles gives two."""
    if it.op == "BEFORE_WITH" and it.op not in dis.opmap:
        return _WITH
    kind = _KIND.get(it.op, "")
    if not kind:
        if isinstance(it.argval, int) and it.op in dis.opmap and dis.opmap[it.op] in _HAS_ARG:
            return [(it.op, it.argval)]
        return [(it.op, it.arg or 0)]
    hint = -1 if it.arg is None else it.arg >> _SHIFT.get(kind, 0)
    if kind == "const":
        return [(it.op, pool.const(it.argval, hint))]
    if kind == "local":
        return [(it.op, pool.slot(it.argval, hint, bool(it.flag)))]
    if kind == "cell":
        return [(it.op, pool.slot(it.argval, hint, True))]
    if kind.startswith("name"):
        shift = _SHIFT.get(kind, 0)
        return [(it.op, pool.name(it.argval, hint) << shift | it.flag)]
    if kind == "compare":
        return [(it.op, dis.cmp_op.index(it.argval) << _COMPARE_SHIFT | it.flag)]
    if kind == "binary":
        return [(it.op, _BINARY.index(it.argval))]
    if kind == "pair":
        hints = (-1, -1) if it.arg is None else (it.arg >> 4, it.arg & 15)
        a, b = (pool.slot(name, h, False) for name, h in zip(it.argval, hints, strict=True))
        if a < 16 and b < 16:
            return [(it.op, a << 4 | b)]
        one, two = _pair_opcodes(it.op)
        return [(one, a), (two, b)]
    raise ValueError(f"{it!r} needs a jump target")


def _lay_out(units: list[_Unit]) -> None:
    """Sets offsets, and arguments of jumps.

    A jump backwards spans its own EXTENDED_ARG, so layouts can have two fixed points. 3.13's compiler starts from the
    index of the target instruction as argument, older ones from 0: doing the same ends at the same layout. Widths may
    shrink at first, and after a few rounds only grow, so that this ends.
    """
    if VERSION >= (3, 13):
        index = {unit: i for i, unit in enumerate(units)}
        for unit in units:
            if unit.target is not None:
                unit.size += _extensions(index[unit.target])
    stable, rounds = False, 0
    while not stable:
        offset = 0
        for unit in units:
            unit.offset = offset
            offset += unit.size
        stable, rounds = True, rounds + 1
        for unit in units:
            if unit.target is not None:
                end = unit.offset + unit.size
                unit.arg = end - unit.target.offset if unit.backward else unit.target.offset - end
                size = 1 + _extensions(unit.arg) + unit.caches
                if rounds > 8:
                    size = max(size, unit.size)
                stable = stable and size == unit.size
                unit.size = size


def _encode(units: list[_Unit]) -> bytes:
    out = bytearray()
    for unit in units:
        for i in range(unit.size - unit.caches - 1, 0, -1):
            out += bytes((_EXTENDED_ARG, unit.arg >> 8 * i & 255))
        out += bytes((unit.op, unit.arg & 255)) + bytes(2 * unit.caches)
    return bytes(out)


def _varint(value: int) -> bytes:
    """Little end first, six bits a byte (position table)."""
    out = bytearray()
    while value > 63:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


def _signed_varint(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


def _encode_positions(units: list[_Unit], line: int) -> bytes:
    """Runs of units with one position (3.11: single units), at most eight code units an entry, as CPython does."""
    out = bytearray()
    i = 0
    while i < len(units):
        position = units[i].instruction.position or NO_POSITION
        size = units[i].size
        i += 1
        while VERSION >= (3, 12) and i < len(units) and (units[i].instruction.position or NO_POSITION) == position:
            size += units[i].size
            i += 1
        while size:
            line = _encode_position(out, position, min(size, 8), line)
            size -= min(size, 8)
    return bytes(out)


def _encode_position(out: bytearray, position: Position, size: int, line: int) -> int:
    """Appends one entry, returns the line that the next is relative to."""
    start, end, column, end_column = position
    first = 128 | size - 1  # a mark, the kind at bit 3, and the size
    if start is None:
        out.append(first | 15 << 3)
        return line
    delta = start - line
    if column is None or end_column is None:
        if end is None or end == start:
            out.append(first | 13 << 3)
            out += _signed_varint(delta)
            return start
    elif end == start:
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            out += bytes((first | column >> 3 << 3, (column & 7) << 4 | end_column - column))
            return start
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            out += bytes((first | 10 + delta << 3, column, end_column))
            return start
    out.append(first | 14 << 3)
    out += _signed_varint(delta) + _varint((start if end is None else end) - start)
    out += _varint(0 if column is None else column + 1) + _varint(0 if end_column is None else end_column + 1)
    return start


_Spans = list[tuple[_Unit, _Unit, _Unit, Handler]]


def _encode_handlers(spans: _Spans) -> bytes:
    out = bytearray()
    for first, last, target, handler in spans:
        fields = (
            first.offset,
            last.offset + last.size - first.offset,
            target.offset,
            handler.depth << 1 | handler.lasti,
        )
        for i, value in enumerate(fields):
            groups = [value & 63]
            while value := value >> 6:
                groups.append(64 | value & 63)
            groups.reverse()
            if i == 0:
                groups[0] |= 128
            out += bytes(groups)
    return bytes(out)


def _unit_effect(unit: _Unit, jump: bool) -> int:
    name = dis.opname[unit.op]
    if VERSION < (3, 12) and name in ("PRECALL", "CALL"):  # the table lets PRECALL take the arguments; CALL does
        return 0 if name == "PRECALL" else -1 - unit.arg
    if name == "RETURN_GENERATOR" and VERSION < (3, 13):
        return 1
    return dis.stack_effect(unit.op, unit.arg if unit.op in _HAS_ARG else None, jump=jump)


def _stack_size(units: list[_Unit], spans: _Spans) -> int:
    """The greatest depth on any path from the start and from any handler."""
    index = {unit: i for i, unit in enumerate(units)}
    depth: list[int] = [-1] * len(units)
    work = [(0, 0)] if units else []
    work += [(index[target], h.depth + 1 + h.lasti) for _, _, target, h in spans]
    greatest = max((start for _, start in work), default=0)
    while work:
        i, here = work.pop()
        while i < len(units) and depth[i] < here:
            depth[i] = here
            unit = units[i]
            name = dis.opname[unit.op]
            if unit.target is not None and name != "END_ASYNC_FOR":
                there = here + _unit_effect(unit, True)
                greatest = max(greatest, there)
                work.append((index[unit.target], there))
            if name in _UNCONDITIONAL or name in _TERMINAL:
                break
            here += _unit_effect(unit, False)
            greatest = max(greatest, here)
            i += 1
    return greatest


def stack_depths(decoded: Decoded) -> dict[Instruction, int]:
    """Depth before each reachable instruction, by the interpreter's own table."""
    units, first, _ = _select(decoded.instructions, _pool_of(decoded))
    index = {unit: i for i, unit in enumerate(units)}
    depth: dict[int, int] = {}
    work = [(0, 0), *((index[first[h.target]], h.depth + 1 + h.lasti) for h in decoded.handlers)]
    while work:
        i, here = work.pop()
        while i not in depth and i < len(units):
            depth[i] = here
            unit = units[i]
            name = dis.opname[unit.op]
            if unit.target is not None and name != "END_ASYNC_FOR":
                work.append((index[unit.target], here + _unit_effect(unit, True)))
            if name in _UNCONDITIONAL or name in _TERMINAL:
                break
            here += _unit_effect(unit, False)
            i += 1
    return {it: depth[index[unit]] for it, unit in first.items() if index[unit] in depth}


def _pool_of(decoded: Decoded) -> _Pool:
    pool = _Pool(decoded.code, {})
    pool.add_locals(decoded.instructions)
    return pool


# --- emitting -----------------------------------------------------------------------------------------------------

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
    return _one("COMPARE_OP", symbol, _COMPARE_MASK[symbol] if VERSION >= (3, 12) else 0)


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


# --- the normalised form ------------------------------------------------------------------------------------------


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
    one, two = _pair_opcodes(it.op.replace("_BORROW", ""))
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
    name = _INTRINSICS_1[it.arg if it.arg is not None else it.argval]
    own = {"INTRINSIC_LIST_TO_TUPLE": "LIST_TO_TUPLE", "INTRINSIC_UNARY_POSITIVE": "UNARY_POSITIVE"}.get(name)
    return (Micro(own) if own else Micro("CALL_INTRINSIC_1", name),)


def _intrinsic_2(it: Instruction) -> Micros:
    return (Micro("CALL_INTRINSIC_2", _INTRINSICS_2[it.arg if it.arg is not None else it.argval]),)


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
    return (Micro("LOAD_CONST", _COMMON_CONSTANTS[it.arg if it.arg is not None else it.argval]),)


def _load_special(it: Instruction) -> Micros:
    return (Micro("LOAD_SPECIAL", _SPECIAL_METHODS[it.arg if it.arg is not None else it.argval]),)


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
    **dict.fromkeys(_PAIR_OPS, _pair),
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


# --- liveness -----------------------------------------------------------------------------------------------------

_READS = {"LOAD_FAST", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "MAKE_CELL"}


def live_locals(
    instructions: Sequence[Instruction], handlers: Iterable[Handler] = ()
) -> dict[Instruction, frozenset[str]]:
    """Locals whose value before an instruction may still be read, also along exceptions.

    Of names, cell variables count until MAKE_CELL takes them over. LOAD_FAST_AND_CLEAR counts as a read, although the
    local may be unbound: whoever saves the live locals drops those that are.
    """
    index = {it: i for i, it in enumerate(instructions)}
    n = len(instructions)
    bit: dict[str, int] = {}
    reads, keeps = [0] * n, [-1] * n  # before = reads | after & keeps
    successors: list[list[int]] = [[] for _ in range(n)]
    for i, it in enumerate(instructions):
        for micro in reversed(normalise(it)):
            if micro.op in _READS or micro.op == "STORE_FAST":
                mask = bit.setdefault(micro.arg, 1 << len(bit))
                reads[i] = reads[i] | mask if micro.op in _READS else reads[i] & ~mask
                if micro.op != "LOAD_FAST":
                    keeps[i] &= ~mask
        if it.op not in _TERMINAL and it.op not in _UNCONDITIONAL and i + 1 < n:
            successors[i].append(i + 1)
        if it.target is not None and it.op != "END_ASYNC_FOR":
            successors[i].append(index[it.target])
    landing: list[list[int]] = [[] for _ in range(n)]
    for handler in handlers:
        for i in range(index[handler.start], index[handler.end] + 1):
            landing[i].append(index[handler.target])
    live = [0] * n
    changed = True
    while changed:
        changed = False
        for i in range(n - 1, -1, -1):
            after = 0
            for s in successors[i]:
                after |= live[s]
            before = reads[i] | after & keeps[i]
            for h in landing[i]:
                before |= live[h]
            if before != live[i]:
                live[i] = before
                changed = True
    sets: dict[int, frozenset[str]] = {}
    for mask in live:
        if mask not in sets:
            sets[mask] = frozenset(name for name, b in bit.items() if mask & b)
    return {it: sets[live[i]] for i, it in enumerate(instructions)}
