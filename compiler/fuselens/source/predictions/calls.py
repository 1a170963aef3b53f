"""What calls give, and which graph breaks they cause."""

from __future__ import annotations

import ast

from . import tables
from .scopes import Scope
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
    holds_tensors,
    item_of,
    join_all,
)

Arguments = tuple[Value, ...]
Keywords = dict[str, Value]
_LIBRARY_INSTANCES = {
    "logging.getLogger": "logging.Logger",
    "random.Random": "random.Random",
    "random.SystemRandom": "random.Random",
    "numpy.random.default_rng": "random.Random",
    "numpy.random.RandomState": "random.Random",
    "pathlib.Path": "pathlib.Path",
    "builtins.open": "io.TextIOWrapper",
}


class Calls(Scope):
    """Evaluates calls by what is called."""

    def run(self, function: Function, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        raise NotImplementedError

    def _on_call(self, node: ast.Call) -> Value:
        arguments: list[Value] = []
        for argument in node.args:
            value = self.evaluate(argument)
            if isinstance(argument, ast.Starred):
                known = value.elements if isinstance(value, Container) else None
                arguments += known if known is not None else [item_of(value)]
            else:
                arguments.append(value)
        keywords = {k.arg or "**": self.evaluate(k.value) for k in node.keywords}
        function = self.evaluate(node.func)
        return self.call(function, tuple(arguments), keywords, node)

    def call(self, function: Value, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        match function:
            case Imported(name=name):
                return self._imported(name, arguments, keywords, node)
            case Method(owner=owner, name=name):
                return self._method(owner, name, arguments, keywords, node)
            case Function():
                return self.run(function, arguments, keywords, node)
            case Class(node=cls):
                return self._made(cls, arguments, keywords)
            case Instance():
                return self._instance(function, arguments, keywords, node)
        return UNKNOWN

    # --- objects -------------------------------------------------------------------------------------------------------

    def _made(self, cls: ast.ClassDef, arguments: Arguments, keywords: Keywords) -> Value:
        instance = Instance(self.base(cls), cls)
        self.initialised(instance, arguments, keywords)
        return instance

    def _instance(self, instance: Instance, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        """A module's call, or an object's."""
        if instance.node is not None:
            name = "forward" if self.is_module(instance) else "__call__"
            found = self.module.method(instance.node, name)
            if found is not None:
                qualname = f"{found[1].name}.{name}"
                return self.run(Function(found[0], {}, instance, qualname), arguments, keywords, node)
        if instance.name in tables.SEQUENCE_MODULES:
            return Container(UNKNOWN, (TENSOR, UNKNOWN))
        if instance.name == "torch.nn.Sequential" and instance.contents:
            value = arguments[0] if arguments else UNKNOWN
            for module in instance.contents:
                value = self.call(module, (value,), {}, node)
            return value
        single = self.is_module(instance) and instance.name != "torch.nn.Module"
        return TENSOR if single and instance.node is None else UNKNOWN

    # --- methods -------------------------------------------------------------------------------------------------------

    def _method(self, owner: Value, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        match owner:
            case Tensor():
                return self._tensor_method(owner, name, arguments, keywords, node)
            case Array():
                self.found("FL104", node, what=f"ndarray.{name}", why="its arrays are not traced")
                return Array()
            case Instance():
                return self._instance_method(owner, name, arguments, node)
            case Container():
                return self._container_method(owner, name, arguments, keywords, node)
            case Constant(value=str()) if name == "format":
                if any(isinstance(v, Tensor) for v in (*arguments, *keywords.values())):
                    self.found("FL102", node)
                return PLAIN
            case Plain():
                return PLAIN
        return self._unknown_method(name, node)

    def _unknown_method(self, name: str, node: ast.expr) -> Value:
        """Names that only tensors have say what the owner is."""
        if name in ("item", "tolist") and isinstance(node, ast.Call) and not node.args and not node.keywords:
            self.found("FL102", node)
            return PLAIN
        if name == "nonzero":
            return self._data_dependent(name, node)
        return UNKNOWN

    def _tensor_method(
        self, owner: Tensor, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr
    ) -> Value:
        if name in tables.TO_PYTHON:
            self.found("FL102", node)
            return TENSORS_OF_NUMBERS if name == "tolist" else PLAIN
        if name == "backward":
            self.found("FL122", node)
            return PLAIN
        if name in tables.EAGER_METHODS:
            self.found("FL104", node, what=f"Tensor.{name}", why="it runs eagerly")
            return UNKNOWN
        if name == "numpy":
            return Array()
        if name in tables.PLAIN_METHODS or (name == "type" and not arguments):
            return PLAIN
        return self._tensor_result(owner, name, arguments, keywords, node)

    def _tensor_result(
        self, owner: Value, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr
    ) -> Value:
        """What the operation ``name`` gives for the tensor ``owner`` and further ``arguments``."""
        if name in tables.DATA_DEPENDENT or (
            name == "repeat_interleave" and arguments[:1] and isinstance(arguments[0], Tensor)
        ):
            return self._data_dependent(name, node, keywords)
        along = bool(arguments) or "dim" in keywords or "axis" in keywords
        if name in tables.PAIRS or (
            name in tables.PAIRS_ALONG and along and not isinstance(arguments[:1] and arguments[0], Tensor)
        ):
            return TENSORS
        single = isinstance(owner, Tensor) and owner.single and name in tables.POINTWISE
        if name in tables.REDUCTIONS and not along:
            single = True
        mask = name in tables.MASK_METHODS or name in ("any", "all")
        if name in ("to", "type", "view") or "dtype" in keywords:
            mask = mask or Imported("torch.bool") in (*arguments, *keywords.values())
        if isinstance(owner, Tensor) and owner.mask and name in tables.KEEPING:
            mask = True
        return Tensor(mask, single)

    def _data_dependent(self, name: str, node: ast.expr, keywords: Keywords | None = None) -> Value:
        self.found("FL108", node)
        as_tuple = (keywords or {}).get("as_tuple") == Constant(True)
        several = any(name.startswith("return_") and v == Constant(True) for name, v in (keywords or {}).items())
        return TENSORS if as_tuple or several else TENSOR

    def _instance_method(self, owner: Instance, name: str, arguments: Arguments, node: ast.expr) -> Value:
        match owner.name:
            case "logging.Logger" if name in tables.LOGGER_METHODS:
                self.found("FL103", node, what=self._callee(node))
                return PLAIN
            case "io.TextIOWrapper":
                streams = isinstance(node, ast.Call) and self.resolve(node.func).startswith("sys.")
                self.found("FL103" if streams else "FL118", node, what=self._callee(node))
                return PLAIN
            case "random.Random":
                self.found("FL115", node, what=self._callee(node))
                return PLAIN
            case "pathlib.Path" if name not in tables.PURE_PATH:
                self.found("FL118", node, what=self._callee(node))
                return PLAIN
            case "builtins.super":
                return UNKNOWN
        if owner.name.startswith("torch.nn."):
            if name == "register_buffer" and len(arguments) > 1 and isinstance(arguments[0], Constant):
                owner.attributes[str(arguments[0].value)] = arguments[1]
            if name in ("eval", "train", "to", "cuda", "cpu", "double", "float", "half", "requires_grad_"):
                return owner
            return self.tensors_of(owner, name) or UNKNOWN
        return UNKNOWN

    def _container_method(
        self, owner: Container, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr
    ) -> Value:
        if owner.mapping:
            if name == "items":
                return Container(Container(UNKNOWN, (PLAIN, owner.item)))
            return {"values": Container(owner.item), "keys": Container(PLAIN), "copy": owner}.get(name, UNKNOWN)
        if name == "sort":
            self._sorted(owner, keywords, node)
        if name in ("append", "add", "insert", "extend") and arguments and isinstance(node, ast.Call):
            self._grown(owner, arguments[-1], node, name == "extend")
            return PLAIN
        return owner.item if name == "pop" else owner if name == "copy" else UNKNOWN

    def _grown(self, owner: Container, value: Value, node: ast.Call, several: bool) -> None:
        """A list that something was appended to, where it has a name."""
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            value = item_of(value) if several else value
            item = value if owner.elements == () or owner.item == value else join_all((owner.item, value))
            self.variables[node.func.value.id] = Container(item)

    def _sorted(self, sequence: Value, keywords: Keywords, node: ast.expr) -> None:
        key = keywords.get("key")
        ordered = sequence if key is None else Container(self.call(key, (item_of(sequence),), {}, node))
        if holds_tensors(ordered) or isinstance(ordered, Tensor):
            self.found("FL102", node)

    # --- functions of other modules ------------------------------------------------------------------------------------

    def _imported(self, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        module, _, last = name.rpartition(".")
        if name in tables.KNOWN_TRUTH:
            return Constant(tables.KNOWN_TRUTH[name])
        if code := self._code(name, module, last):
            self.found(code, node, what=self._callee(node), why=_WHY.get(code, ""))
            made = name if name in tables.LOCKS else _LIBRARY_INSTANCES.get(name)
            return Instance(made) if made else UNKNOWN
        if module == "builtins":
            return self._builtin(last, arguments, keywords, node)
        if name.startswith("torch."):
            return self._torch(name, module, last, arguments, keywords, node)
        if name.startswith("numpy."):
            return self._numpy(last, arguments, node)
        if module == "math":
            if any(isinstance(a, Tensor) for a in arguments):
                self.found("FL102", node)
            return PLAIN
        if name in ("os.environ.get", "os.getenv"):
            return arguments[1] if len(arguments) > 1 else Constant(None)  # switches are off where files are checked
        if name == "copy.deepcopy":
            return arguments[0] if arguments else UNKNOWN
        if name == "copy.copy":
            if isinstance(arguments[:1] and arguments[0], Tensor):
                self.found("FL104", node, what="copy.copy", why="of a Tensor, which is copied in its own way")
            return arguments[0] if arguments else UNKNOWN
        if name == "functools.partial" and arguments:
            return arguments[0] if len(arguments) == 1 else UNKNOWN
        return UNKNOWN

    def _code(self, name: str, module: str, last: str) -> str:
        """The code of a callable that must run in plain Python."""
        if module == "os":
            return "FL118" if last in tables.FILE_SYSTEM else tables.CODES.get(name, "")
        if module == "os.path":
            return "FL118" if last in tables.FILE_TESTS else "FL104"
        if name in tables.LOCKS:
            return "FL104"
        if module == "pathlib" and last == "Path":
            return "FL118"
        return tables.CODES.get(name) or tables.MODULE_CODES.get(module, "") if last.isidentifier() else ""

    def _callee(self, node: ast.expr) -> str:
        return self.text(node.func) if isinstance(node, ast.Call) else self.text(node)

    def _torch(
        self, name: str, module: str, last: str, arguments: Arguments, keywords: Keywords, node: ast.expr
    ) -> Value:
        first = arguments[0] if arguments else UNKNOWN
        if name == "torch.is_tensor":
            return Constant(True) if isinstance(first, Tensor) else PLAIN
        if name == "torch.from_numpy":
            return TENSOR
        if name == "torch._check" and isinstance(first, Tensor):
            self.found("FL104", node, what="torch._check", why="it checks a tensor")
        if module == "torch.distributions":
            self.found("FL104", node, what=name, why="it looks at the class's annotations")
        if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.Tensor"):
            return TENSOR
        if module in ("torch.nn", "torch.nn.modules") and last[:1].isupper():
            held = arguments if last == "Sequential" else arguments[0] if last == "ModuleList" and arguments else ()
            items = (
                held
                if isinstance(held, tuple)
                else held.elements or (item_of(held),)
                if isinstance(held, Container)
                else ()
            )
            return Instance(f"torch.nn.{last}", contents=tuple(items))
        if module not in tables.TENSOR_MODULES or not last.islower() or last in tables.NO_TENSOR:
            return (
                PLAIN
                if module in ("torch", "torch.cuda", "torch.compiler") and last in tables.PLAIN_FUNCTIONS
                else UNKNOWN
            )
        if last in ("equal", "allclose", "is_nonzero"):
            self.found("FL102", node)
            return PLAIN
        if last == "where" and len(arguments) + len(keywords) == 1:
            self.found("FL108", node)
            return TENSORS
        if last == "one_hot" and len(arguments) == 1 and not keywords:
            self.found("FL102", node)
        for position in tables.DATA_AS_NUMBER.get(last, ()):
            if position < len(arguments) and isinstance(arguments[position], Tensor):
                self.found("FL102", node)
        return self._tensor_result(
            first, last, arguments[1:] if isinstance(first, Tensor) else (UNKNOWN,), keywords, node
        )

    def _numpy(self, last: str, arguments: Arguments, node: ast.expr) -> Value:
        if any(isinstance(a, Tensor) for a in arguments):
            code = "FL104" if last in tables.ARRAYS else "FL102"
            self.found(code, node, what=self._callee(node), why="it is implemented in C")
            return Array() if last in tables.ARRAYS else UNKNOWN
        if any(isinstance(a, Array) for a in arguments) or last in tables.ARRAYS:
            self.found("FL104", node, what=self._callee(node), why="its arrays are not traced")
            return UNKNOWN if last in tables.SEVERAL_ARRAYS else Array()
        return PLAIN if arguments and all(isinstance(a, Plain) for a in arguments) else UNKNOWN

    # --- builtins ------------------------------------------------------------------------------------------------------

    def _builtin(self, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        first = arguments[0] if arguments else UNKNOWN
        if name in tables.SCALAR_BUILTINS:
            if any(isinstance(a, Tensor) for a in arguments):
                self.found("FL102", node)
            return Container(PLAIN) if name == "range" else PLAIN
        match name:
            case "isinstance":
                whole = isinstance(first, Tensor) and arguments[1:] == (Imported("torch.Tensor"),)
                return Constant(True) if whole else PLAIN
            case "len" | "id" | "callable" | "hasattr" | "issubclass" | "ord":
                return PLAIN
            case "hash":
                if isinstance(first, Tensor):
                    self.found("FL104", node, what="hash", why="that of a Tensor differs from run to run")
                return PLAIN
            case "abs" | "pow":
                return first
            case "sum":
                return item_of(first) if isinstance(item_of(first), Tensor | Plain) else UNKNOWN
            case "max" | "min" | "any" | "all":
                return self._extreme(name, arguments, keywords, node)
            case "sorted":
                self._sorted(first, keywords, node)
                return Container(item_of(first))
            case "list" | "tuple" | "iter" | "set" | "frozenset":
                return Container(item_of(first)) if arguments else Container(UNKNOWN, ())
            case "dict":
                return Container(join_all(tuple(keywords.values())), mapping=True)
            case "reversed":
                if isinstance(first, Tensor):
                    self.found("FL104", node, what="reversed", why="of a tensor")
                return Container(item_of(first))
            case "next":
                return item_of(first)
            case "enumerate":
                return Container(Container(UNKNOWN, (PLAIN, item_of(first))))
            case "zip":
                return Container(Container(UNKNOWN, tuple(item_of(a) for a in arguments)))
            case "map" if len(arguments) > 1:
                return Container(self.call(first, tuple(item_of(a) for a in arguments[1:]), {}, node))
            case "filter" if len(arguments) == 2:
                if isinstance(self.call(first, (item_of(arguments[1]),), {}, node), Tensor):
                    self.found("FL101", node)
                return Container(item_of(arguments[1]))
            case "type":
                if len(arguments) == 3:
                    self.found("FL104", node, what="type", why="classes are created eagerly")
                return UNKNOWN
            case "super":
                return Instance("builtins.super")
        return UNKNOWN

    def _extreme(self, name: str, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        """``max``, ``min``, ``any`` and ``all`` compare, or ask each element."""
        compared = (
            Container(join_all(arguments), arguments) if len(arguments) > 1 else arguments[0] if arguments else UNKNOWN
        )
        if (key := keywords.get("key")) is not None:
            compared = Container(self.call(key, (item_of(compared),), {}, node))
        if holds_tensors(compared) or isinstance(compared, Tensor):
            self.found("FL102", node)
        return PLAIN if name in ("any", "all") or item_of(compared) == PLAIN else item_of(compared)


TENSORS_OF_NUMBERS = Container(PLAIN)
_WHY = {"FL104": "it is implemented in C", "FL110": "it changes a setting"}
