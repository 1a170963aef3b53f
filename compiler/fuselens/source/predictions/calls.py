"""What calls give, by what is called: functions and classes of the file, objects, methods.

Functions of other modules have rules of their own (:mod:`.library_calls`, :mod:`.torch_calls`, :mod:`.builtin_calls`).
"""

from __future__ import annotations

import ast

from . import library_calls, tables, torch_calls
from .invocation import Arguments, Invocation, Keywords
from .scopes import Scope
from .values import (
    PLAIN,
    TENSOR,
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
    join_all,
)

_KEEPS_MODULE = frozenset({"eval", "train", "to", "cuda", "cpu", "double", "float", "half", "requires_grad_"})


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
                return library_calls.called(name, Invocation(self, arguments, keywords, node))
            case Method(owner=owner, name=name):
                return self._method(owner, name, Invocation(self, arguments, keywords, node))
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

    def _method(self, owner: Value, name: str, call: Invocation) -> Value:
        match owner:
            case Tensor():
                return torch_calls.method(owner, name, call)
            case Array():
                if name in ("item", "tolist"):
                    call.found("FL102")
                    return PLAIN
                return Array()
            case Instance():
                return self._instance_method(owner, name, call)
            case Container():
                return self._container_method(owner, name, call)
            case Constant(value=str()) if name == "format":
                if call.takes_tensor or any(isinstance(v, Tensor) for v in call.keywords.values()):
                    call.found("FL102")
                return PLAIN
            case Plain():
                return PLAIN
        return self._unknown_method(name, call)

    def _unknown_method(self, name: str, call: Invocation) -> Value:
        """Names that only tensors have say what the owner is."""
        node = call.node
        if name in ("item", "tolist") and isinstance(node, ast.Call) and not node.args and not node.keywords:
            call.found("FL102")
            return PLAIN
        return torch_calls.data_dependent(call) if name == "nonzero" else UNKNOWN

    def _instance_method(self, owner: Instance, name: str, call: Invocation) -> Value:
        if owner.name.startswith("torch.nn."):
            return self._module_method(owner, name, call.arguments)
        if owner.name == "logging.Logger" and name in tables.LOGGED_LATER and not call.keywords:
            if all(isinstance(v, (Constant, Plain)) for v in call.arguments):
                return PLAIN
        code = self._code_of_object(owner, name, call.node)
        if not code:
            return UNKNOWN
        call.found(code, what=call.callee)
        return PLAIN

    def _code_of_object(self, owner: Instance, name: str, node: ast.expr) -> str:
        """The code of a method of a library's object that must run in plain Python; else empty."""
        match owner.name:
            case "logging.Logger" if name in tables.LOGGER_METHODS:
                return "FL103"
            case "io.TextIOWrapper":
                streams = isinstance(node, ast.Call) and self.resolve(node.func).startswith("sys.")
                return "FL103" if streams else "FL118"
            case "random.Random":
                return "FL115"
            case "pathlib.Path" if name not in tables.PURE_PATH:
                return "FL118"
        return ""

    def _module_method(self, owner: Instance, name: str, arguments: Arguments) -> Value:
        if name == "register_buffer" and len(arguments) > 1 and isinstance(arguments[0], Constant):
            owner.attributes[str(arguments[0].value)] = arguments[1]
        if name in _KEEPS_MODULE:
            return owner
        return self.tensors_of(owner, name) or UNKNOWN

    def _container_method(self, owner: Container, name: str, call: Invocation) -> Value:
        if owner.mapping:
            if name == "items":
                return Container(Container(UNKNOWN, (PLAIN, owner.item)))
            return {"values": Container(owner.item), "keys": Container(PLAIN), "copy": owner}.get(name, UNKNOWN)
        if name == "sort":
            call.compares(owner)
        if name in ("append", "add", "insert", "extend") and call.arguments and isinstance(call.node, ast.Call):
            self._grown(owner, call.arguments[-1], call.node, name == "extend")
            return PLAIN
        return owner.item if name == "pop" else owner if name == "copy" else UNKNOWN

    def _grown(self, owner: Container, value: Value, node: ast.Call, several: bool) -> None:
        """A list that something was appended to, where it has a name."""
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            value = item_of(value) if several else value
            item = value if owner.elements == () or owner.item == value else join_all((owner.item, value))
            self.variables[node.func.value.id] = Container(item)
