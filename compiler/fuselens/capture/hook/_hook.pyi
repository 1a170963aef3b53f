"""The frame evaluator, the guard machine and the table of compiled code (`_hook.c`; CPython 3.11 to 3.13)."""

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, final

Node = tuple[int, int, Any]
"""(parent node, kind, key): where an object is found. Roots ignore the parent; others come after their parent."""
Check = tuple[Any, ...]
"""(node, kind, operand...): what must hold of the object at a node."""
Miss = tuple["Entry", int]
"""An entry that did not apply, and the index of the check that failed (number of checks + i: gather item i)."""
Callback = Callable[[FunctionType, CodeType, tuple[Any, ...], tuple[Miss, ...]], "Entry | None"]
"""(function, its code, its bound arguments, misses) -> entry to run and keep, or None to run the code as it is.

Called with capture off. The bound arguments are those of the frame: *args and **kwargs are packed, in the order of
`co_varnames`. Nobody who traces, profiles or monitors is told of what it does. An exception goes to the caller of the function."""

# Node kinds
ROOT_LOCAL: int
"""Argument number key of the frame (never another local: those are unset)."""
ROOT_CLOSURE: int
"""Cell number key of the function's closure."""
ROOT_GLOBALS: int
"""The function's `__globals__`."""
ROOT_BUILTINS: int
"""The function's `__builtins__`, a dict."""
ROOT_FUNCTION: int
"""The function itself."""
ROOT_CONST: int
"""The key itself, kept alive."""
ROOT_WEAK: int
"""What the key, a weak reference, refers to; fails when that is gone."""
CELL_CONTENTS: int
"""Contents of a cell; fails when empty."""
INSTANCE_DICT: int
"""`__dict__` of an object (of a class: its own namespace), without running Python. Empty when there is none."""
DICT_ITEM: int
"""Item of a dict under the key; fails when missing. Subclasses are read as plain dicts (no `__missing__`)."""
SEQ_ITEM: int
"""Item number key, from 0, of a tuple or list. Subclasses are read as plain ones."""
GETATTR: int
"""`getattr(object, key)`: may run Python; fails when that raises."""
TYPE: int
"""Type of an object."""
FUNC_CODE: int
"""`__code__` of a Python function."""
FUNC_DEFAULTS: int
"""`__defaults__` of a Python function, or None."""
FUNC_KWDEFAULTS: int
"""`__kwdefaults__` of a Python function, or None."""
FUNC_CLOSURE: int
"""`__closure__` of a Python function, or None."""
FUNC_GLOBALS: int
"""`__globals__` of a Python function."""
METHOD_SELF: int
"""`__self__` of a bound method."""
METHOD_FUNC: int
"""`__func__` of a bound method."""
LENGTH: int
"""`len(object)`, as an int."""
APPLIED: int
"""`key(object)`, for a callable without effects; fails when that raises."""

# Check kinds
TYPE_IS: int
"""Operand: the exact type."""
IS: int
"""Operand: the very object, kept alive; or a weak reference to it (fails when it is gone)."""
ID_IS: int
"""Operand: `id` of the object."""
EQUALS: int
"""Operand: a constant. Same exact type and equal; floats bit by bit; tuples item by item. Other types by `==`."""
LENGTH_IS: int
"""Operand: the length."""
DICT_KEYS_ARE: int
"""Operand: tuple of all keys of the dict, in order."""
MISSING: int
"""Operand: a key that the dict at the node does not have."""
TENSOR: int
"""Operand: see `tensor_layout.spec`: (type, dtype, device type, device index, requires_grad, sizes, strides, key
set). Size n >= 0: exactly n; -n: at least n; None: any. Strides None: any."""
GRAD_MODE: int
"""Operand: whether gradients are recorded. The node is ignored."""
CALL: int
"""Operand: a callable; called with the object, passes when the answer is true, fails when it raises."""
GLOBAL_CALL: int
"""Operand: a callable without arguments. The node is ignored."""
STATE: int
"""Operand: (builtin function without arguments that runs no Python, the object that it must return, or a constant
equal to it as by EQUALS). The node is ignored."""
DISTINCT: int
"""Operand: tuple of nodes whose objects are pairwise different. The node is ignored."""
SAME: int
"""Operand: another node, that holds the same object."""
SHAPE: int
"""Two operands: variables ((node, d), ...) and a postfix program ((operation, operand), ...) over 64-bit integers
that must leave a true value. d >= 0: size of dimension d; -1: the object is the int; -2 - d: stride of dimension d.
Tensors must have passed a TENSOR check. Overflow and division by zero fail. The node is ignored."""

# Operations of SHAPE programs
S_CONST: int
"""Push the operand."""
S_VAR: int
"""Push variable number operand."""
S_ADD: int
"""a + b; like all below without operand (give 0)."""
S_SUB: int
"""a - b."""
S_MUL: int
"""a * b."""
S_FLOORDIV: int
"""a // b, as Python rounds."""
S_MOD: int
"""a % b, with the sign of b."""
S_MIN: int
"""min(a, b)."""
S_MAX: int
"""max(a, b)."""
S_EQ: int
"""a == b."""
S_NE: int
"""a != b."""
S_LT: int
"""a < b."""
S_LE: int
"""a <= b."""
S_AND: int
"""a and b."""
S_OR: int
"""a or b."""
S_NOT: int
"""not a."""

@final
class Guards:
    """A compiled guard program. Immutable.

    Checks run in order, in one pass; a node is resolved when the first check needs it, and a node that cannot be
    resolved fails that check. When all pass, the objects at the `gather` nodes become one tuple.
    Raises ValueError or TypeError for a program that is not well formed.
    """

    nodes: tuple[Node, ...]
    checks: tuple[Check, ...]
    gather: tuple[int, ...]
    def __new__(cls, nodes: Sequence[Node], checks: Sequence[Check], gather: Sequence[int] = ()) -> Guards: ...
    def check(self, func: FunctionType, arguments: tuple[Any, ...], /) -> tuple[bool, int, tuple[Any, ...] | None]:
        """(passed, index of the failed check or -1, gathered tuple or None), for bound arguments given as a tuple."""
    def costs(self, func: FunctionType, arguments: tuple[Any, ...], repeats: int, /) -> list[float] | None:
        """Nanoseconds of each check when nothing is remembered of an earlier pass, with finding the objects that no
        earlier check has found; the mean of some runs. None when a check fails."""
    def time(self, func: FunctionType, arguments: tuple[Any, ...], repeats: int, /) -> float | None:
        """Nanoseconds of one evaluation, gathering included; the mean of all. None when a check fails."""

@final
class Entry:
    """Replacement code and the guards under which it applies. Immutable but for `alive` and `info`.

    The code has the same arguments in the same order and as many free variables as the original, and is no generator;
    its other locals, cells, constants and stack are its own. `gather_slot`: index in `co_varnames` of the local, beyond
    the arguments, that starts as the gathered tuple.
    """

    guards: Guards
    code: CodeType
    gather_slot: int
    hits: int
    alive: bool
    """Set to False to invalidate: passed over from now on, removed at the next miss."""
    owner: Any
    """That of the region in which the callback gave it; None for one that was added by hand."""
    info: Any
    """Whatever the owner likes; None at first."""
    def __new__(cls, guards: Guards, code: CodeType, gather_slot: int = -1) -> Entry: ...

@final
class Region:
    """Calls `fn` with capture on in this thread: every Python function entered meanwhile runs the first of its
    entries whose guards pass, or is shown to the callback. Binds like a function; has a `__dict__`, as
    functools.update_wrapper needs it.
    """

    fn: Callable[..., Any]
    callback: Callback
    __dict__: dict[str, Any]
    owner: Any
    def __new__(cls, fn: Callable[..., Any], callback: Callback, owner: Any = ...) -> Region: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...

@final
class disabled:  # noqa: N801
    """Calls `fn` with capture off in this thread. Binds like a function; has a `__dict__`."""

    fn: Callable[..., Any]
    __dict__: dict[str, Any]
    def __new__(cls, fn: Callable[..., Any]) -> disabled: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...

@final
class hidden:  # noqa: N801
    """Calls `fn` with capture off in this thread, and unseen by its trace and profile functions and by monitoring tools:
    what the compiler does by itself."""

    fn: Callable[..., Any]
    __dict__: dict[str, Any]
    def __new__(cls, fn: Callable[..., Any]) -> hidden: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...

def set_callback(callback: Callback | None, /) -> Callback | None:
    """Sets this thread's callback, installing the evaluator as a region does. Returns the previous one. For tests."""

def show_work(shown: bool, /) -> None:
    """Whether profilers are told of what the compiler does, to measure it."""

def suspend() -> Callback | None:
    """Turns capture off in this thread; returns what :func:`resume` wants."""

def resume(suspended: Callback | None, /) -> None: ...
def is_capturing() -> bool:
    """Whether this thread is in a region with capture on."""

def set_regions_off(off: bool, /) -> None:
    """Whether regions, of all threads, call what they wrap with capture off."""

def watch(mapping: dict[Any, Any], key: Any, changed: Callable[[Any], None], /) -> None:
    """Every call of a region compares `mapping.get(key)` with what it was, by identity, None being the first, and
    calls `changed` with it when it is another. There is one watch; `changed` may replace it."""

def set_exclude_other(switch: Callable[[Any], Any] | None, /) -> None:
    """`switch(None)` turns another compiler's evaluator off in this thread and returns its state, `switch(state)` puts
    it back. Regions call it when that evaluator is installed above ours."""

def add_entry(code: CodeType | FunctionType, entry: Entry, /) -> None:
    """Puts the entry in front of the code's entries. ValueError when it does not fit the code."""

def check_fits(code: CodeType | FunctionType, entry: Entry, /) -> None:
    """ValueError when the entry cannot serve frames of the code."""

def remove_entry(code: CodeType | FunctionType, entry: Entry, /) -> bool:
    """Whether it was there."""

def entries(code: CodeType | FunctionType, /) -> list[Entry]:
    """Most recently hit first."""

def clear(code: CodeType | FunctionType, /) -> None:
    """Forgets the code's entries."""

def clear_all() -> None:
    """Forgets every entry and every skip."""

def skip(code: CodeType | FunctionType, recursive: bool = False) -> None:
    """The code runs as it is from now on, without asking the callback; recursive: and so does all that it calls."""

def unskip(code: CodeType | FunctionType, /) -> None: ...
def is_skipped(code: CodeType | FunctionType, /) -> bool: ...
def stats() -> dict[str, int]:
    """hits; misses (entries, none applied); callbacks; rejected (the callback's entry did not fit the frame that
    asked); chunk_fallbacks (ran as it is for want of stack); active_regions."""

def reset_stats() -> None: ...
def is_installed() -> bool:
    """Whether our evaluator is the interpreter's current one."""

def init_tensor_layout(
    offsets: tuple[int, int, int, int, int, int],
    addresses: tuple[int, ...] | None,
    slow_check: Callable[[Any, Any], bool],
    slow_grad_mode: Callable[[], bool],
    /,
) -> None:
    """See tensor_layout.py. Without addresses tensor guards call `slow_check(tensor, spec)`."""

def exit_of(manager: Any, /) -> Callable[..., Any]:
    """The bound ``__exit__`` of a context manager, or the error that ``with`` raises. Only on Python 3.14."""

def type_name(kind: type, /) -> str:
    """The name that CPython's error messages use: of types made in C, often with their module."""

def tensor_facts(tensor: Any, /) -> tuple[int, int, int, int, tuple[int, ...], tuple[int, ...], int]:
    """(dtype, device type, device index, requires_grad, sizes, strides, key set) as guards read them. For an object
    that is a tensor; anything else is undefined behaviour."""
