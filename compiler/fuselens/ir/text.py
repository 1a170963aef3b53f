"""The text form of the loop IR: :func:`show` prints a graph, :func:`parse` reads it back.

::

    graph g0 symbols [s0 = arg0.0 hint 8]
      input arg0: f32[s0, 64] strides [64, 1]
      buffer buf0: f32[s0, 64] strides [64, 1]
      view buf1: f32[64*s0] strides [1] offset 0 of buf0
      loop buf0 [i0 < s0, i1 < 64] from aten.add.Tensor  # toy.py:6:9
        t0 = load arg0[64*i0 + i1] : f32
        t1 = const 1.0 : f32
        t2 = add t0, t1 : f32
        store buf0[64*i0 + i1] = t2
      return buf0

``write INPUT = BUFFER`` before ``return`` says that the buffer holds the input's new value. A symbol's source is
``input.dimension``, ``input`` alone for an integer argument (dimension -1), or ``input.strideN``. Spans and decisions
are not part of the text: spans follow as comments (two spaces, ``#``), which the parser skips. Everything else
survives the round trip: ``parse(show(g)[0]) == g`` for a graph without spans, decisions and constant data. The n-th
store of a node is named ``storeN``; a store of another name prints it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.loops import (
    Attention,
    Axis,
    Buffer,
    Extern,
    Graph,
    Kernel,
    Loop,
    Node,
    Op,
    Phase,
    Ref,
    element,
    symbol,
    value_symbol,
)
from fuselens.record.report import Line, Span

# --- index expressions -----------------------------------------------------------------------------------------

_DIGITS = re.compile(r"(\d+)")


@functools.lru_cache(1 << 14)
def _natural(name: str) -> tuple[Any, ...]:
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in _DIGITS.split(name) if p)


def _term_key(term: Any) -> tuple[Any, ...]:
    """Terms print in axis order, gathers next, sizes after them, numbers last: as one would write an address."""
    names = [s.name for s in term.free_symbols]
    if not names:
        return (3, (), "")
    rank, first = min(({"i": 0, "r": 0, "%": 1}.get(n[0], 2), _natural(n)) for n in names)
    return (rank, first, str(term))


def _factor_key(factor: Any) -> tuple[Any, ...]:
    names = sorted(s.name for s in factor.free_symbols)
    return (not factor.is_Number, not all(n.startswith("s") for n in names), [_natural(n) for n in names], str(factor))


@functools.lru_cache(1 << 15)
def show_expression(e: Expr) -> str:
    """An index or size expression as text that :func:`parse_expression` reads."""
    if isinstance(e, (sympy.Symbol, sympy.Integer)):
        return str(e)
    if isinstance(e, sympy.Add):
        out = ""
        for term in sorted(e.args, key=_term_key):
            text = show_expression(term)
            out += (f" - {text[1:]}" if text.startswith("-") else f" + {text}") if out else text
        return out
    if isinstance(e, sympy.Mul):
        factors = sorted(e.args, key=_factor_key)
        sign = ""
        if factors[0] == -1:
            sign, factors = "-", factors[1:]
        return sign + "*".join(f"({show_expression(f)})" if f.is_Add else show_expression(f) for f in factors)
    if isinstance(e, sympy.Pow):
        base = show_expression(e.base)
        exponent = show_expression(e.exp)
        base = base if e.base.is_Symbol or e.base.is_Integer else f"({base})"
        return f"{base}**{exponent if e.exp.is_Symbol or (e.exp.is_Integer and e.exp > 0) else f'({exponent})'}"
    if isinstance(e, sympy.Rational):
        return f"({e.p}/{e.q})"
    if isinstance(e, sympy.Float):
        return repr(float(e))
    return f"{type(e).__name__}({', '.join(show_expression(a) for a in e.args)})"


@functools.cache
def _functions() -> dict[str, Callable[..., Expr]]:
    from fuselens.torch_private import integer_functions

    return {"Mod": sympy.Mod, **integer_functions()}


@functools.lru_cache(1 << 14)
def parse_expression(text: str) -> Expr:
    """Reads what :func:`show_expression` printed. Raises ValueError."""
    try:
        tree = ast.parse(re.sub(r"%(\w+)", r"_value_\1", text.strip()), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {text!r}") from error
    return _build(tree, text)


def _build(node: ast.expr, text: str) -> Expr:
    match node:
        case ast.Constant(value=int() as v):
            return sympy.Integer(v)
        case ast.Constant(value=float() as v):
            return sympy.Float(v)
        case ast.Name(id=name):
            return value_symbol(name[7:]) if name.startswith("_value_") else symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand, text)
        case ast.BinOp(op=ast.Mult()):  # all at once: sympy multiplies a number into a sum as soon as it meets one
            return sympy.Mul(*_factors(node, text))
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _build(left, text), _build(right, text)
            operator = _OPERATORS.get(type(op))
            if operator:
                return operator(a, b)
        case ast.Call(func=ast.Name(id=name), args=args) if name in _functions():
            return _functions()[name](*(_build(a, text) for a in args))
    raise ValueError(f"not an index expression: {text!r}")


def _factors(node: ast.expr, text: str) -> list[Expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left, text), *_factors(node.right, text)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):  # it binds the first factor, not the product
        return [sympy.Integer(-1), *_factors(node.operand, text)]
    return [_build(node, text)]


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}

# --- printing --------------------------------------------------------------------------------------------------


def _exprs(values: Iterable[Expr]) -> str:
    return "[" + ", ".join(show_expression(v) for v in values) + "]"


def _axes(axes: Iterable[Axis]) -> str:
    return "[" + ", ".join(f"{a.name} < {show_expression(a.size)}" for a in axes) + "]"


def _number(value: Any) -> str:
    return repr(value)


def _constant(value: Any) -> str:
    """An argument of an extern call: references bare, expressions bare, the rest as Python writes it."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, Expr):
        return show_expression(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_constant(v) for v in value) + "]"
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch":
        return f"torch.device({str(value)!r})" if kind.__name__ == "device" else str(value)
    return repr(value)


def show_op(op: Op, store_name: str = "") -> str:
    """One op of a body as a line of text."""
    if op.op == "store":
        head = "" if op.name == store_name else f"{op.name} = "
        kind = f"{op.update} " if op.update else ""
        return f"{head}store {op.args[0]}[{show_expression(op.args[1])}] = {kind}{op.args[2]}"
    if op.op == "load":
        what = f"load {op.args[0]}[{show_expression(op.args[1])}]"
    elif op.op in ("reduce", "scan"):
        what = f"{op.op} {op.args[0]} {op.args[1]}"
    elif op.op == "const":
        what = f"const {_number(op.args[0])}"
    elif op.op == "index":
        what = f"index {show_expression(op.args[0])}"
    elif op.op == "random":
        what = f"random {op.args[0]}, {op.args[1]}, {op.args[2]}[{show_expression(op.args[3])}]"
    elif op.op == "bounds":
        what = f"bounds {op.args[0]}, {show_expression(op.args[1])}" + (", wrap" if op.args[2] else "")
    else:
        what = f"{op.op} {', '.join(a if isinstance(a, str) else _number(a) for a in op.args)}"
    return f"{op.name} = {what} : {op.dtype}"


def _buffer_line(graph: Graph, buffer: Buffer) -> str:
    if buffer.name in graph.inputs:
        kind = "input"
    elif buffer.storage:
        kind = "view"
    else:
        kind = "constant" if buffer.name in graph.constants else "buffer"
    out = f"{kind} {buffer.name}: {buffer.dtype}{_exprs(buffer.sizes)} strides {_exprs(buffer.strides)}"
    if buffer.storage:
        out += f" offset {show_expression(buffer.offset)} of {buffer.storage}"
    elif buffer.offset != 0:
        out += f" offset {show_expression(buffer.offset)}"
    return out + (f" on {buffer.device}" if buffer.device != "cpu" else "")


def _extern_line(node: Extern) -> str:
    made = node.name if node.outputs == (node.name,) else f"{node.name} [{', '.join(o or '_' for o in node.outputs)}]"
    args = [_constant(a) for a in node.args] + [f"{k}={_constant(v)}" for k, v in node.kwargs]
    out = f"extern {made} = {node.target}({', '.join(args)})"
    if node.mutates:
        out += f" mutates [{', '.join(node.mutates)}]"
    if node.origin:
        out += f" from {node.origin}"
    if node.reason:
        out += f" because {json.dumps(node.reason.replace('  #', ' #'))}"
    return out


def _body(body: tuple[Op, ...], indent: str, stores: Iterator[int]) -> Iterator[tuple[str, tuple[Span, ...]]]:
    for op in body:
        name = f"store{next(stores)}" if op.op == "store" else ""
        yield indent + show_op(op, name), op.spans


def _node_lines(node: Node) -> Iterator[tuple[str, tuple[Span, ...]]]:
    stores = iter(range(1 << 30))
    if isinstance(node, Attention):
        made = "" if node.outputs == (node.name,) else f" [{', '.join(node.outputs)}]"
        head = f"  attention {node.name}{made} {_axes(node.axes)} = {', '.join(node.operands())}"
        head += (f" splits {node.splits}" if node.splits > 1 else "") + (" nan" if node.nan else "")
        head += f" of {node.product}" if node.product else ""
        yield head + (f" from {node.origin}" if node.origin else ""), node.spans
        yield from _body(node.body, "    ", stores)
        yield f"    softmax {node.result}" + (f", {node.sink}" if node.sink else ""), ()
    elif isinstance(node, Extern):
        yield f"  {_extern_line(node)}", node.spans
    elif isinstance(node, Loop):
        head = f"  loop {node.name} {_axes(node.axes)}" + (f" reduce {_axes(node.reduction)}" if node.reduction else "")
        yield head + (f" from {node.origin}" if node.origin else ""), node.spans
        yield from _body(node.body, "    ", stores)
    else:
        head = f"  kernel {node.name} {_axes(node.axes)}"
        head += f" of [{', '.join(node.loops)}]" if node.loops else ""
        head += f" from [{', '.join(node.origins)}]" if node.origins else ""
        yield head, node.spans
        for phase in node.phases:
            yield f"    phase {_axes(phase.axes)}", ()
            yield from _body(phase.body, "      ", stores)


def _symbol_source(graph: Graph, name: str) -> str:
    position, dimension = graph.symbols[name]
    owner = graph.inputs[position]
    if dimension < 0:
        source = owner
    else:
        rank = len(graph.buffers[owner].sizes)
        source = f"{owner}.{dimension}" if dimension < rank else f"{owner}.stride{dimension - rank}"
    return f"{name} = {source}" + (f" hint {graph.hints[name]}" if name in graph.hints else "")


def _lines(graph: Graph) -> Iterator[tuple[str, tuple[Span, ...]]]:
    head = f"graph {graph.name}"
    if graph.symbols:
        head += f" symbols [{', '.join(_symbol_source(graph, n) for n in graph.symbols)}]"
    yield head, ()
    for name in graph.inputs:
        yield (f"  {_buffer_line(graph, graph.buffers[name])}" if name in graph.buffers else f"  input {name}: int"), ()
    for buffer in graph.buffers.values():
        if buffer.name not in graph.inputs:
            yield f"  {_buffer_line(graph, buffer)}", ()
    for node in graph.nodes:
        yield from _node_lines(node)
    for name in graph.donated:
        yield f"  donated {name}", ()
    for new, old in graph.reuse.items():
        yield f"  reuse {new} = {old}", ()
    for written, value in graph.writes.items():
        yield f"  write {written} = {value}", ()
    outputs = ["None" if o is None else o if isinstance(o, str) else show_expression(sympy.sympify(o))
               for o in graph.outputs]  # fmt: skip
    yield f"  return {', '.join(outputs)}".rstrip(), ()


def lines(graph: Graph) -> list[str]:
    """The lines of the graph, without comments."""
    return [line for line, _ in _lines(graph)]


def show(graph: Graph) -> tuple[str, tuple[Line, ...]]:
    """The graph as text, and for each line that has them the user spans it came from."""
    out: list[str] = []
    lines: list[Line] = []
    for text, spans in _lines(graph):
        if spans:
            first = spans[0]
            text += f"  # {first.file.rpartition('/')[2]}:{first.line}:{first.column + 1}"
            lines.append(Line(len(out) + 1, spans))
        out.append(text)
    return "\n".join(out) + "\n", tuple(lines)


# --- parsing ---------------------------------------------------------------------------------------------------

_BUFFER = re.compile(
    r"(input|constant|buffer|view) (\S+): (\w+)\[(.*?)\] strides \[(.*?)\]"
    r"(?: offset (.*?))?(?: of (\S+))?(?: on (\S+))?$"
)
_OP = re.compile(r"(\S+) = (\w+) (.*) : (\w+)$")
_STORE = re.compile(r"(?:(\S+) = )?store (\S+?)\[(.*)\] = (?:(\w+) )?(\S+)$")
_LOAD = re.compile(r"(\S+?)\[(.*)\]$")
_RANDOM = re.compile(r"(\w+), (\w+), (\d+)\[(.*)\]$")
_EXTERN = re.compile(r"extern (\S+)(?: \[(.*?)\])? = ([\w.]+)\((.*)\)(?: mutates \[(.*?)\])?(?: from (\S+))?"
                     r"(?: because (\".*\"))?$")  # fmt: skip
_COMMENT = re.compile(r"\s\s#.*$")


def split_top(text: str) -> list[str]:
    """Splits at commas that no bracket, parenthesis or quote encloses."""
    parts, depth, quote, current = [], 0, "", ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if c == "," and depth == 0 and not quote:
            parts.append(current.strip())
            current = ""
        else:
            current += c
    return [*parts, current.strip()] if current.strip() or parts else []


def _parse_exprs(text: str) -> tuple[Expr, ...]:
    return tuple(parse_expression(p) for p in split_top(text))


def _parse_axes(text: str) -> tuple[Axis, ...]:
    pairs = (p.split(" < ", 1) for p in split_top(text))
    return tuple(Axis(name, parse_expression(size)) for name, size in pairs)


def _parse_number(text: str) -> Any:
    return {"True": True, "False": False, "inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")}.get(
        text
    ) if text in {"True", "False", "inf", "-inf", "nan"} else ast.literal_eval(text)  # fmt: skip


class _Parser:
    """Reads one graph line by line; ``text`` is kept for messages."""

    def __init__(self, text: str) -> None:
        self.lines = [_COMMENT.sub("", line).strip() for line in text.splitlines()]
        self.name = ""
        self.symbol_text: list[str] = []
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.outputs: tuple[Any, ...] = ()
        self.reuse: dict[str, str] = {}
        self.writes: dict[str, str] = {}
        self.donated: list[str] = []
        self.bodies: list[tuple[tuple[Axis, ...], list[Op]]] = []
        self.pending: dict[int, list[tuple[tuple[Axis, ...], list[Op]]]] = {}
        self.stores = 0

    def graph(self) -> Graph:
        for number, line in enumerate(self.lines, 1):
            if line:
                try:
                    self._line(line)
                except (ValueError, KeyError, SyntaxError, AttributeError) as error:
                    raise ValueError(f"line {number}: {error}\n  {line}") from error
        symbols, hints = self._symbols()
        nodes = tuple(itertools.starmap(self._finished, enumerate(self.nodes)))
        return Graph(
            self.name, tuple(self.inputs), self.buffers, nodes, self.outputs, symbols=symbols, hints=hints,
            constants=dict.fromkeys(self.constants), reuse=self.reuse, writes=self.writes,
            donated=tuple(self.donated),
        )  # fmt: skip

    def _symbols(self) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
        symbols: dict[str, tuple[int, int]] = {}
        hints: dict[str, int] = {}
        for part in self.symbol_text:
            found = re.fullmatch(r"(\w+) = (\w+)(?:\.(stride)?(\d+))?(?: hint (-?\d+))?", part)
            if found is None:
                raise ValueError(f"not a symbol: {part!r}")
            name, owner, stride, dimension, hint = found.groups()
            at = int(dimension) if dimension is not None else -1
            symbols[name] = (self.inputs.index(owner), at + (len(self.buffers[owner].sizes) if stride else 0))
            if hint is not None:
                hints[name] = int(hint)
        return symbols, hints

    def _line(self, line: str) -> None:
        word = line.partition(" ")[0]
        rule = _RULES.get(word)
        if rule is not None and not line.startswith(f"{word} = "):
            rule(self, line)
        else:
            self._op(line)

    def _graph_line(self, line: str) -> None:
        found = re.fullmatch(r"graph (\S+)(?: symbols \[(.*)\])?", line)
        if found is None:
            raise ValueError("expected: graph NAME [symbols [...]]")
        self.name = found[1]
        self.symbol_text = split_top(found[2] or "")

    def _buffer_line(self, line: str) -> None:
        if line.endswith(": int"):
            self.inputs.append(line[6:-5])
            return
        found = _BUFFER.fullmatch(line)
        if found is None:
            raise ValueError("expected: buffer NAME: dtype[sizes] strides [strides]")
        kind, name, dtype, sizes, strides, offset, storage, device = found.groups()
        self.buffers[name] = Buffer(
            name, dtype, _parse_exprs(sizes), _parse_exprs(strides), parse_expression(offset or "0"), storage or "",
            device or "cpu",
        )  # fmt: skip
        if kind == "input":
            self.inputs.append(name)
        elif kind == "constant":
            self.constants.append(name)

    def _loop_line(self, line: str) -> None:
        found = re.fullmatch(r"loop (\S+) \[(.*?)\](?: reduce \[(.*?)\])?(?: from (\S+))?", line)
        if found is None:
            raise ValueError("expected: loop NAME [axes] [reduce [axes]] [from ORIGIN]")
        self._start(Loop(found[1], _parse_axes(found[2]), _parse_axes(found[3] or ""), (), found[4] or ""))

    def _kernel_line(self, line: str) -> None:
        found = re.fullmatch(r"kernel (\S+) \[(.*?)\](?: of \[(.*?)\])?(?: from \[(.*?)\])?", line)
        if found is None:
            raise ValueError("expected: kernel NAME [axes] [of [loops]] [from [origins]]")
        self._start(Kernel(found[1], _parse_axes(found[2]), (), tuple(split_top(found[3] or "")),
                           tuple(split_top(found[4] or ""))))  # fmt: skip

    def _start(self, node: Node) -> None:
        self.nodes.append(node)
        self.bodies = self.pending[len(self.nodes) - 1] = [] if isinstance(node, Kernel) else [((), [])]
        self.stores = 0

    def _phase_line(self, line: str) -> None:
        self.bodies.append((_parse_axes(line[7:-1]), []))

    def _finished(self, position: int, node: Node) -> Node:
        """Nodes are frozen, so they get the bodies that were read after their heading at the end."""
        bodies = self.pending.get(position, [])
        if isinstance(node, Loop):
            return dataclasses.replace(node, body=tuple(bodies[0][1]))
        if isinstance(node, Attention):
            return node.with_body(tuple(bodies[0][1]), node.result, node.sink)
        if isinstance(node, Kernel):
            return dataclasses.replace(node, phases=tuple(Phase(axes, tuple(body)) for axes, body in bodies))
        return node

    def _op(self, line: str) -> None:
        store = _STORE.fullmatch(line)
        if store:
            name, target, index, kind, value = store.groups()
            args = (target, parse_expression(index), value, *([kind] if kind else []))
            op = Op(name or f"store{self.stores}", "store", args, element(self.buffers[target].dtype))
            self.stores += 1
        else:
            found = _OP.fullmatch(line)
            if found is None:
                raise ValueError("not a line of the loop IR")
            name, kind, rest, dtype = found.groups()
            op = Op(name, kind, _parse_args(kind, rest), dtype)
        self.bodies[-1][1].append(op)

    def _attention_line(self, line: str) -> None:
        found = re.fullmatch(r"attention (\S+)(?: \[([^<]*?)\])? \[(.*?<.*?)\] = (\S+), (\S+), (\S+)(?: splits (\d+))?( nan)?"
                             r"(?: of (\S+))?(?: from (\S+))?", line)  # fmt: skip
        if found is None:
            raise ValueError("expected: attention NAME [axes] = QUERY, KEY, VALUE")
        name, outputs, axes, *operands, splits, nan, product, origin = found.groups()
        made = (name,) if outputs is None else tuple(split_top(outputs))
        self._start(Attention(name, "fuselens.attention.default", tuple(map(Ref, operands)), (), made, origin=origin or "",
                              axes=_parse_axes(axes), splits=int(splits or 1), nan=bool(nan), product=product or ""))  # fmt: skip

    def _softmax_line(self, line: str) -> None:
        result, _, sink = line.removeprefix("softmax ").partition(", ")
        self.nodes[-1] = dataclasses.replace(self.nodes[-1], result=result, sink=sink)  # pyright: ignore

    def _extern_line(self, line: str) -> None:
        found = _EXTERN.fullmatch(line)
        if found is None:
            raise ValueError("expected: extern NAME = target(args)")
        name, outputs, target, args, mutates, origin, reason = found.groups()
        positional, keywords = [], []
        for part in split_top(args):
            keyword = re.match(r"(\w+)=(?!=)", part)
            if keyword:
                keywords.append((keyword[1], self._argument(part[keyword.end():])))  # fmt: skip
            else:
                positional.append(self._argument(part))
        made = (name,) if outputs is None else tuple("" if o == "_" else o for o in split_top(outputs))
        self.nodes.append(Extern(name, target, tuple(positional), tuple(keywords), made,
                                 tuple(split_top(mutates or "")), json.loads(reason) if reason else "",
                                 origin or ""))  # fmt: skip

    def _argument(self, text: str) -> Any:
        if text.startswith("["):
            return tuple(self._argument(p) for p in split_top(text[1:-1]))
        if text in self.buffers:
            return Ref(text)
        if text.startswith("torch."):
            import torch

            name, _, inner = text[6:].partition("(")
            return getattr(torch, name)(ast.literal_eval(inner[:-1])) if inner else getattr(torch, name)
        if text in ("inf", "-inf", "nan"):
            return float(text)
        try:
            return ast.literal_eval(text)
        except ValueError:
            return parse_expression(text)

    def _donated_line(self, line: str) -> None:
        self.donated.append(line[8:])

    def _reuse_line(self, line: str) -> None:
        new, _, old = line[6:].partition(" = ")
        self.reuse[new] = old

    def _write_line(self, line: str) -> None:
        written, _, value = line[6:].partition(" = ")
        self.writes[written] = value

    def _return_line(self, line: str) -> None:
        self.outputs = tuple(
            None if p == "None" else p if p in self.buffers else parse_expression(p) for p in split_top(line[7:])
        )


_RULES: dict[str, Callable[[_Parser, str], None]] = {
    "graph": _Parser._graph_line,
    "input": _Parser._buffer_line,
    "constant": _Parser._buffer_line,
    "buffer": _Parser._buffer_line,
    "view": _Parser._buffer_line,
    "loop": _Parser._loop_line,
    "kernel": _Parser._kernel_line,
    "phase": _Parser._phase_line,
    "attention": _Parser._attention_line,
    "softmax": _Parser._softmax_line,
    "extern": _Parser._extern_line,
    "donated": _Parser._donated_line,
    "reuse": _Parser._reuse_line,
    "write": _Parser._write_line,
    "return": _Parser._return_line,
}


def _parse_args(kind: str, rest: str) -> tuple[Any, ...]:
    if kind == "load":
        found = _LOAD.fullmatch(rest)
        if found is None:
            raise ValueError("expected: load STORAGE[index]")
        return found[1], parse_expression(found[2])
    if kind in ("reduce", "scan"):
        fold, _, value = rest.partition(" ")
        return fold, value
    if kind == "const":
        return (_parse_number(rest),)
    if kind == "index":
        return (parse_expression(rest),)
    if kind == "random":
        found = _RANDOM.fullmatch(rest)
        if found is None:
            raise ValueError("expected: random KEY, KEY, STREAM[index]")
        return found[1], found[2], int(found[3]), parse_expression(found[4])
    if kind == "bounds":
        value, size, *wrap = split_top(rest)
        return value, parse_expression(size), wrap == ["wrap"]
    return tuple(p.strip() for p in rest.split(","))


def parse(text: str) -> Graph:
    """Reads the text of one graph. Raises ValueError with the line."""
    return _Parser(text).graph()
