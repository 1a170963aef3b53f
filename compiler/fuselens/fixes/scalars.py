"""Tensors turned into Python values: tensor arithmetic instead, or a size that the graph knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..report import Diagnostic, Edit, Fix
from .branches import condition
from .effects import effect_fixes, is_output
from .purity import is_pure
from .source import Source

_SHAPED = frozenset(
    "zeros ones empty full arange linspace eye rand randn randint zeros_like view reshape expand repeat narrow unfold chunk "
    "split topk range len roll unsqueeze squeeze permute transpose size select repeat_interleave one_hot tile".split()
)
_CASTS = {"float": "", "int": ".long()", "bool": ".bool()"}
_CLASSES = ("num_classes", "n_classes", "num_labels", "n_labels", "classes", "vocab_size", "vocabulary_size", "n_vocab")


def scalar_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For what looks at a tensor's values at ``span``."""
    node = source.at(finding.span, ast.expr)
    if node is None:
        return
    if any(is_output(source, parent) for parent in source.above(node)):
        yield from effect_fixes(source, finding)
        return
    match node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[], keywords=[]):
            yield from _kept_as_tensor(source, node, tensor, "")
        case ast.Call(func=ast.Name(id=cast), args=[tensor], keywords=[]) if cast in _CASTS and not source.dotted(
            node.func
        ):
            yield from _kept_as_tensor(source, node, tensor, _CASTS[cast])
        case ast.UnaryOp(op=ast.Not()):
            text = condition(source, node, {})
            if text is not None and not _needs_python(source, node):
                yield Fix("Negate the tensor", (source.replaced(node, f"({text})"),))
        case ast.Call(func=ast.Attribute(value=values, attr="sort")):
            yield from _sorted_list(source, node, values)
        case ast.Call(func=ast.Name(id="sorted"), args=[values]):
            yield from _sorted_copy(source, node, values)
        case ast.Call(func=ast.Name(id="max" | "min" as name)):
            yield from _extreme(source, node, name)
        case ast.Call(func=function) if ast.unparse(function).rpartition(".")[2] == "one_hot":
            yield from _classes(source, node)


# --- numbers --------------------------------------------------------------------------------------------------------


def _kept_as_tensor(source: Source, node: ast.Call, tensor: ast.expr, cast: str) -> Iterator[Fix]:
    match source.parents[node]:
        case ast.Subscript(value=values, slice=index, ctx=ast.Load()) as element if index is node and cast != ".bool()":
            text = f"{source.text(values)}[{source.operand(tensor)}.long().reshape(1)].squeeze(0)"
            yield Fix(f"Index with a tensor instead of {source.text(node)}", (source.replaced(element, text),))
            return
    if _needs_python(source, node):
        yield from _unbacked(source, node)
        return
    said = source.text(node)
    if cast:
        yield Fix(f"Keep a tensor: {cast[1:]} instead of {said}", (_replaced(source, node, tensor, cast),))
        return
    yield Fix(f"Keep a tensor instead of {said}", (_replaced(source, node, tensor, ""),))
    yield Fix(f"Keep a tensor without gradient instead of {said}", (_replaced(source, node, tensor, ".detach()"),))
    if isinstance(node.func, ast.Name):
        edit = _replaced(source, node, tensor, ".detach().float()")
        yield Fix(f"Keep a tensor of floats without gradient instead of {said}", (edit,))


def _replaced(source: Source, node: ast.Call, tensor: ast.expr, more: str) -> Edit:
    return source.replaced(node, f"{source.operand(tensor)}{more}")


def _needs_python(source: Source, node: ast.expr, depth: int = 0) -> bool:
    """Whether a Python value is needed where ``node``, or a variable that it is assigned to, is used. What arithmetic
    makes of it may be a tensor in any case."""
    child: ast.AST = node
    combined = False
    for parent in source.above(node):
        match parent:
            case ast.Return() | ast.Yield() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.Lambda():
                return not combined
            case ast.JoinedStr() | ast.FormattedValue() | ast.Slice() | ast.comprehension():
                return True
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test) if (
                test is child
            ):
                return True
            case ast.Subscript(slice=index) if index is child:
                return True
            case ast.For(iter=iterated) if iterated is child:
                return True
            case ast.Call(func=function) if function is not child:
                return _takes_numbers(function)
            case ast.Assign(targets=[ast.Name(id=name)]):
                return not combined and (depth > 2 or _is_needed(source, parent, name, depth))
            case ast.Assign() | ast.AugAssign(target=ast.Attribute() | ast.Subscript()):
                return not combined
            case ast.stmt():
                return False
            case ast.BinOp() | ast.Compare():
                combined = True
        child = parent
    return False


def _takes_numbers(function: ast.expr) -> bool:
    name = ast.unparse(function).rpartition(".")[2]
    kept = ("abs", "max", "min", "sum")
    return name in _SHAPED or name[:1].isupper() or (isinstance(function, ast.Name) and name not in kept)


def _is_needed(source: Source, assignment: ast.stmt, name: str, depth: int) -> bool:
    function = source.function(assignment)
    if function is None:
        return True
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return any(_needs_python(source, use, depth + 1) for use in uses)


def _unbacked(source: Source, node: ast.Call) -> Iterator[Fix]:
    """A number that has to be one stays in the graph under an option, with a check of what sizes must be."""
    statement = source.statement(node)
    function = source.function(node)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is node and function is not None:
            decorator = source.decorated(function, "capture_scalar_outputs=True", option=True)
            if decorator is None or not source.alone(statement):
                return
            check, imports = source.spelled("torch._check", node)
            bound = source.inserted_after(statement, [f"{check}({name} >= 0)"])
            yield Fix(f"Keep the number in the graph, with torch._check({name} >= 0)", (*imports, decorator, bound))


# --- order ----------------------------------------------------------------------------------------------------------


def _descending(call: ast.Call) -> str | None:
    """The argument of ``torch.sort`` for those of ``sorted``; None where there is none."""
    match call.keywords:
        case []:
            return ""
        case [ast.keyword(arg="reverse", value=ast.Constant(value=bool() as reverse))]:
            return "descending=True" if reverse else ""
    return None


def _sorted_list(source: Source, node: ast.Call, values: ast.expr) -> Iterator[Fix]:
    """``parts.sort()`` of a list of tensors; the list stays the same object."""
    descending = _descending(node)
    is_statement = isinstance(source.parents[node], ast.Expr) and isinstance(values, ast.Name | ast.Attribute)
    if descending is None or node.args or not is_statement:
        return
    stack, imports = source.spelled("torch.stack", node)
    name = source.text(values)
    edit = source.replaced(node, f"{name}[:] = {stack}({name}).sort({descending}).values.unbind()")
    yield Fix("Stack the tensors and sort them as one", (*imports, edit))


def _sorted_copy(source: Source, node: ast.Call, values: ast.expr) -> Iterator[Fix]:
    descending = _descending(node)
    if descending is None or isinstance(values, ast.Starred):
        return
    stack, imports = source.spelled("torch.stack", node)
    stacked = _stacked(source, values)
    edit = source.replaced(node, f"list({stack}({stacked}).sort({descending}).values.unbind())")
    yield Fix("Stack the tensors and sort them as one", (*imports, edit))


def _stacked(source: Source, values: ast.expr) -> str:
    text = source.argument(values)
    return text if isinstance(values, ast.List | ast.Tuple | ast.ListComp) else f"list({text})"


def _extreme(source: Source, node: ast.Call, name: str) -> Iterator[Fix]:
    if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        return
    if len(node.args) == 2:
        function, imports = source.spelled(f"torch.{name}imum", node)
        if any(isinstance(a, ast.Constant) for a in node.args):
            return
        text = f"{function}({', '.join(source.argument(a) for a in node.args)})"
    else:
        stack, imports = source.spelled("torch.stack", node)
        every = (
            _stacked(source, node.args[0]) if len(node.args) == 1 else f"[{', '.join(map(source.argument, node.args))}]"
        )
        text = f"{stack}({every}).{name}()"
    yield Fix(f"Compute the {name}imum with torch", (*imports, source.replaced(node, text)))


# --- classes --------------------------------------------------------------------------------------------------------


def _classes(source: Source, node: ast.Call) -> Iterator[Fix]:
    """``one_hot`` with a number of classes: one that the file names like that, else a name to fill in."""
    if len(node.args) != 1 or node.keywords or not is_pure(source, node):
        return
    last = node.args[0]
    for name in [*_named_like_classes(source, node), "num_classes"]:
        text = f"{source.text(last)}, num_classes={name}"
        yield Fix(f"Say how many classes there are: num_classes={name}", (source.replaced(last, text),))


def _named_like_classes(source: Source, node: ast.Call) -> list[str]:
    """Parameters, variables, module-level constants and attributes of ``self`` with such names."""
    function = source.function(node)
    owner = source.owner(function) if function else None
    local = source.local_names(node) if function else set()
    found = [n for n in (*sorted(local), *source.values) if n.lower() in _CLASSES]
    attributes = {n.attr for n in ast.walk(owner) if isinstance(n, ast.Attribute)} if owner else set()
    return [*found, *(f"self.{a}" for a in sorted(attributes) if a.lower() in _CLASSES)]
