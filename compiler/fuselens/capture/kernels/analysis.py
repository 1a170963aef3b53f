"""What a Triton kernel does to its arguments, read in its source: which it may write to.

Of each value it is known to which parameters its address may belong. Names have what any assignment gave them, wherever it stands,
so that loops and branches need no order. A store, an atomic update and whatever is not known write to what they are given.
Values that are loaded are numbers; what makes addresses of numbers is refused, since then anything may be written.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

Names = frozenset[str]
_NONE: Names = frozenset()
_DEPTH = 32  # of helpers that call helpers

_STORES = frozenset({
    "store", "descriptor_store", "store_tensor_descriptor", "_experimental_descriptor_store",
    "experimental_descriptor_store", "scatter", "descriptor_scatter", "_experimental_descriptor_scatter",
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor",
})  # fmt: skip
_NUMBERS = frozenset({
    "load", "descriptor_load", "load_tensor_descriptor", "_experimental_descriptor_load", "experimental_descriptor_load",
    "descriptor_gather", "_experimental_descriptor_gather", "program_id", "num_programs", "arange", "zeros", "full", "dot",
    "dot_scaled", "rand", "randn", "randint", "static_assert", "static_print", "device_print", "device_assert",
    "debug_barrier", "range", "static_range", "constexpr",
})  # fmt: skip
_ADDRESSES = frozenset({
    "make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor", "advance", "where", "broadcast",
    "broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "permute", "split", "join", "cat", "interleave", "flip",
    "multiple_of", "max_contiguous", "max_constancy", "assume", "cast", "to", "cdiv", "tensor", "tuple", "item",
})  # fmt: skip
_PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None), type(...), torch.dtype})
_ATTRIBUTES_OF_TYPES = frozenset({"element_ty", "shape", "numel", "primitive_bitwidth", "itemsize", "type"})


class Unreadable(Exception):
    """The source does not tell; the message says why."""


class NoDigest(Exception):
    """Something takes part that has no name which means the same in another process."""


def is_kernel(obj: Any) -> bool:
    """Whether an object is a function that ``triton.jit`` made, or Triton's interpreter has."""
    return any(c.__name__ in ("JITFunction", "InterpretedFunction") and _of_triton(c) for c in type(obj).__mro__)


def _of_triton(obj: Any) -> bool:
    module = getattr(obj, "__module__", None)
    return type(module) is str and (module == "triton" or module.startswith("triton."))


def source_of(kernel: Any) -> str:
    """The source as Triton compiles it, without decorators."""
    text = getattr(kernel, "src", None)
    if type(text) is str:
        return text
    try:
        text = textwrap.dedent(inspect.getsource(kernel.fn))
    except (OSError, TypeError) as error:
        raise Unreadable("its source cannot be found") from error
    return text[max(text.find("\ndef ") + 1, 0) :]


def place_of(kernel: Any) -> tuple[str, int]:
    """The file and the line where its ``def`` stands."""
    code = kernel.fn.__code__
    try:
        lines, first = inspect.getsourcelines(kernel.fn)
    except (OSError, TypeError):
        return code.co_filename, code.co_firstlineno
    return code.co_filename, first + next((k for k, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)


def _definition(kernel: Any) -> ast.FunctionDef:
    try:
        (found,) = ast.parse(source_of(kernel)).body
    except (SyntaxError, ValueError):
        found = None
    if not isinstance(found, ast.FunctionDef):
        raise Unreadable("its source is not that of one function")
    return found


def scope_of(kernel: Any) -> dict[str, Any]:
    """What names outside of the function are."""
    function = kernel.fn
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = dict(function.__globals__)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


@dataclasses.dataclass
class Facts:
    """``written``: parameters whose memory the kernel may write to. ``helpers``: by function and name, what kernels were found there."""

    written: set[str] = dataclasses.field(default_factory=set)
    helpers: dict[tuple[Any, str], Any] = dataclasses.field(default_factory=dict)


def facts_of(kernel: Any, tensors: Iterable[str], constants: Mapping[str, Any]) -> Facts:
    """Of a call with ``tensors`` for these parameters, and these ``constants`` for others. Raises Unreadable."""
    facts = Facts()
    _Reading(kernel, {name: frozenset((name,)) for name in tensors}, constants, facts, 0).read()
    return facts


_UNKNOWN: Any = object()


class _Reading:
    """One function, whose parameters have the addresses ``given``."""

    def __init__(
        self, kernel: Any, given: Mapping[str, Names], constants: Mapping[str, Any], facts: Facts, depth: int
    ) -> None:
        if depth > _DEPTH:
            raise Unreadable("its helpers call each other too deep")
        self.kernel, self.facts, self.depth = kernel, facts, depth
        self.definition = _definition(kernel)
        self.scope = scope_of(kernel)
        self.names: dict[str, Names] = dict(given)
        assigned = {
            n.id for n in ast.walk(self.definition) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        }
        parameters = self.parameters()
        self.local = assigned | set(parameters)
        self.constants = {k: v for k, v in constants.items() if k in parameters and k not in assigned}
        self.result: Names = _NONE

    def parameters(self) -> list[str]:
        arguments = self.definition.args
        return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    def read(self) -> Names:
        """The addresses that the function returns."""
        while True:
            before = dict(self.names), self.result, len(self.facts.written)
            self._block(self.definition.body)
            if (self.names, self.result, len(self.facts.written)) == before:
                return self.result

    # --- statements

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign):
            for target in s.targets:
                self._assign(target, s.value)
        elif isinstance(s, ast.AnnAssign):
            if s.value is not None:
                self._assign(s.target, s.value)
        elif isinstance(s, ast.AugAssign):
            self._bind(s.target, self.value(s.value))
        elif isinstance(s, ast.Return):
            self.result |= self.value(s.value)
        elif isinstance(s, ast.If):
            truth = self._truth(s.test)
            self.value(s.test)
            self._block(() if truth is False else s.body)
            self._block(() if truth is True else s.orelse)
        elif isinstance(s, (ast.For, ast.While, ast.With)):
            self._loop(s)
        elif isinstance(s, (ast.Expr, ast.Assert)):
            self.value(s.value if isinstance(s, ast.Expr) else s.test)
        elif not isinstance(s, (ast.Pass, ast.Break, ast.Continue)):
            raise Unreadable(f"a statement of the kind {type(s).__name__}")

    def _loop(self, s: ast.For | ast.While | ast.With) -> None:
        if isinstance(s, ast.For):
            self._bind(s.target, self.value(s.iter))
            self._block(s.orelse)
        elif isinstance(s, ast.While):
            self.value(s.test)
            self._block(s.orelse)
        else:
            for item in s.items:
                found = self.value(item.context_expr)
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, found)
        self._block(s.body)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, part in zip(target.elts, value.elts, strict=True):
                self._assign(each, part)
        else:
            self._bind(target, self.value(value))

    def _bind(self, target: ast.expr, found: Names) -> None:
        while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
            target = target.value
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._bind(each, found)
        elif isinstance(target, ast.Name):
            self.names[target.id] = self.names.get(target.id, _NONE) | found

    # --- expressions

    def value(self, e: ast.AST | None) -> Names:
        """The parameters to whose memory the value of an expression may lead."""
        if e is None or isinstance(e, (ast.Constant, ast.JoinedStr)):
            return _NONE
        if isinstance(e, ast.Name):
            return self.names.get(e.id, _NONE)
        if isinstance(e, ast.Call):
            return self._call(e)
        if isinstance(e, ast.Attribute):
            found = self.value(e.value)
            return _NONE if e.attr in _ATTRIBUTES_OF_TYPES else found
        if isinstance(e, ast.IfExp):
            truth = self._truth(e.test)
            parts = [e.body] if truth is True else [e.orelse] if truth is False else [e.body, e.orelse]
            self.value(e.test)
            return self._all(parts)
        if isinstance(e, ast.Lambda):
            raise Unreadable("a function inside of it")
        if isinstance(e, ast.NamedExpr):
            self._bind(e.target, self.value(e.value))
            return self.value(e.target)
        if isinstance(e, ast.comprehension):
            self._bind(e.target, self.value(e.iter))
            return self._all(e.ifs)
        if isinstance(e, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            self._all(e.generators)  # first: they bind names
        found = self._all(ast.iter_child_nodes(e))
        return _NONE if isinstance(e, ast.Compare) else found

    def _all(self, parts: Iterable[ast.AST]) -> Names:
        return _NONE.union(*[self.value(p) for p in parts])

    def _call(self, e: ast.Call) -> Names:
        given = [self.value(a.value if isinstance(a, ast.Starred) else a) for a in e.args]
        named = [(k.arg, self.value(k.value)) for k in e.keywords]
        function = self._object(e.func)
        receiver = self.value(e.func.value) if isinstance(e.func, ast.Attribute) else _NONE
        every = receiver.union(*given, *(v for _, v in named))
        name = e.func.attr if isinstance(e.func, ast.Attribute) else getattr(e.func, "id", "")
        if function is not _UNKNOWN and is_kernel(function) and not _of_triton(function.fn):
            return self._helper(e, function, given, named, every)
        # a method of a value
        ours = function is _UNKNOWN and isinstance(e.func, ast.Attribute) and self._object(e.func.value) is _UNKNOWN
        if ours or _of_triton(function) or _of_triton(type(function)):
            return self._builtin(e, name, receiver if ours else None, given, named, every)
        if function in (min, max, len, range, int, float, bool, abs, print, tuple, list, isinstance, zip, enumerate):
            return every
        self.facts.written |= every  # whatever it is
        return every

    def _builtin(
        self,
        e: ast.Call,
        name: str,
        receiver: Names | None,
        given: list[Names],
        named: list[tuple[Any, Names]],
        every: Names,
    ) -> Names:
        """What a function of Triton's, or a method of its values, does."""
        if name in _STORES:
            first = receiver if receiver is not None else given[0] if given else dict(named).get("pointer", every)
            self.facts.written |= first
            return _NONE
        if name in _NUMBERS:
            return _NONE
        if name in ("to", "cast"):
            source, *types_ = ([receiver] if receiver is not None else []) + [*given, *(v for _, v in named)]
            pointers = any(
                isinstance(n, (ast.Name, ast.Attribute))
                and "pointer_type" in (getattr(n, "id", ""), getattr(n, "attr", ""))
                for n in ast.walk(e)
            )
            if not source and (pointers or any(types_)):
                raise Unreadable("it makes addresses of numbers")
            return source
        if name not in _ADDRESSES and name not in ("min", "max"):
            self.facts.written |= every
        return every

    def _helper(
        self, e: ast.Call, function: Any, given: list[Names], named: list[tuple[Any, Names]], every: Names
    ) -> Names:
        """What another kernel does that is called as a function."""
        if any(isinstance(a, ast.Starred) for a in e.args) or any(k is None for k, _ in named):
            self.facts.written |= every
            return every
        names = list(function.arg_names)
        addresses = dict(zip(names, given, strict=False)) | dict(named)
        passed = dict(zip(names, e.args, strict=False)) | {k.arg: k.value for k in e.keywords}
        constants = {k: v for k, a in passed.items() if k and (v := self._known(a)) is not _UNKNOWN}
        return _Reading(function, addresses, constants, self.facts, self.depth + 1).read()

    # --- what is known while tracing

    def _object(self, e: ast.expr) -> Any:
        """The object outside of the function, or the constant, that an expression names."""
        if isinstance(e, ast.Name):
            if e.id in self.constants:
                return self.constants[e.id]
            if e.id in self.local:
                return _UNKNOWN
            found = self.scope.get(e.id, getattr(builtins, e.id, _UNKNOWN))
            if found is not _UNKNOWN and is_kernel(found):
                self.facts.helpers[self.kernel.fn, e.id] = found
            return found
        if isinstance(e, ast.Attribute):
            owner = self._object(e.value)
            if type(owner) is types.ModuleType:
                found = vars(owner).get(e.attr, _UNKNOWN)
                if found is not _UNKNOWN and is_kernel(found) and not _of_triton(found.fn):
                    self.facts.helpers[owner, e.attr] = found
                return found
        return _UNKNOWN

    def _known(self, e: ast.AST) -> Any:
        """The value of an expression of constants."""
        if isinstance(e, ast.Constant):
            return e.value
        if isinstance(e, ast.Name) and e.id in self.constants:
            return self.constants[e.id]
        return _UNKNOWN

    def _truth(self, e: ast.expr) -> bool | None:
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Not):
            inner = self._truth(e.operand)
            return None if inner is None else not inner
        if isinstance(e, ast.BoolOp):
            parts = [self._truth(v) for v in e.values]
            decisive = isinstance(e.op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        if (
            isinstance(e, ast.Compare)
            and len(e.ops) == 1
            and isinstance(e.left, ast.Name)
            and e.left.id not in self.constants
        ):
            # a tensor is no None
            none = isinstance(e.comparators[0], ast.Constant) and e.comparators[0].value is None
            if none and isinstance(e.ops[0], (ast.Is, ast.IsNot)) and self._is_tensor(e.left.id):
                return isinstance(e.ops[0], ast.IsNot)
            return None
        if isinstance(e, ast.Compare) and len(e.ops) == 1 and type(e.ops[0]) in _COMPARED:
            left, right = self._known(e.left), self._known(e.comparators[0])
            if type(left) in _PLAIN and type(right) in _PLAIN:
                return _COMPARED[type(e.ops[0])](left, right)
            return None
        known = self._known(e)
        return bool(known) if type(known) in _PLAIN else None

    def _is_tensor(self, name: str) -> bool:
        return self.depth == 0 and name in self.parameters() and name in self.names.get(name, _NONE)


_COMPARED: dict[type, Any] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
}  # fmt: skip


# --- digests ----------------------------------------------------------------------------------------------------------


def digest_of(*parts: Any) -> str:
    """A digest of kernels, constants and containers of them: their sources, and the globals that these read. Raises NoDigest."""
    return hashlib.sha256(repr([_described(p, []) for p in parts]).encode()).hexdigest()


def _described(obj: Any, within: list[Any]) -> Any:
    if type(obj) in _PLAIN:
        return type(obj).__name__, repr(obj)
    if type(obj) in (tuple, list):
        return type(obj).__name__, [_described(o, within) for o in obj]
    if type(obj) is dict:
        return "dict", [(_described(k, within), _described(v, within)) for k, v in obj.items()]
    if type(obj) is types.ModuleType:
        return "module", obj.__name__
    if is_kernel(obj):
        return _kernel(obj, within)
    if _of_triton(type(obj)) and type(obj).__name__ in ("dtype", "constexpr", "pointer_type"):
        value = getattr(obj, "value", None)
        return type(obj).__name__, repr(obj) if type(obj).__name__ != "constexpr" else _described(value, within)
    if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType)) and _of_library(obj):
        return "named", obj.__module__, obj.__qualname__
    if (
        type(obj) is types.FunctionType
        and not obj.__closure__
        and not obj.__globals__.keys() & {*obj.__code__.co_names}
    ):
        code = obj.__code__
        return (
            "function",
            code.co_code.hex(),
            [_described(c, within) for c in code.co_consts],
            code.co_varnames,
            code.co_names,
        )
    raise NoDigest(f"an object of {type(obj).__qualname__}")


def _of_library(obj: Any) -> bool:
    return _of_triton(obj) or (getattr(obj, "__module__", None) or "").partition(".")[0] in (
        "builtins",
        "math",
        "torch",
    )


def _kernel(kernel: Any, within: list[Any]) -> Any:
    if any(kernel is k for k in within):
        return "itself", len(within)
    if _of_triton(kernel.fn):
        return "named", kernel.fn.__module__, kernel.fn.__qualname__
    within = [*within, kernel]
    scope, text = scope_of(kernel), source_of(kernel)
    nodes = list(ast.walk(_definition(kernel)))
    names = sorted({n.id for n in nodes if isinstance(n, ast.Name)} & scope.keys())
    read = [(n, _described(scope[n], within)) for n in names]
    read += [_described_attribute(n, scope, within) for n in nodes if isinstance(n, ast.Attribute)]
    options = [getattr(kernel, n, None) for n in ("do_not_specialize", "noinline", "debug", "version")]
    defaults = list(kernel.fn.__defaults__ or ())
    return "kernel", text, read, repr(options), _described(defaults, within)


def _described_attribute(e: ast.Attribute, scope: Mapping[str, Any], within: list[Any]) -> Any:
    """What a module of the program has under the name."""
    path: list[str] = []
    owner: ast.expr = e
    while isinstance(owner, ast.Attribute):
        path.append(owner.attr)
        owner = owner.value
    found = scope.get(owner.id) if isinstance(owner, ast.Name) else None
    for name in reversed(path):
        if type(found) is not types.ModuleType or found.__name__.partition(".")[0] in ("triton", "torch", "math"):
            return None
        found = vars(found).get(name)
    return e.attr, _described(found, within)
