"""The state of a prediction: variables, the module around them, and what was found."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator

from ...record import diagnostics
from ...record.report import Diagnostic, Frame, Span
from ..discovery import Annotated, SourceModule
from . import tables
from .annotations import annotated_value
from .operators import Outcome
from .values import (
    PLAIN,
    TENSOR,
    TENSORS,
    UNKNOWN,
    Array,
    Class,
    Constant,
    Container,
    Function,
    Imported,
    Instance,
    Method,
    Plain,
    Tensor,
    Value,
    item_of,
)

_BUILTINS = frozenset(
    "abs all any bin bool bytes callable chr classmethod complex delattr dict dir divmod enumerate eval exec filter float "
    "format frozenset getattr globals hasattr hash hex id input int isinstance issubclass iter len list locals map max min "
    "next object oct open ord pow print property range repr reversed round set setattr slice sorted staticmethod str sum super "
    "tuple type vars zip breakpoint __import__".split()
)
_FLAGS = {"TYPE_CHECKING": False, "__debug__": True, "__name__": None, "__file__": None}


class Scope:
    """One function being looked at; helpers that it calls are looked at in the same one, one after the other."""

    def __init__(self, module: SourceModule) -> None:
        self.module = module
        self.variables: dict[str, Value] = {}
        self.findings: dict[tuple[str, Span], Diagnostic] = {}
        self.frames: tuple[Frame, ...] = ()  # of the calls that lead here
        self.qualname = ""
        self.quiet = 0  # within what is unlikely to run: findings are not kept
        self.uncertain = 0  # within what may run any number of times
        self.steps = 0
        self.handled = 0  # within how many bodies of `try`
        self.branches = 0  # conditions on tensors so far
        self.kept_scalars = self.kept_shapes = False  # options under which such values stay in the graph
        self._globals: dict[str, Value] = {}
        self._attributes: dict[ast.ClassDef, dict[str, Value]] = {}

    def begin(self, annotated: Annotated) -> None:
        """Turns to another annotated function of the module. What the one before made of the module's objects is forgotten:
        what is found does not depend on which functions were looked at before."""
        options = annotated.arguments.get("options") or {}
        whole = bool(annotated.arguments.get("fullgraph"))
        self.kept_scalars = whole or bool(options.get("capture_scalar_outputs"))
        self.kept_shapes = whole or bool(options.get("capture_dynamic_output_shape_ops"))
        self.qualname = annotated.qualname
        self.variables, self.findings, self.frames, self.quiet, self.steps = {}, {}, (), 0, 0
        self.uncertain = 0
        self._globals, self._attributes = {}, {}

    def evaluate(self, node: ast.expr | None) -> Value:
        raise NotImplementedError

    def call(self, function: Value, arguments: tuple[Value, ...], keywords: dict[str, Value], node: ast.expr) -> Value:
        raise NotImplementedError

    def initialised(self, instance: Instance, arguments: tuple[Value, ...], keywords: dict[str, Value]) -> None:
        raise NotImplementedError

    # --- findings ------------------------------------------------------------------------------------------------------

    def found(self, code: str, node: ast.expr | ast.stmt, **fields: str) -> None:
        """A break that compiling is likely to report at ``node``."""
        if code == "FL101":
            self.branches += 1
        if self.quiet or (code == "FL102" and self.kept_scalars) or (code == "FL108" and self.kept_shapes):
            return
        span = self.module.place(node)
        if (code, span) not in self.findings:
            stack = (*self.frames, Frame(self.qualname, span)) if self.frames else ()
            fields.setdefault("what", self.text(node))
            self.findings[code, span] = diagnostics.predict(code, span, stack=stack, **fields)

    def reported(self, outcome: Outcome, node: ast.expr | ast.stmt) -> Value:
        """The value of an outcome, whose break is found at ``node``."""
        if outcome.code:
            self.found(outcome.code, node, what=outcome.what or self.text(node), why=outcome.why)
        return outcome.value

    def frame(self, node: ast.expr) -> Frame:
        return Frame(self.qualname, self.module.place(node))

    @contextlib.contextmanager
    def unreported(self) -> Iterator[None]:
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The source of ``node``, its first line."""
        line = self.module.lines[node.lineno - 1]
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        return line[node.col_offset : end].decode("utf-8", "replace").rstrip()

    # --- names ---------------------------------------------------------------------------------------------------------

    def look_up(self, name: str) -> Value:
        if name in self.variables:
            return self.variables[name]
        if name not in self._globals:
            self._globals[name] = UNKNOWN  # while its value is being found
            self._globals[name] = self._global(name)
        return self._globals[name]

    def _global(self, name: str) -> Value:
        module = self.module
        if name in module.definitions:
            return Function(module.definitions[name], {}, qualname=name)
        if name in module.classes:
            return Class(module.classes[name])
        assigned = module.values.get(name, ())
        if len(assigned) == 1 and name not in module.rebound:
            inside, self.variables = self.variables, {}
            with self.unreported():
                value = self.evaluate(assigned[0])
            self.variables = inside
            return value
        if name in module.names:
            return self._of_import(module.names[name])
        if name in tables.LOGGER_NAMES:
            return Instance("logging.Logger")
        if name in _FLAGS:
            return PLAIN if _FLAGS[name] is None else Constant(_FLAGS[name])
        return Imported(f"builtins.{name}") if name in _BUILTINS and not assigned else UNKNOWN

    def resolve(self, node: ast.expr) -> str:
        """The dotted name of an annotation, a decorator or a callee; "" when it is none."""
        match node:
            case ast.Attribute(value=owner, attr=name):
                before = self.resolve(owner)
                return f"{before}.{name}" if before else ""
            case ast.Name(id=name):
                if name in self.module.names:
                    return self.module.names[name]
                return f"builtins.{name}" if name in _BUILTINS else ""
        return ""

    def promised(self, annotation: ast.expr | None) -> Value:
        """What an annotation promises, also by way of a name for it."""
        if isinstance(annotation, ast.Name):
            assigned = self.module.values.get(annotation.id, ())
            if len(assigned) == 1:
                return annotated_value(assigned[0], self.resolve)
            if annotation.id in self.module.classes:
                return self.instance(self.module.classes[annotation.id])
        return annotated_value(annotation, self.resolve)

    # --- classes of this file ------------------------------------------------------------------------------------------

    def instance(self, cls: ast.ClassDef) -> Instance:
        """An instance that somebody made, with the attributes that its class gives it."""
        if cls not in self._attributes:
            self._attributes[cls] = {}
            made = Instance(self.base(cls), cls, self._attributes[cls])
            self.initialised(made, (), {})
        return Instance(self.base(cls), cls, dict(self._attributes[cls]))

    def base(self, cls: ast.ClassDef) -> str:
        """The library class that ``cls`` derives from; "" when there is none, or more than one."""
        found = ""
        for base in cls.bases:
            name = self.resolve(base)
            if isinstance(base, ast.Name) and base.id in self.module.classes and base.id != cls.name:
                name = self.base(self.module.classes[base.id])
            found = found or name
        return found

    def is_module(self, instance: Instance) -> bool:
        """Whether calling ``instance`` calls its ``forward``."""
        return instance.name.startswith("torch.nn.")

    # --- attributes ----------------------------------------------------------------------------------------------------

    def attribute(self, owner: Value, name: str, node: ast.expr) -> Value:
        match owner:
            case Tensor():
                return self._of_tensor(owner, name)
            case Imported(name=module):
                return self._of_import(f"{module}.{name}")
            case Instance():
                return self._of_instance(owner, name, node)
            case Class(node=cls):
                found = self.module.method(cls, name)
                return Function(found[0], {}, qualname=f"{cls.name}.{name}") if found else UNKNOWN
            case Array():
                if name in ("shape", "ndim", "dtype", "size", "nbytes"):
                    return PLAIN
                if name in ("T", "real", "imag"):
                    return owner
                return Method(owner, name)
            case Container(elements=elements) if elements is None and name in (
                "values",
                "indices",
                "sign",
                "logabsdet",
            ):
                return owner.item if not owner.mapping else Method(owner, name)
            case Container() | Plain():
                return Method(owner, name)
        return Method(UNKNOWN, name)

    def _of_tensor(self, owner: Tensor, name: str) -> Value:
        if name in tables.PLAIN_ATTRIBUTES:
            return PLAIN
        if name in tables.TENSOR_ATTRIBUTES:
            return owner
        return UNKNOWN if name in ("grad", "grad_fn") else Method(owner, name)

    def _of_import(self, name: str) -> Value:
        if name in (
            "math.pi",
            "math.inf",
            "math.e",
            "math.nan",
            "numpy.pi",
            "numpy.inf",
            "numpy.nan",
            "os.sep",
            "sys.version",
        ):
            return PLAIN
        if name in ("sys.stdout", "sys.stderr"):
            return Instance("io.TextIOWrapper")
        return Constant(False) if name == "typing.TYPE_CHECKING" else Imported(name)

    def _of_instance(self, owner: Instance, name: str, node: ast.expr) -> Value:
        if name in owner.attributes:
            return owner.attributes[name]
        found = self.module.method(owner.node, name) if owner.node is not None else None
        if found is not None and owner.node is not None:
            function, cls = found
            decorators = {self.resolve(d) for d in function.decorator_list}
            bound = None if "builtins.staticmethod" in decorators else owner
            method = Function(function, {}, bound, f"{cls.name}.{name}")
            if decorators & {"builtins.property", "functools.cached_property"}:
                return self.call(method, (), {}, node)
            return method
        if self.is_module(owner):
            if name == "training":
                return PLAIN
            if name in ("weight", "running_mean", "running_var") and owner.node is None:
                return TENSOR
        return Method(owner, name)

    def tensors_of(self, module: Instance, method: str) -> Value | None:
        """What the methods of modules that list parameters and modules give."""
        if method in ("parameters", "buffers"):
            return TENSORS
        if method in ("named_parameters", "named_buffers"):
            return Container(Container(UNKNOWN, (PLAIN, TENSOR)))
        if method in ("children", "modules", "values"):
            return Container(item_of(module))
        return None
