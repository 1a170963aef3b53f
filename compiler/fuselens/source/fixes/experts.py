"""Loops over the experts that some token chose: over all of them instead, each on all tokens, chosen by the mask."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Diagnostic, Edit, Fix
from .source import Source


def expert_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For ``hit = ….nonzero()`` before ``for e in hit``, whose body takes the tokens of an expert, and adds to a sum of all.

    ::

        for e in hit:
            slot, token = torch.where(mask[e])
            state = f(x[token]) * weight[token, slot, None]
            total.index_add_(0, token, state)
    """
    call = source.at(finding.span, ast.Call)
    assignment = source.statement(call) if call is not None else None
    loop = source.next(assignment) if assignment is not None else None
    match assignment, loop:
        case (
            ast.Assign(targets=[ast.Name(id=hit)], value=value),
            ast.For(target=ast.Name(id=expert), iter=ast.Name(id=iterated), orelse=[]),
        ) if value is call and hit == iterated and _is_nonzero(call):
            pass
        case _:
            return
    function = source.function(assignment)
    if function is None or sum(isinstance(n, ast.Name) and n.id == hit for n in ast.walk(function)) != 2:
        return
    found = _Loop.of(source, loop, expert)
    edits = found.edits() if found is not None else None
    if found is not None and edits is not None:
        experts = source.replaced(loop.iter, f"zip(range({found.mask}.shape[0]))")
        yield Fix(
            "Compute every expert on all tokens, and choose by the mask: more operations, no break",
            (source.removed(assignment), experts, *edits),
        )


def _is_nonzero(call: ast.expr | None) -> bool:
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "nonzero"


class _Loop:
    """The body of such a loop: where the tokens of an expert are found, and by which names."""

    def __init__(self, source: Source, loop: ast.For, found: ast.Assign, mask: ast.expr, slot: str, token: str) -> None:
        self.source, self.loop, self.found = source, loop, found
        self.mask_of_expert, self.slot, self.token = mask, slot, token
        self.chosen = source.unused("chosen")

    @staticmethod
    def of(source: Source, loop: ast.For, expert: str) -> _Loop | None:
        for statement in loop.body:
            match statement:
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(id=slot), ast.Name(id=token)])],
                    value=ast.Call(func=function, args=[mask], keywords=[]),
                ) if source.dotted(function) == "torch.where":
                    match mask:
                        case ast.Call(func=ast.Attribute(value=inner, attr="squeeze"), args=[ast.Constant(value=0)]):
                            mask = inner
                    match mask:
                        case ast.Subscript(value=ast.Name(), slice=ast.Name(id=name)) if name == expert:
                            return _Loop(source, loop, statement, mask, slot, token)
        return None

    @property
    def mask(self) -> str:
        assert isinstance(self.mask_of_expert, ast.Subscript)
        return self.source.text(self.mask_of_expert.value)

    def edits(self) -> list[Edit] | None:
        """None where the names of tokens are used for anything else."""
        source = self.source
        made = [source.replaced(self.found, f"{self.chosen} = {source.text(self.mask_of_expert)} != 0")]
        uses = [
            n for s in self.loop.body if s is not self.found for n in ast.walk(s)
            if isinstance(n, ast.Name) and n.id in (self.slot, self.token)
        ]  # fmt: skip
        done: set[ast.AST] = set()
        for use in uses:
            if use in done:
                continue
            edit = self.edit(use, done)
            if edit is None:
                return None
            made.append(edit)
        return made

    def edit(self, use: ast.Name, done: set[ast.AST]) -> Edit | None:
        source, parent = self.source, self.source.parents[use]
        where, _ = source.spelled("torch.where", use)
        holder = source.parents.get(parent)
        match parent, holder:
            case ast.Subscript(value=ast.Name() as of, slice=index), _ if index is use and use.id == self.token:
                return source.replaced(parent, source.text(of))
            case ast.Tuple(elts=[ast.Constant(value=None), index]), ast.Subscript(value=ast.Name() as of) if (
                index is use and use.id == self.token
            ):
                return source.replaced(holder, f"{source.text(of)}[None]")
            case ast.Tuple(elts=[ast.Name(id=first) as token, ast.Name(id=second) as slot, *rest]), ast.Subscript(
                value=ast.Name() as of
            ) if (first, second) == (self.token, self.slot) and all(
                isinstance(r, ast.Constant) and r.value is None for r in rest
            ):
                done |= {token, slot}
                text = f"{where}({self.chosen}.T, {source.text(of)}, 0).sum(-1{', keepdim=True' * bool(rest)})"
                return source.replaced(holder, text)
            case ast.Call(
                func=ast.Attribute(value=ast.Name() as total, attr="index_add_"), args=[ast.Constant(value=0), index, added],
                keywords=[],
            ), ast.Expr() if index is use:  # fmt: skip
                if any(isinstance(n, ast.Name) and n.id in (self.slot, self.token) for n in ast.walk(added)):
                    return None
                text = f"{source.text(total)}.add_({where}({self.chosen}.any(0)[:, None], {source.argument(added)}, 0))"
                return source.replaced(parent, text)
        return None
