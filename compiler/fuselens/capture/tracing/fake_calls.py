"""Torch calls on fake tensors: they have dtypes, shapes and strides, and no data.

:func:`run` makes such a call, and refuses what eager refuses and fake tensors let pass. What it cannot do raises
:class:`Break`: the program then makes the call itself, on real tensors. :func:`mutates` says which calls may write.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ... import torch_private
from ...ir.recurrent import FUNCTIONS
from ..breaks import Break

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
Arguments = tuple[Any, ...]
Options = dict[str, Any]

# whose C++ form takes sizes as plain numbers, and so fixes symbolic ones
_FIX_SIZES = {torch.nn.functional.pad, torch.constant_pad_nd}
_RECURRENT = frozenset(FUNCTIONS.values())
_MATMULS: set[Any] = set()  # in torch before 2.13
if torch_private.MATMUL_FIXES_SIZES:
    _MATMULS |= {operator.matmul, operator.imatmul, torch.matmul}
    _MATMULS |= {"matmul", "__matmul__", "__rmatmul__", "__imatmul__"}


def fakes_of(arguments: Any) -> Any:
    """Arguments of a node with fakes for the nodes in them."""
    return map_aggregate(arguments, lambda n: n.meta["val"] if isinstance(n, fx.Node) else n)


# --- running ----------------------------------------------------------------------------------------------------


def run(fake_mode: Any, kind: str, target: Any, args: Arguments, kwargs: Options, what: str) -> Any:
    """The result of a call on fake tensors; ``kind`` is fx's opcode, ``what`` names the call to the user."""
    function = getattr(args[0], target) if kind == "call_method" else target
    rest = args[1:] if kind == "call_method" else args
    fixes_sizes = target in _FIX_SIZES or (target in _MATMULS and any(map(_is_symbolic, args)))
    try:
        with fake_mode, torch_private.quietly():
            for refuses, code, why in _REFUSALS:
                if refuses(target, args, kwargs):
                    raise Break(code, what=what, why=why)
            if target in _CELLS and (key := _cell(target, args)) is not None:
                return _of_cell(fake_mode, key, target, args)
            if target in _DROPOUTS and (kept := _undropped(target, args, kwargs)) is not None:
                return kept
            with torch_private.asking_nested(args):
                return _ran(function, rest, kwargs, fixes_sizes)
    except Break:
        raise
    except Exception as error:  # noqa: BLE001 - an operator may raise anything; eager raises it again
        raise _break_of(error, what) from None


_DROPOUTS = {
    torch.nn.functional.dropout: ("input", "p", "training", "inplace"), torch.dropout: ("input", "p", "train"),
}  # fmt: skip


def _undropped(target: Any, args: Arguments, kwargs: Options) -> Any:
    """The input of a dropout that gives this very tensor, which fake tensors copy in inference mode; None for others."""
    if not torch.is_inference_mode_enabled():
        return None
    given = kwargs | dict(zip(_DROPOUTS[target], args, strict=False))
    trains, p = given.get("training", given.get("train", True)), given.get("p", 0.5)
    keeps = trains is False or (type(p) in (int, float) and p == 0)
    return given.get("input") if keeps and isinstance(given.get("input"), torch.Tensor) else None


# One is twenty operators, and loops call it hundreds of times with tensors of the same sizes.
_CELLS = {torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell}
_of_modes: weakref.WeakKeyDictionary[Any, dict[Any, tuple[bool, list[Any]]]] = weakref.WeakKeyDictionary()


def _cell(target: Any, args: Arguments) -> Any:
    """What the layout of a cell's results depends on; None where that is more than this knows."""
    if torch_private.autocast_active():
        return None
    found: list[Any] = [target, torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    for given in (a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else (arg,))):
        if given is None:
            found.append(None)
        elif type(given) is torch_private.FakeTensor and not _is_symbolic(given):
            found.append(
                (given.dtype, given.device, given.shape, given.stride(), given.requires_grad, given.is_inference())
            )
        else:
            return None
    return tuple(found)


def _of_cell(fake_mode: Any, key: Any, target: Any, args: Arguments) -> Any:
    known = _of_modes.setdefault(fake_mode, {})
    if key in known:
        several, results = known[key]
        made = [torch_private.fake_of_layout(fake_mode, t, t.shape, t.stride()) for t in results]
        return tuple(made) if several else made[0]
    result = _ran(target, args, {}, False)
    several = isinstance(result, tuple)
    results = list(result) if several else [result]
    known[key] = several, [torch_private.fake_of_layout(fake_mode, t, t.shape, t.stride()) for t in results]
    return result


def _ran(function: Callable[..., Any], args: Arguments, kwargs: Options, fixes_sizes: bool) -> Any:
    """By the rules in C++, and by those in Python where C++ would fix symbolic sizes or has no rule."""
    if not fixes_sizes:
        try:
            return function(*args, **kwargs)
        except RuntimeError as e:
            if not torch_private.needs_python_rules(e):
                raise
    with torch_private.python_rules():
        return function(*args, **kwargs)


def _break_of(error: Exception, what: str) -> Break:
    """Why fake execution could not go on."""
    if isinstance(error, torch_private.FAKE_DATA_ERRORS):
        return Break("FL102", what=what)
    if isinstance(error, torch_private.FAKE_SHAPE_ERRORS):
        return Break("FL108", what=what)
    if isinstance(error, torch_private.FAKE_OPERATOR_ERRORS):
        return Break("FL123", what=what, why=_first_line(error))
    if torch_private.needs_data(error) or "its data is not allocated" in str(error):
        return Break("FL102", what=what)
    if "no fake impl" in str(error):
        return Break("FL123", what=what, why="it is a custom operator without a fake implementation")
    return Break("FL107", what=what, why=f"{type(error).__name__}: {_first_line(error)}")


def run_with_out(fake_mode: Any, kind: str, target: Any, args: Arguments, kwargs: Options, what: str) -> Any:
    """Runs a callable with ``out=`` on fake tensors, which convert and resize less or more than some operators do."""
    plain = run(fake_mode, kind, target, args, {k: v for k, v in kwargs.items() if k != "out"}, what)
    result = run(fake_mode, kind, target, args, kwargs, what)
    found, made = (list(r) if isinstance(r, (tuple, list)) else [r] for r in (result, plain))
    for f, m in zip(found, made, strict=False):
        if isinstance(f, torch.Tensor) and isinstance(m, torch.Tensor) and (f.dtype, f.shape) != (m.dtype, m.shape):
            raise Break("FL107", what=what, why="`out` has not the dtype or the shape of the result")
    return result


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    return first if first.count("(") >= first.count(")") else first.removesuffix(")")  # torch's own slip


# --- what eager refuses -----------------------------------------------------------------------------------------


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _mask_misfits(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether a selection by a mask is known to fail. It is not looked at on fake tensors, which have no data."""
    if target not in (operator.getitem, operator.setitem):
        return False
    tensor, mask = args[:2]
    if not (isinstance(tensor, torch.Tensor) and isinstance(mask, torch.Tensor) and mask.dtype is torch.bool):
        return False
    return mask.ndim > tensor.ndim or any(a != b for a, b in zip(tensor.shape, mask.shape, strict=False))


_SUBTRACTIONS = {
    name for short in ("sub", "rsub", "subtract") for name in (short, f"{short}_", f"__{short}__", f"__i{short}__", f"i{short}")
}  # fmt: skip


def _subtracts_booleans(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether eager refuses a subtraction that fake tensors do not."""
    if _name(target) not in _SUBTRACTIONS:
        return False
    operands = (*args[:2], kwargs.get("other"), kwargs.get("input"))
    return any(type(v) is bool or (isinstance(v, torch.Tensor) and v.dtype is torch.bool) for v in operands)


_OF_ONE_DTYPE = frozenset({
    "matmul", "__matmul__", "__rmatmul__", "__imatmul__", "imatmul", "mm", "mv", "addmm", "addmv", "linear", "index_add", "index_add_",
    "index_copy", "index_copy_", "put", "put_",
})  # fmt: skip


def _mixes_dtypes(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether operands have several dtypes where eager's kernel takes one; autocast gives them one."""
    if _name(target) not in _OF_ONE_DTYPE:
        return False
    operands = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    if _name(target).startswith(("index", "put")):  # positions are of another one
        operands = [*operands[:1], *operands[-1:]]
    several = len({t.dtype for t in operands}) > 1
    return several and not torch.is_autocast_enabled(operands[0].device.type)


def _puts_other_dtype(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether values are put to places that tensors say, and have another dtype. One value where a mask is true may have."""
    named = _name(target).partition(".")[0] in ("index_put", "index_put_")
    if not (target is operator.setitem or _name(target) == "__setitem__" or named) or len(args) < 3:
        return False
    tensor, index, value = args[:3]
    if not (isinstance(tensor, torch.Tensor) and isinstance(value, torch.Tensor)) or tensor.dtype == value.dtype:
        return False
    indices = index if isinstance(index, (tuple, list)) and (named or isinstance(index, tuple)) else (index,)
    places = [i for i in indices if isinstance(i, list) or (isinstance(i, torch.Tensor) and i.dim())]
    masks = [i for i in places if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)]
    return bool(places) and not (len(masks) == len(places) == 1 and value.numel() == 1)


_DIVISIONS = frozenset({
    "remainder", "remainder_", "fmod", "fmod_", "floor_divide", "floor_divide_", "mod", "imod", "floordiv", "ifloordiv", "__mod__",
    "__imod__", "__floordiv__", "__ifloordiv__",
})  # fmt: skip


def _divides_by_zero(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether integers are divided by a zero that is known: eager raises, also where nobody reads the result."""
    if _name(target) not in _DIVISIONS or len(args) < 2 or type(args[1]) not in (int, bool) or args[1]:
        return False
    given = args[0]
    whole = isinstance(given, torch.Tensor) and not (given.is_floating_point() or given.is_complex())
    return whole and all(type(n) is not int or n > 0 for n in given.shape)


def _chooses_from_nothing(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether an element is chosen along a dimension that has none."""
    name, given = _name(target), args[0] if args else kwargs.get("input")
    if name not in ("max", "min", "median", "nanmedian", "mode") or not isinstance(given, torch.Tensor):
        return False
    sizes = given.shape
    dim = kwargs.get("dim", args[1] if len(args) > 1 else -1 if name == "mode" else None)
    if dim is None:
        return name in ("max", "min") and any(type(n) is int and n == 0 for n in sizes)
    known = type(dim) is int and -len(sizes) <= dim < len(sizes)
    return known and type(sizes[dim]) is int and sizes[dim] == 0


def _reads_lengths(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Recurrent nets of packed sequences read how many there are at each step, in C++, from memory that fake tensors do not have."""
    return target in _RECURRENT and len(args) > 3 and isinstance(args[3], (tuple, list))


def _joins_other_halves(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether parts of a tensor are put together by ``roll``, in another half precision than that of autocast on a CPU."""
    if target not in (torch.roll, "roll") or not torch.is_autocast_enabled("cpu"):
        return False
    x = args[0] if args else kwargs.get("input")
    halves = {torch.float16, torch.bfloat16} - {torch.get_autocast_dtype("cpu")}
    return isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.dtype in halves


def _selects_beyond(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether ``select`` asks for an element that a dimension does not have."""
    if target not in (torch.select, "select"):
        return False
    given = kwargs | dict(zip(("input", "dim", "index"), args, strict=False))
    x, dim, index = (given.get(name) for name in ("input", "dim", "index"))
    if (
        not isinstance(x, torch.Tensor)
        or type(dim) is not int
        or type(index) is not int
        or not -x.dim() <= dim < x.dim()
    ):
        return False
    size = x.shape[dim]
    return type(size) is int and not -size <= index < size


_ADDING_UP = {torch.trace, torch.mvlgamma, torch.special.multigammaln, "trace", "mvlgamma", "mvlgamma_"}


def _adds_up_under_autocast(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether a kernel for a GPU calls a sum, which autocast makes one in float32, and the result with it."""
    if target not in _ADDING_UP or not torch.is_autocast_enabled("cuda"):
        return False
    x = args[0] if args else kwargs.get("input")
    return isinstance(x, torch.Tensor) and x.device.type == "cuda" and x.dtype in (torch.float16, torch.bfloat16)


_REFUSALS: tuple[tuple[Callable[[Any, Arguments, Options], bool], str, str], ...] = (
    (_mask_misfits, "FL107", "the mask does not have the shape of what it selects from"),
    (_subtracts_booleans, "FL107", "booleans are not subtracted"),
    (_chooses_from_nothing, "FL107", "there are no elements to choose from"),
    (_mixes_dtypes, "FL107", "its operands have different dtypes"),
    (_selects_beyond, "FL107", "there is no such element"),
    (_divides_by_zero, "FL107", "integers are divided by zero"),
    (_puts_other_dtype, "FL107", "the values do not have the dtype of what they are put into"),
    (_joins_other_halves, "FL107", "autocast joins no parts of this dtype"),
    (_adds_up_under_autocast, "FL107", "eager adds up in float32 inside of it under autocast"),
    (_reads_lengths, "FL102", "it reads how many sequences there are at each step"),
)


def leaves_memory(target: Any, args: Arguments, kwargs: Options) -> bool:
    """Whether a view by strides reaches beyond its operand's memory, which fake tensors do not check."""
    if _name(target).partition(".")[0] not in ("as_strided", "as_strided_", "as_strided_copy"):
        return False
    given = {**dict(zip(("input", "size", "stride", "storage_offset"), args, strict=False)), **kwargs}
    x, size, stride, offset = (given.get(n) for n in ("input", "size", "stride", "storage_offset"))
    if not isinstance(x, torch.Tensor) or not isinstance(size, (tuple, list)) or not isinstance(stride, (tuple, list)):
        return True
    if any(n == 0 for n in size):
        return False
    last = x.storage_offset() if offset is None else offset
    last += sum((n - 1) * s for n, s in zip(size, stride, strict=False))
    return bool((last + 1) * x.element_size() > x.untyped_storage().nbytes())


def overlap_in_part(operands: Arguments) -> bool:
    """Whether another operand shares some memory, not all of it, with the first: most operators refuse to write then.

    Only for contiguous ones of known sizes: the others' elements may lie between each other.
    """
    written, *others = operands
    if not isinstance(written, torch.Tensor):
        return False
    tensors = (other for other in others if isinstance(other, torch.Tensor) and other is not written)
    return any(_shares_part(written, other) for other in tensors)


def _shares_part(written: torch.Tensor, other: torch.Tensor) -> bool:
    both = written, other
    if not all(_is_laid_out(t) for t in both):
        return False
    if not (written.numel() and other.numel() and written.is_contiguous() and other.is_contiguous()):
        return False
    if torch_private.storage_key(written) != torch_private.storage_key(other):
        return False
    starts = [t.storage_offset() * t.element_size() for t in both]
    ends = [start + t.numel() * t.element_size() for start, t in zip(starts, both, strict=True)]
    same = starts[0] == starts[1] and ends[0] == ends[1] and written.stride() == other.stride()
    return max(starts) < min(ends) and not same


def _is_laid_out(tensor: torch.Tensor) -> bool:
    """Whether it is known where in its memory the elements are."""
    if tensor.layout is not torch.strided:
        return False
    return all(type(n) is int for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


# --- writes -----------------------------------------------------------------------------------------------------


_RESHAPING = {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"}


def reshapes(kind: str, target: Any) -> bool:
    """Whether the method makes a tensor a view of itself in place: compiled graphs do so as well."""
    return kind == "call_method" and target in _RESHAPING


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What in-place operations may change of a tensor besides its data."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return (*tensor.shape, *strides, tensor.storage_offset())


def holds_tensor(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, *NUMBERS)):
        return True
    return isinstance(value, (tuple, list)) and any(holds_tensor(v) for v in value)
