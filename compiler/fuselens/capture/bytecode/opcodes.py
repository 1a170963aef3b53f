"""The running version's opcodes: what their arguments refer to, their caches, and which of them jump or end a block."""

from __future__ import annotations

import dis
import opcode
from typing import Any

from .instruction import VERSION

_N_OPCODES = 256
CACHES: list[int] = (
    [opcode._inline_cache_entries.get(dis.opname[i], 0) for i in range(_N_OPCODES)]  # type: ignore[attr-defined]
    if isinstance(opcode._inline_cache_entries, dict)  # type: ignore[attr-defined]
    else list(opcode._inline_cache_entries)  # type: ignore[attr-defined]
)
EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
HAS_ARG = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, _N_OPCODES)))
BINARY: list[str] = [symbol for _, symbol in opcode._nb_ops]  # type: ignore[attr-defined]
INTRINSICS_1: list[str] = getattr(opcode, "_intrinsic_1_descs", [])
INTRINSICS_2: list[str] = getattr(opcode, "_intrinsic_2_descs", [])
COMMON_CONSTANTS: list[Any] = getattr(opcode, "_common_constants", [])
SPECIAL_METHODS: list[str] = getattr(opcode, "_special_method_names", [])
# What COMPARE_OP's specialised forms test, from 3.12 on: unordered 1, less 2, greater 4, equal 8.
COMPARE_MASK = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)

LOCAL_OPS = {"LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW"}
PAIR_OPS = {
    "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
}  # fmt: skip
_CELL_OPS = {
    "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
    "MAKE_CELL",
}  # fmt: skip
KIND: dict[str, str] = {
    **dict.fromkeys(["LOAD_CONST", "RETURN_CONST", "KW_NAMES"], "const"),
    **{dis.opname[op]: "name" for op in dis.hasname},
    **dict.fromkeys(LOCAL_OPS, "local"),
    **dict.fromkeys(PAIR_OPS, "pair"),
    **dict.fromkeys(_CELL_OPS, "cell"),
    **{dis.opname[op]: "jump" for op in dis.hasjrel if op < _N_OPCODES},
    "LOAD_GLOBAL": "name1",
    "LOAD_SUPER_ATTR": "name2",
    "COMPARE_OP": "compare",
    "BINARY_OP": "binary",
}
if VERSION >= (3, 12):
    KIND["LOAD_ATTR"] = "name1"
KINDS: list[str] = [KIND.get(name, "") for name in dis.opname[:_N_OPCODES]]
SHIFT = {"name1": 1, "name2": 2, "compare": COMPARE_SHIFT}
RAISES = ("RAISE_VARARGS", "RERAISE")
TERMINAL = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"}
UNCONDITIONAL = {"JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
BACKWARD = {dis.opmap[n] for n in dis.opmap if "BACKWARD" in n and "JUMP" in n and dis.opmap[n] < _N_OPCODES}
if KIND.get("END_ASYNC_FOR") == "jump":  # 3.14: it names the SEND of its loop, for monitoring tools, and never jumps
    BACKWARD.add(dis.opmap["END_ASYNC_FOR"])
ENTER_WITH = [
    ("COPY", 1), ("LOAD_SPECIAL", 1), ("SWAP", 2), ("SWAP", 3), ("LOAD_SPECIAL", 0), ("CALL", 0),
]  # fmt: skip
"""How code of 3.14 enters a context: it looks up __exit__, then __enter__, which it calls."""


def pair_opcodes(name: str) -> tuple[str, str]:
    """LOAD_FAST_LOAD_FAST → LOAD_FAST, LOAD_FAST, and so on."""
    end = max(name.rfind("_LOAD_"), name.rfind("_STORE_"))
    return name[:end], name[end + 1 :]
