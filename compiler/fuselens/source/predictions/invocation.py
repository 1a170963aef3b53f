"""One call, as the rules of called functions see it: what it is given, where it is written, and the scope around it.

The rules of builtins, of torch and of other libraries are functions of an :class:`Invocation`. So a rule is a small
function in a table, and needs no method of the walk.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from .scopes import Scope
from .values import UNKNOWN, Container, Tensor, Value, holds_tensors, item_of

Arguments = tuple[Value, ...]
Keywords = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call at ``node`` with evaluated arguments."""

    scope: Scope
    arguments: Arguments
    keywords: Keywords
    node: ast.expr

    @property
    def first(self) -> Value:
        return self.arguments[0] if self.arguments else UNKNOWN

    @property
    def takes_tensor(self) -> bool:
        """Whether one of the positional arguments is a tensor."""
        return any(isinstance(argument, Tensor) for argument in self.arguments)

    @property
    def callee(self) -> str:
        """The source of what is called."""
        return self.scope.text(self.node.func if isinstance(self.node, ast.Call) else self.node)

    def found(self, code: str, **fields: str) -> None:
        """A break that compiling is likely to report at the call."""
        self.scope.found(code, self.node, **fields)

    def call(self, function: Value, *arguments: Value) -> Value:
        """What ``function`` gives, which the callee calls."""
        return self.scope.call(function, arguments, {}, self.node)

    def with_arguments(self, arguments: Arguments) -> Invocation:
        return replace(self, arguments=arguments)

    def compares(self, values: Value) -> Value:
        """What is compared of ``values``: they themselves, or what ``key`` makes of them. The value of tensors is asked for."""
        if (key := self.keywords.get("key")) is not None:
            values = Container(self.call(key, item_of(values)))
        if holds_tensors(values) or isinstance(values, Tensor):
            self.found("FL102")
        return values


Rule = Callable[[Invocation], Value]
