"""A program's text made tolerant: what fails leaves its names unknown, and loops that lead to a compiled call go round a few times.

Only statements on the way to what is compiled are rewritten: those of the module, and of functions that make or call it,
by the names that they use. What a compiled function may itself run stays as it was written, for that is what is looked at.
Every node keeps its place in the source. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from ..source.discovery import Annotated, Definition, SourceModule, Target
from ..source.names import blocks, compiles_in_place, own_expressions, statements, tests_main

OURS = "__fuselens_"
FAILED, UNKNOWN, ITEMS, ROUNDS, RAISED, PARTS, NAMED, CALLED, DECIDED, MAYBE = (
    f"{OURS}{name}__"
    for name in ("failed", "unknown", "items", "rounds", "raised", "parts", "named", "called", "decided", "maybe")
)
"""The names of what rewritten code calls."""

_ERROR = f"{OURS}error__"
_MAKERS = frozenset("torch numpy math functools operator collections dataclasses typing enum itertools pathlib logging re "
                    "fuselens jaxtyping einops".split())  # fmt: skip
_SETS_UP = (
    "torch.manual_seed", "torch.set_", "torch.backends.", "torch.use_deterministic_algorithms", "torch.random.", "torch.cuda.manual_seed",
    "numpy.random.seed", "random.seed", "warnings.", "logging.", "sys.path.", "torch.autograd.set_",
)  # fmt: skip
"""What statements ask for that change nothing outside of the process."""
_CHANGES = frozenset(
    "eval train to cuda cpu float double half bfloat16 requires_grad_ items keys values get format join split".split()
)
_PURE = frozenset(
    "len int float bool str list tuple dict set frozenset sorted sum min max range enumerate zip map filter abs round type isinstance "
    "issubclass hasattr getattr callable super slice reversed any all repr globals vars locals".split()
)
_LEFT = (ast.Pass, ast.Global, ast.Nonlocal, ast.Break, ast.Continue)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Leads:
    """Which parts of a file lead to what it compiles: by the names of what is called, as a reader would follow them."""

    def __init__(self, module: SourceModule, others: Iterable[str] = ()) -> None:
        """``others`` are names of what other files compile and hand over."""
        self.module = module
        self._calls, self._ranges = _calls_in(module.tree)
        functions = [n for n in module.nodes if isinstance(n, Definition)]
        compiled = {id(t.function) for t in module.targets}
        self._names = {*others, *(_last_name(t.annotated.qualname) for t in module.targets)}
        self._names |= {t.owner.name for t in module.targets if t.owner is not None and t.annotated.kind == "method"}
        inside = self._run_by_targets()
        self.functions: set[int] = set()
        owners = {id(f): c for c in module.nodes if isinstance(c, ast.ClassDef) for f in c.body}
        candidates = [f for f in functions if id(f) not in compiled and id(f) not in inside]
        self.aside = {id(f) for f in candidates}  # what compiled code does not run
        found = True
        while found:  # what leads to a function that leads there does so, too
            found = False
            for function in candidates:
                if id(function) not in self.functions and self.lead(function.body):
                    self.functions.add(id(function))
                    self._names.add(owners[id(function)].name if function.name == "__init__" else function.name)
                    found = True

    @property
    def names(self) -> frozenset[str]:
        """Of what is compiled, and of functions that lead there."""
        return frozenset(self._names)

    def lead(self, body: Iterable[ast.stmt]) -> bool:
        """Whether something compiled is made or called in statements of the file."""
        return any(map(self._is_step, self._calls_of(body)))

    def compile(self, body: Iterable[ast.stmt]) -> bool:
        """Whether something is compiled in statements of the file."""
        return any(self._compiles(call) for call in self._calls_of(body)) or any(
            self.module.decorates(decorator) is not None
            for statement in statements(body) if isinstance(statement, _SCOPES) for decorator in statement.decorator_list
        )  # fmt: skip

    def chosen(self, node: ast.IfExp) -> int:
        """Whether an expression compiles, or is what compiles, where its condition holds (1) or where it does not (-1)."""
        return self._is_or_makes(node.body) - self._is_or_makes(node.orelse)

    def _is_or_makes(self, node: ast.expr) -> bool:
        return self.module.compiler(node) is not None or (isinstance(node, ast.Call) and self._compiles(node))

    def _compiles(self, call: ast.Call) -> bool:
        return self.module.applied(call) is not None or compiles_in_place(call) is not None

    def calls(self, body: Iterable[ast.stmt]) -> bool:
        """Whether something compiled is called in statements of the file, or a function that leads there."""
        return any(_last_name(call.func) in self._names for call in self._calls_of(body))

    def _calls_of(self, body: Iterable[ast.stmt]) -> Iterator[ast.Call]:
        for statement in body:
            first, end = self._ranges[id(statement)]
            yield from self._calls[first:end]

    def not_called(self) -> Iterator[tuple[Definition, ast.ClassDef | None]]:
        """The functions of the module that lead somewhere, and for constructors their classes; later ones first, for they
        call the earlier."""
        for node in reversed(self.module.tree.body):
            if isinstance(node, Definition) and id(node) in self.functions:
                yield node, None
            elif isinstance(node, ast.ClassDef):
                inside = (f for f in node.body if isinstance(f, Definition) and id(f) in self.functions)
                yield from ((f, node) for f in inside if f.name == "__init__")

    def leads_to(self, function: Definition, targets: Iterable[Annotated]) -> bool:
        """Whether a function makes one of the targets, or calls it by its name."""
        called = {_last_name(call.func) for call in self._calls_of([function])}
        return any(
            t.qualname.startswith(f"{function.name}.<locals>.") or _last_name(t.qualname) in called
            or function.lineno <= t.decorator_span.line <= (function.end_lineno or 0)
            for t in targets
        )  # fmt: skip

    def _hands_over(self, body: Iterable[ast.stmt]) -> bool:
        """Whether something compiled is given to a function, which may call it."""
        given = (value for n in self._calls_of(body) for value in (*n.args, *(k.value for k in n.keywords)))
        return any(isinstance(v, (ast.Name, ast.Attribute)) and _last_name(v) in self._names for v in given)

    def _is_step(self, call: ast.Call) -> bool:
        if any(k.arg in ("torch_compile", "dynamo_backend") for k in call.keywords):
            return True
        return _last_name(call.func) in self._names or self._compiles(call)

    def runs_itself(self) -> bool:
        """Whether importing the file calls what it compiles, does not reach it, or does more than to define things: then it is a
        program, and not imported."""
        targets = self.module.targets
        if any(t.annotated.kind in ("nested", "attribute") or not t.annotated.importable for t in targets):
            return True
        passive = (*_SCOPES, ast.Import, ast.ImportFrom)
        own = [s for s in self.module.tree.body if not isinstance(s, passive)]
        if any(map(_needs_inputs, targets)) and self.calls(own):
            return True
        run = [s for s in own if not (isinstance(s, ast.If) and tests_main(s.test))]
        return self.calls(run) or self._hands_over(run) or any(map(self._acts, run))

    def _acts(self, statement: ast.stmt) -> bool:
        """Whether a statement may do more than to make values, as far as its text says."""
        if isinstance(statement, (*_SCOPES, ast.Import, ast.ImportFrom)):
            return False
        if isinstance(statement, (ast.While, ast.AsyncFor, ast.AsyncWith)):
            return True
        inner = [s for block, _ in blocks(statement) for s in block]
        calls = [n for n in own_expressions(statement) if isinstance(n, ast.Call)]
        asked = isinstance(statement, ast.Expr)
        return any(not self._makes_only(call, asked) for call in calls) or any(map(self._acts, inner))

    def _makes_only(self, call: ast.Call, asked: bool) -> bool:
        """Whether a call makes a value and does nothing else; ``asked`` only for what it does, it may set something up."""
        function = call.func
        if self._compiles(call):
            return True
        if dotted := self.module.dotted(function):
            return (
                dotted.startswith(_SETS_UP)
                if asked
                else (
                    dotted.partition(".")[0] in _MAKERS or dotted.startswith(("os.path.", "os.environ.", "os.getenv"))
                )
            )
        if isinstance(function, ast.Attribute):
            return function.attr in _CHANGES
        if isinstance(function, ast.Name):
            return function.id in self.module.classes or (function.id in _PURE and not asked)
        return self.module.compiler(function) is not None

    def _run_by_targets(self) -> set[int]:
        """Functions of the file that compiled code may call: methods of modules that are compiled, and so on."""
        targets, classes = self.module.targets, self.module.classes.values()
        waiting: list[ast.AST] = [t.function for t in targets if t.function is not None]
        methods = [t.owner for t in targets if t.annotated.kind == "method" and t.function is not None]
        waiting += [t.owner for t in targets if t.owner is not None and t.annotated.kind not in ("attribute", "method")]
        waiting += [c for c in classes if c not in methods and self.module.method(c, "forward") is not None]
        by_name: dict[str, list[ast.AST]] = {}
        for node in self.module.nodes:
            if isinstance(node, _SCOPES):
                by_name.setdefault(node.name, []).append(node)
        seen: set[int] = set()
        functions: set[int] = set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            for inner in ast.walk(node):
                if isinstance(inner, Definition):
                    functions.add(id(inner))
                elif (
                    isinstance(inner, ast.Call) and (name := _last_name(inner.func)) != "__init__"
                ):  # of a base, most often
                    waiting += by_name.get(name, ())
        return functions


def _calls_in(tree: ast.Module) -> tuple[list[ast.Call], dict[int, tuple[int, int]]]:
    """The calls of a file, and for each statement, by its id, which of them are in it."""
    calls: list[ast.Call] = []
    ranges: dict[int, tuple[int, int]] = {}
    waiting: list[tuple[ast.AST, int | None]] = [(tree, None)]
    while waiting:
        node, first = waiting.pop()
        if first is not None:
            ranges[id(node)] = first, len(calls)
            continue
        if isinstance(node, ast.Call):
            calls.append(node)
        if isinstance(node, ast.stmt):
            waiting.append((node, len(calls)))
        waiting += ((child, None) for child in ast.iter_child_nodes(node))
    return calls, ranges


def _needs_inputs(target: Target) -> bool:
    """Whether the author says too little about what a function takes."""
    function = target.function
    if not isinstance(function, Definition) or target.given is not None or target.annotated.example:
        return False
    stated = any("example" in ast.unparse(d) for d in function.decorator_list)
    without_default = function.args.args[: len(function.args.args) - len(function.args.defaults)]
    own = without_default[target.annotated.kind == "method" or target.owner is not None :]
    return not stated and any(a.annotation is None for a in own)


def rewritten(leads: Leads) -> ast.Module:
    """The tree of the file, rewritten in place: it is parsed anew for each evaluation."""
    tree = leads.module.tree
    _Rewriter(leads).rewrite(tree.body)
    return ast.fix_missing_locations(tree)


class _Rewriter:
    def __init__(self, leads: Leads) -> None:
        self._leads = leads
        self._loops = 0
        self._passed: set[int] = set()  # what refuses to go on, where what follows leads somewhere

    def rewrite(self, body: list[ast.stmt]) -> None:
        """The statements of a block, in place."""
        for position, node in enumerate(body):
            if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise):
                if node.body[-1].exc is not None and self._leads.lead(body[position + 1 :]):
                    self._passed.add(id(node.body[-1]))
        body[:] = [made for position, s in enumerate(body) for made in self._statement(s, first=position == 0)]

    def _statement(self, node: ast.stmt, *, first: bool = False) -> Iterator[ast.stmt]:
        if isinstance(node, _LEFT) or (first and _is_docstring(node)) or _is_future(node):
            yield node
            return
        if isinstance(node, ast.ImportFrom) and len(node.names) > 1:  # some of them may be there
            yield from (
                self._wrapped(_at(node, ast.ImportFrom(node.module, [name], node.level))) for name in node.names
            )
            return
        if id(node) in self._passed:
            yield self._wrapped(node)
            return
        if isinstance(node, ast.Raise):
            if node.exc is not None:
                node.exc = _call(RAISED, node.exc, at=node)
            yield node
            return
        if isinstance(node, ast.If) and tests_main(node.test):
            node.test = ast.copy_location(ast.Constant(True), node.test)
        elif isinstance(node, ast.If):
            prefers = self._leads.lead(node.body) - self._leads.lead(node.orelse)
            bound = set() if _jumps(node.body) else {name for s in node.body for name in _bound(s)}
            names: list[ast.expr] = [ast.Constant(name) for name in sorted(bound)]
            compiles = self._leads.compile(node.body) - self._leads.compile(node.orelse)
            more = ast.Constant(compiles or prefers), ast.Tuple(names, ast.Load()), ast.Constant(bool(compiles))
            node.test = _call(DECIDED, _maybe(_Unknowing().visit(node.test)), *more, at=node.test)
        for inner in own_expressions(node):
            if isinstance(inner, ast.IfExp) and (prefers := self._leads.chosen(inner)):
                more = ast.Constant(prefers), ast.Tuple([], ast.Load()), ast.Constant(True)
                inner.test = _call(DECIDED, _maybe(inner.test), *more, at=inner.test)
        count = self._counter(node) if isinstance(node, ast.While) else None
        self._inside(node)
        if not isinstance(node, ast.If):
            _Unknowing().of(node)
        if isinstance(node, ast.While) and count is not None:
            self._loops += 1
            counter = f"{ROUNDS[:-2]}_{self._loops}__"
            yield _at(node, ast.Assign([ast.Name(counter, ast.Store())], count))
            more = ast.Call(ast.Name(counter, ast.Load()), [], [])
            node.test = ast.copy_location(ast.BoolOp(ast.And(), [more, node.test]), node.test)
        yield self._wrapped(node)

    def _counter(self, node: ast.While) -> ast.expr:
        return ast.Call(ast.Name(ROUNDS, ast.Load()), [ast.Constant(self._leads.lead(node.body))], [])

    def _inside(self, node: ast.stmt) -> None:
        """Rewrites the blocks of a statement that leads somewhere; others are run as they are, or not at all."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if id(node) in self._leads.functions:
                self.rewrite(node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if id(node) in self._leads.aside:
                    self._without_assertions(node.body)
                self._definitions(node.body)
            case ast.For():
                leads = self._leads.lead(node.body)
                node.iter = _call(ITEMS, _maybe(_Unknowing().visit(node.iter)), ast.Constant(leads), at=node.iter)
                if parts := _parts(node.target):
                    node.iter = _call(PARTS, node.iter, _form(parts), ast.Constant(True), at=node.iter)
                self._blocks(node, leads)
            case ast.AsyncFor():
                self._blocks(node, self._leads.lead(node.body))
            case ast.If() | ast.With() | ast.AsyncWith():
                self._blocks(node, True)
            case ast.While() | ast.Try():
                self._blocks(node, self._leads.lead([node]))
            case _:
                pass

    def _blocks(self, node: ast.stmt, leads: bool) -> None:
        for block, _ in blocks(node) if leads else ():
            self.rewrite(block)

    def _definitions(self, body: list[ast.stmt]) -> None:
        """Functions that lead somewhere, in what is left as it is."""
        for statement in statements(body):
            if isinstance(statement, _SCOPES):
                self._inside(statement)

    def _without_assertions(self, body: list[ast.stmt]) -> None:
        """Those of a function that helps on the way say what a run must have: files, say."""
        for position, node in enumerate(body):
            if isinstance(node, ast.Assert):
                body[position] = self._wrapped(node)
            elif not isinstance(node, _SCOPES):
                for block, _ in blocks(node):
                    self._without_assertions(block)

    def _wrapped(self, node: ast.stmt) -> ast.stmt:
        names = sorted(set(_bound(node)))
        handler: list[ast.stmt] = [ast.Expr(_call(FAILED, ast.Name(_ERROR, ast.Load()), at=node))]
        unknown = _call(UNKNOWN, at=node)
        if isinstance(node, ast.Return):
            handler.append(ast.Return(unknown))
        else:
            targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
            targets += [ast.Attribute(ast.Name(t.value.id, ast.Load()), t.attr, ast.Store()) for t in _attributes(node)]
            if targets:
                handler.append(ast.Assign(targets, unknown))
        caught = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), _ERROR, [_at(node, h) for h in handler])
        return _at(node, ast.Try([node], [_at(node, caught)], [], []))


class _Unknowing(ast.NodeTransformer):
    """In the expressions of one statement: what is taken apart, given on, or given to a built-in function or a class may be
    unknown."""

    def of(self, node: ast.stmt) -> None:
        """In place; blocks are left as they are, for their statements had their turn."""
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and (parts := _parts(node.targets[0])):
            node.value = _call(PARTS, node.value, _form(parts), at=node.value)
        if isinstance(node, ast.With):
            for item in node.items:
                item.context_expr = _maybe(self.visit(item.context_expr))
        elif not isinstance(node, (ast.For, ast.AsyncFor, ast.AsyncWith)):
            for name, value in ast.iter_fields(node):
                if isinstance(value, ast.expr):
                    setattr(node, name, self.visit(value))

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                argument.value = _call(NAMED, argument.value, ast.Constant(False), at=argument)
        for keyword in node.keywords:
            if keyword.arg is None:
                keyword.value = _call(NAMED, keyword.value, ast.Constant(True), at=keyword.value)
        name = _last_name(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        built_in = isinstance(node.func, ast.Name) and name in _BUILT_IN
        if name[:1].isupper() or built_in:  # a class, by its name
            return ast.copy_location(
                ast.Call(ast.Name(CALLED, ast.Load()), [node.func, *node.args], node.keywords), node
            )
        return node


def _maybe(node: ast.expr) -> ast.expr:
    """An expression that is unknown where it uses what is."""
    if any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for n in ast.walk(node)):
        return node  # they belong to the function that they are in
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return _call(MAYBE, ast.copy_location(ast.Lambda(nothing, node), node), at=node)


_BUILT_IN = frozenset(
    "len int float bool str list tuple dict set sorted sum min max range enumerate zip map abs round iter next any all tqdm track "
    "isinstance issubclass".split()
)


def _jumps(body: list[ast.stmt]) -> bool:
    """Whether a block may not reach its end."""
    return any(isinstance(s, (ast.Return, ast.Raise, ast.Break, ast.Continue)) for s in statements(body))


def _form(parts: tuple[Any, ...]) -> ast.expr:
    return ast.Tuple([_form(inner) for inner in parts], ast.Load())


def _parts(target: ast.expr) -> tuple[Any, ...]:
    """The form of the values that a target takes apart; empty for one name, or any number."""
    if isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in target.elts):
        return tuple(map(_parts, target.elts))
    return ()


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds in its scope."""
    if isinstance(node, _SCOPES):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (a.asname or a.name.partition(".")[0] for a in node.names if a.name != "*")
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


def _attributes(node: ast.stmt) -> Iterator[Any]:
    """The attributes of names that an assignment gives a value."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                yield part


def _last_name(node: ast.expr | str) -> str:
    if isinstance(node, str):
        return node.rpartition(".")[2]
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):  # of an instance just made
        return _last_name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _call(name: str, *args: ast.expr, at: ast.AST) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(args), []), at)


def _at(place: ast.AST, node: Any) -> Any:
    return ast.copy_location(node, place)
