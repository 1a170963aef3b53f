"""Tensors turned into Python values: tensor arithmetic instead, or a size that the graph knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Diagnostic, Edit, Fix
from .branches import condition
from .effects import effect_fixes, is_output
from .purity import is_pure
from .source import FORMATTED, Source

_SHAPED = frozenset(
    "zeros ones empty full arange linspace eye rand randn randint zeros_like view reshape expand repeat narrow unfold chunk "
    "split topk range len roll unsqueeze squeeze permute transpose size select repeat_interleave one_hot tile".split()
)
_CASTS = {"float": "", "int": ".long()", "bool": ".bool()"}
_FUNCTIONS = {"round": "round", "abs": "abs", "math.fabs": "abs"} | {
    f"math.{name}": name for name in "exp log sqrt floor ceil tanh sin cos tan log2 log10 log1p expm1 erf trunc".split()
}
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
        case ast.Call(func=ast.Attribute(value=tensor, attr="tolist"), args=[], keywords=[]):
            yield Fix("Take the tensor apart instead", (_replaced(source, node, tensor, ".detach().unbind()"),))
        case ast.Call(func=function, args=[values], keywords=[]) if source.dotted(function) == "torch.tensor":
            stack, imports = source.spelled("torch.stack", node)
            if isinstance(values, ast.Name | ast.List | ast.Tuple | ast.ListComp):
                yield Fix("Stack the tensors", (*imports, source.replaced(function, stack)))
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
    said = " ".join(source.text(node).split())
    match source.parents[node]:
        case ast.Subscript(value=values, slice=index, ctx=ast.Load()) as element if index is node and cast != ".bool()":
            text = f"{source.text(values)}[{source.operand(tensor)}.long().reshape(1)].squeeze(0)"
            yield Fix(f"Index with a tensor instead of {said}", (source.replaced(element, text),))
            return
    function = _function_of_numbers(source, node)
    if function is not None:
        said, imports = source.spelled(f"torch.{_FUNCTIONS[_name(source, function.func)]}", node)
        edits = (*imports, source.replaced(function.func, said), _replaced(source, node, tensor, ".detach()"))
        yield Fix(f"Compute {said} of the tensor instead of {source.text(function.func)}", edits)
        return
    if (positions := _positions(source, node)) and cast != ".bool()":
        made = _replaced(source, node, tensor, ".long().reshape(1)")
        edits = (made, *(source.replaced(p, f"{source.text(p)}.squeeze(0)") for p in positions))
        yield Fix(f"Index with a tensor instead of {said}", edits)
    if _is_tested(source, node):
        yield Fix(f"Look at the tensor instead of {said}", (_replaced(source, node, tensor, cast),))
    if _needs_python(source, node):
        yield from _unbacked(source, node)
        return
    if cast:
        yield Fix(f"Keep a tensor: {cast[1:]} instead of {said}", (_replaced(source, node, tensor, cast),))
        return
    yield Fix(f"Keep a tensor instead of {said}", (_replaced(source, node, tensor, ""),))
    yield Fix(f"Keep a tensor without gradient instead of {said}", (_replaced(source, node, tensor, ".detach()"),))
    if isinstance(node.func, ast.Name):
        edit = _replaced(source, node, tensor, ".detach().float()")
        yield Fix(f"Keep a tensor of floats without gradient instead of {said}", (edit,))


def _name(source: Source, function: ast.expr) -> str:
    return source.dotted(function) or (function.id if isinstance(function, ast.Name) else "")


def _function_of_numbers(source: Source, node: ast.expr) -> ast.Call | None:
    """The call that ``node``, or what arithmetic makes of it, is the argument of, if torch has that function, too."""
    for parent in source.above(node):
        if isinstance(parent, ast.Call) and len(parent.args) == 1 and not parent.keywords:
            return parent if parent.func is not node and _name(source, parent.func) in _FUNCTIONS else None
        if not isinstance(parent, ast.BinOp | ast.UnaryOp):
            return None
    return None


def _uses(source: Source, node: ast.expr) -> list[ast.Name]:
    """Where the variable is read that ``node`` is assigned to, once."""
    match source.parents[node]:
        case ast.Assign(targets=[ast.Name(id=name)]):
            function = source.function(node)
            found = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name] if function else []
            reads = [n for n in found if isinstance(n.ctx, ast.Load)]
            return reads if len(found) == len(reads) + 1 else []
    return []


def _positions(source: Source, node: ast.expr) -> list[ast.Subscript]:
    """The elements read at ``node``, if its variable is for nothing else."""
    found = [(use, source.parents[use]) for use in _uses(source, node)]
    elements = [
        p for use, p in found if isinstance(p, ast.Subscript) and p.slice is use and isinstance(p.ctx, ast.Load)
    ]
    return elements if len(elements) == len(found) else []


def _is_tested(source: Source, node: ast.expr) -> bool:
    """Whether ``node``, or its variable wherever it is read, is part of a condition."""
    uses = _uses(source, node)
    return (bool(uses) and all(_in_condition(source, use) for use in uses)) or _in_condition(source, node)


def _in_condition(source: Source, node: ast.expr) -> bool:
    child: ast.AST = node
    for parent in source.above(node):
        if getattr(parent, "test", None) is child:
            return True
        if not isinstance(parent, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.BinOp):
            return False
        child = parent
    return False


def _replaced(source: Source, node: ast.Call, tensor: ast.expr, more: str) -> Edit:
    return source.replaced(node, f"{source.operand(tensor)}{more}")


def _needs_python(source: Source, node: ast.expr, depth: int = 0) -> bool:
    """Whether a Python value is needed where ``node``, or a variable that it is assigned to, is used. What arithmetic
    makes of it may be a tensor in any case."""
    child: ast.AST = node
    combined = False
    for parent in source.above(node):
        match parent:
            case ast.Tuple() if isinstance(source.parents[parent], ast.Assign):
                targets = getattr(source.parents[parent], "targets", [])
                match targets:
                    case [ast.Tuple(elts=names)] if len(names) == len(parent.elts) and isinstance(child, ast.expr):
                        name = names[parent.elts.index(child)]
                        if isinstance(name, ast.Name):
                            statement = source.statement(parent)
                            return not combined and (statement is None or _is_needed(source, statement, name.id, depth))
                return not combined
            case ast.Return() | ast.Yield() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.Lambda():
                return not combined
            case ast.Slice() | ast.comprehension():
                return True
            case ast.expr() if isinstance(parent, FORMATTED):
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
            return "dim=0, stable=True"
        case [ast.keyword(arg="reverse", value=ast.Constant(value=bool() as reverse))]:
            return f"dim=0, stable=True{', descending=True' if reverse else ''}"
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
    bounds = [a for a in node.args if isinstance(a, ast.Constant)]
    if len(node.args) == 2 and len(bounds) == 1:
        function, imports = source.spelled("torch.clamp", node)
        value = next(a for a in node.args if a is not bounds[0])
        text = f"{function}({source.argument(value)}, {'min' if name == 'max' else 'max'}={source.text(bounds[0])})"
    elif len(node.args) == 2 and all(isinstance(a, ast.Name | ast.Attribute) for a in node.args):
        function, imports = source.spelled("torch.where", node)  # the first of equals, as in Python; so are gradients
        first, second = map(source.text, node.args)
        text = f"{function}({second} {'>' if name == 'max' else '<'} {first}, {second}, {first})"
    elif bounds:
        return
    else:
        stack, imports = source.spelled("torch.stack", node)
        every = (
            _stacked(source, node.args[0]) if len(node.args) == 1 else f"[{', '.join(map(source.argument, node.args))}]"
        )
        text = f"{stack}({every}).{name}(0).values"
    yield Fix(f"Compute the {name}imum with torch", (*imports, source.replaced(node, text)))


# --- classes --------------------------------------------------------------------------------------------------------


def _classes(source: Source, node: ast.Call) -> Iterator[Fix]:
    """``one_hot`` with a number of classes: one that the file names like that, else a name to fill in."""
    if len(node.args) != 1 or node.keywords or not is_pure(source, node):
        return
    last = node.args[0]
    given = [*_named_like_classes(source, node), *_last_dimensions(source, node)]
    for name in dict.fromkeys(given or ["num_classes"]):
        text = f"{source.text(last)}, num_classes={name}"
        yield Fix(f"Say how many classes there are: num_classes={name}", (source.replaced(last, text),))


def _named_like_classes(source: Source, node: ast.Call) -> list[str]:
    """Parameters, variables, module-level constants and attributes of ``self`` with such names."""
    function = source.function(node)
    owner = source.owner(function) if function else None
    local = source.local_names(node) if function else set()
    statement = source.statement(node)
    here = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)} if statement is not None else set()
    found = [n for n in (*sorted(local - here), *source.values) if n.lower() in _CLASSES]
    attributes = {n.attr for n in ast.walk(owner) if isinstance(n, ast.Attribute)} if owner else set()
    return [*found, *(f"self.{a}" for a in sorted(attributes) if a.lower() in _CLASSES)]


def _last_dimensions(source: Source, node: ast.Call) -> list[str]:
    """Of the other parameters, which may be scores of the classes."""
    function = source.function(node)
    if function is None:
        return []
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return [f"{p}.shape[-1]" for p in parameters if p in read - used and p not in ("self", "cls")][:2]
