"""Instructions that read and write variables: constants, locals, cells and globals.

A global that a module of the program has is guarded when it is used; what is written is noted in the tracer's effects.
"""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from .. import classify
from ..breaks import Break, Raised, raising
from ..hook import _hook
from ..tracing import sources as src
from ..values import attributes, iterators
from ..values.algebra import (
    NULL,
    CellValue,
    Constant,
    FunctionValue,
    Known,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("LOAD_CONST")
def _load_const(m: Machine, arg: Any) -> None:
    if type(arg) is tuple:
        m.push(_one_tuple(m, arg))
    elif type(arg) is frozenset:
        m.push(SetValue(arg, frozenset))
    elif isinstance(arg, (types.CodeType, types.FunctionType, iterators.Recipe)):
        m.push(Known(arg))
    else:
        m.push(Constant(arg))


def _one_tuple(m: Machine, constant: tuple[Any, ...]) -> Value:
    """The value of a tuple that is a constant of code: one object, however often it is loaded."""
    known = m.tracer.constants.get(id(constant))
    if known is None:
        known = m.tracer.constants[id(constant)] = constant, _constant_tuple(constant)
    return known[1]


def _constant_tuple(values: tuple[Any, ...]) -> Value:
    return SequenceValue([_constant_tuple(v) if type(v) is tuple else Constant(v) for v in values], tuple)


@handles("LOAD_BUILD_CLASS")
def _load_build_class(m: Machine, arg: Any) -> None:
    m.push(Known(builtins.__build_class__))


@handles("LOAD_ASSERTION_ERROR")
def _load_assertion_error(m: Machine, arg: Any) -> None:
    m.push(Known(AssertionError))


@handles("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(m: Machine, name: str) -> None:
    value = m.locals.get(name)
    if value is None:
        cell = m.cells.get(name)
        if cell is not None:  # 3.13 loads cells with LOAD_FAST
            m.push(cell)
            return
        raise _unbound_local(name)
    m.push(value)


@handles("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(m: Machine, name: str) -> None:
    """Saves what an inlined comprehension (3.12) hides: a value, or the cell of a captured variable."""
    if name in m.locals:
        m.push(m.locals.pop(name))
    else:
        m.push(m.cells.pop(name, NULL))


@handles("STORE_FAST")
def _store_fast(m: Machine, name: str) -> None:
    value = m.take()
    if value is NULL or isinstance(value, CellValue):
        m.locals.pop(name, None)
        m.cells.pop(name, None)
        if isinstance(value, CellValue):
            m.cells[name] = value
        return
    m.locals[name] = value
    if not m.program.library and isinstance(value, TensorValue):
        m.tracer.remember_shape(name, m.program.span(m.instruction), value)


@handles("DELETE_FAST")
def _delete_fast(m: Machine, name: str) -> None:
    if m.locals.pop(name, None) is None:
        raise _unbound_local(name)


def _unbound_local(name: str) -> Raised:
    return raising(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))


@handles("MAKE_CELL")
def _make_cell(m: Machine, name: str) -> None:
    m.cells[name] = CellValue(name, m.locals.pop(name, None))


@handles("COPY_FREE_VARS")
def _copy_free_vars(m: Machine, n: int) -> None:
    for name, cell in zip(m.code.co_freevars, m.free, strict=True):
        m.cells[name] = cell


@handles("LOAD_CLOSURE")
def _load_closure(m: Machine, name: str) -> None:
    m.push(m.locals[name] if name in m.locals else m.cells[name])  # a comprehension's variable may have a cell's place


@handles("LOAD_DEREF", "LOAD_CLASSDEREF")
def _load_deref(m: Machine, name: str) -> None:
    m.push(read_cell(m, m.cells[name], name))


def read_cell(m: Machine, cell: CellValue, name: str) -> Value:
    """What a cell holds; an existing cell is read from the frame's closure on first use."""
    if cell.contents is None and cell.cell is not None and not cell.written:
        try:
            contents = cell.cell.cell_contents
        except ValueError:
            raise Break("FL105", what=f"free variable `{name}`", why="it is unbound here") from None
        assert cell.source is not None
        cell.contents = m.tracer.lazy(contents, src.cell_contents(cell.source, name))
    if cell.contents is None:
        if name in m.code.co_cellvars:
            raise _unbound_local(name)
        raise raising(
            NameError(
                f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            )
        )
    return cell.contents


@handles("STORE_DEREF")
def _store_deref(m: Machine, name: str) -> None:
    cell = m.cells[name]
    m.tracer.effects.touch(cell, f"assignment to `{name}`")
    cell.contents = m.take()
    cell.written = True
    if cell.source is not None:
        m.tracer.effects.cells[id(cell)] = cell
    if not m.program.library and isinstance(cell.contents, TensorValue):
        m.tracer.remember_shape(name, m.program.span(m.instruction), cell.contents)


@handles("DELETE_DEREF")
def _delete_deref(m: Machine, name: str) -> None:
    cell = m.cells[name]
    if cell.source is not None:
        raise Break("FL110", what=f"`del {name}`", why="it is an enclosing function's variable")
    read_cell(m, cell, name)
    cell.contents = None


@handles("LOAD_GLOBAL", "LOAD_NAME")
def _load_global(m: Machine, name: str) -> None:
    written = m.tracer.effects.globals.get((id(m.globals), name))
    if written is not None:
        m.push(written[1])
        return
    found = m.globals.get(name, classify)
    if found is not classify:
        if m.program.fixed and isinstance(
            found, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
        ):
            m.tracer.take(m.globals, name, found)
            m.push(FunctionValue(found, None) if type(found) is types.FunctionType else Known(found))
            return
        m.push(m.tracer.lazy(found, src.dict_item(m.globals_source, name, name)))
        return
    builtins_ = m.globals.get("__builtins__", {})
    table = builtins_.__dict__ if isinstance(builtins_, types.ModuleType) else builtins_
    if name not in table:
        m.tracer.guard(m.globals_source, _hook.MISSING, name, name="MISSING", text=f"no global is named {name}")
        raise raising(NameError(f"name '{name}' is not defined", name=name))
    found = table[name]
    if not m.program.fixed:
        m.tracer.guard(
            m.globals_source, _hook.MISSING, name, name="MISSING", text=f"no global is named like the builtin {name}"
        )
        m.tracer.guard_identity(src.dict_item(src.frame_builtins(), name, f"builtins.{name}"), found)
    m.push(attributes.static_value(found))


@handles("STORE_GLOBAL")
def _store_global(m: Machine, name: str) -> None:
    m.tracer.effects.touch(None, f"assignment to global `{name}`")
    m.tracer.effects.globals[id(m.globals), name] = (m.globals, m.take())


@handles("DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME")
def _delete_global(m: Machine, name: str) -> None:
    raise Break("FL110", what=f"`del {name}`", why="global variables are deleted eagerly")
