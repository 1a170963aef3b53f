"""Functions that compute on the host, by their code: from plain values, with numpy and Python's own, and with no effect but draws.

Such a function may run earlier than it stands, and once more: nobody sees the difference but the generators of random numbers, which
are put back. What is not recognised is no such function.
"""

from __future__ import annotations

import builtins
import dis
import math
import random
import sys
import types
from typing import Any

_WRITES = frozenset({
    "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME", "LOAD_NAME", "IMPORT_NAME",
    "IMPORT_FROM", "IMPORT_STAR", "YIELD_VALUE", "SEND", "GET_AWAITABLE", "BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_BUILD_CLASS",
    "LOAD_SPECIAL", "LOAD_FROM_DICT_OR_GLOBALS",
})  # fmt: skip
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_BUILTINS = frozenset(
    "range len int float bool complex str max min sum abs round list tuple dict set frozenset enumerate zip sorted reversed any all "
    "isinstance map filter slice divmod pow".split()
)
# of numpy and of arrays: they write files, settings or generators
_NOT_CALLED = frozenset(
    "save savez savez_compressed savetxt load loadtxt fromfile genfromtxt memmap open_memmap tofile dump dumps seterr seterrcall "
    "setbufsize set_printoptions set_string_function set_state setstate seed ctypeslib f2py test show_config".split()
)
_NUMPYS = frozenset({"numpy", "numpy.random", "numpy.linalg", "numpy.fft"})
_PLAIN = (int, float, bool, complex, str, bytes, type(None))


def is_plain(value: Any) -> bool:
    """Whether it is a value that no code can change."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(is_plain, value)))


def computes_on_host(function: types.FunctionType) -> bool:
    """Whether calls with plain values have no effect but draws, and read nothing that changes but generators."""
    return _is_pure(function, set())


def _is_pure(function: types.FunctionType, seen: set[types.CodeType]) -> bool:
    defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    if function.__closure__ or not is_plain(defaults):
        return False
    return _is_pure_code(function.__code__, function.__globals__, seen)


def _is_pure_code(code: types.CodeType, names: dict[str, Any], seen: set[types.CodeType]) -> bool:
    if code in seen:
        return True
    seen.add(code)
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname in _WRITES:
            return False
        if instruction.opname == "LOAD_GLOBAL" and not _is_known(name, names, seen):
            return False
        if instruction.opname in _ATTRIBUTES and (name.startswith("_") or name in _NOT_CALLED):
            return False
    return all(_is_pure_code(c, names, seen) for c in code.co_consts if isinstance(c, types.CodeType))


def _is_known(name: str, names: dict[str, Any], seen: set[types.CodeType]) -> bool:
    """Whether a global is nothing that the function could change: one of few modules and builtins, a number, or such a function."""
    if name not in names:
        found = getattr(builtins, name, None)
        return name in _BUILTINS or (isinstance(found, type) and issubclass(found, Exception))
    value = names[name]
    if isinstance(value, types.ModuleType):
        return value in (math, random) or (value.__name__ in _NUMPYS and value is sys.modules.get(value.__name__))
    return is_plain(value) or (type(value) is types.FunctionType and _is_pure(value, seen))
