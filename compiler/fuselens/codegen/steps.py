"""A host program as data: the statements of the Python one, in words that ``runtime/_steps.h`` runs without Python.

A word is a 64-bit integer: an operation, or what it takes. Tensors lie in *slots*: inputs, constants, then what is made.
Sizes, strides and other integers lie in an array of *numbers*; those that depend on sizes are computed first. Memory that
only kernels see has slots of its own, and is no tensor.
"""

from __future__ import annotations

import ast
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import sympy
from sympy import Expr

from ..ir.contracts.native import SCALAR_TYPES
from ..ir.contracts.source import HostProgram, PythonOperator, Source, Steps, Unsupported
from ..ir.dtypes import NAMES
from ..ir.loops import ITEMSIZE, Buffer, Extern, Graph, Ref, extern_reads
from .expressions import PYTHON, print_index
from .host import Host, Statement, event_name, python_operator, used_outputs
from .operators import Shim, direct

_SCALAR_TYPES = {
    short: SCALAR_TYPES[name]
    for dtype, short in NAMES.items()
    if (name := str(dtype).removeprefix("torch.")) in SCALAR_TYPES
}


class Op(IntEnum):
    """In the order of ``enum Operation`` in runtime/_steps.h, and so are those below."""

    END = 0
    SIZE = 1  # number, slot, dimension
    STRIDE = 2  # number, slot, dimension
    INTEGER = 3  # number, input
    COMPUTE = 4  # number, how many words of postfix, (what to do, with what) …
    NEW = 5  # slot, dtype, device, its index, Python operator, rank, numbers
    ALLOCATE = 6  # memory, Python operator, number
    VIEW = 7  # slot, base, rank, numbers, number
    OVER = 8  # slot, base, dtype, rank, numbers
    LAUNCH = 9  # kernel, number, how many addresses, slots (-1 - memory) …, how many sizes, numbers …
    CALL = 10  # see _call
    SETTLE = 11  # slot, dtype, rank, numbers, Python operator
    DROP = 12  # slot
    RELEASE = 13  # memory
    RESULT = 14  # which, slot
    INTEGER_RESULT = 15  # which, number
    WROTE = 16


class Postfix(IntEnum):
    NUMBER = 0
    ADD = 1
    SUBTRACT = 2
    MULTIPLY = 3
    DIVIDE = 4
    MODULO = 5
    LEAST = 6
    GREATEST = 7


class Argument(IntEnum):
    """Of a function of the shim."""

    TENSOR = 0  # slot
    OPTIONAL = 1  # address of a slot
    UNDEFINED = 2  # a tensor that is none
    DOUBLE = 3  # bits
    WORD = 4  # an integer or null
    NUMBER = 5
    LIST = 6  # address of numbers
    LISTS = 7  # address of an address of numbers
    DATA = 8  # address of words of the program
    RESULT = 9  # address for a tensor
    INTEGER_RESULT = 10  # address for an integer that nobody reads


_OPERATIONS = {
    ast.Add: Postfix.ADD, ast.Sub: Postfix.SUBTRACT, ast.Mult: Postfix.MULTIPLY, ast.FloorDiv: Postfix.DIVIDE,
    ast.Mod: Postfix.MODULO, "min": Postfix.LEAST, "max": Postfix.GREATEST,
}  # fmt: skip


def to_host(graph: Graph, sources: Mapping[str, Source], steps: bool) -> Source:
    """The Python host program of ``graph``; with ``steps`` also as data, where that can express it.

    ``sources`` holds the kernels' source by language: "cpp" or "triton". Raises Unsupported for arguments of extern
    calls that have no Python text.
    """
    host = Host(graph, sources)
    source = host.write()
    if not steps or "cpp" in sources:
        return source
    try:
        return replace(source, program=_Encoder(host).encode())
    except Unsupported:
        return source


class _Encoder:
    def __init__(self, host: Host) -> None:
        self.graph, self.infos, self.statements = host.graph, host.infos, host.statements
        graph = self.graph
        given = (*graph.inputs, *graph.constants)
        self.slot = {name: k for k, name in enumerate(given)}  # of buffers that are there
        self.given = len(given)
        self.holders: dict[int, set[str]] = {}  # slot → buffers in it
        self.free: dict[str, list[int]] = {"slot": [], "memory": []}
        self.counts = {"slot": self.given, "memory": 0}
        self.numbers: list[int] = []
        self.lists: dict[tuple[Any, ...], int] = {}
        self.symbols: dict[str, int] = {}
        self.first: list[int] = []  # words that compute numbers
        self.words: list[int] = []
        self.data: list[int] = []  # words that arguments point to
        self.data_places: list[int] = []  # where `words` hold a place in them
        self.operators: dict[PythonOperator, int] = {}
        self.events: list[str] = []
        self.last = 0  # the operator that was called last
        self.kernels: dict[str, int] = {}
        self.functions: dict[str, int] = {}
        roots = graph.roots()
        self.bare = set(roots.values()) - self._seen(roots) - set(given)  # roots that only kernels see
        self.roots = roots

    def _seen(self, roots: Mapping[str, str]) -> set[str]:
        graph = self.graph
        names = [o for o in graph.outputs if isinstance(o, str) and o in graph.buffers]
        for node in graph.nodes:
            if isinstance(node, Extern):
                names += [*extern_reads(node), *(o for o in node.outputs if o), *node.mutates]
        return {roots[n] for n in names if n in roots} | {
            roots[n] for n, b in graph.buffers.items() if not b.device.startswith("cuda")
        }

    def encode(self) -> HostProgram:
        graph = self.graph
        for name, (position, dimension) in graph.symbols.items():
            self._symbol(name, position, dimension)
        for statement in self.statements:
            getattr(self, f"_{statement.kind}")(statement)
        results, outputs = self._outputs()
        start = len(self.first) + len(self.words) + 1
        for place in self.data_places:
            self.words[place] += start
        words = [*self.first, *self.words, Op.END, *self.data]
        kinds = "".join(self._input_kind(k, n) for k, n in enumerate(graph.inputs))
        steps = Steps(
            _packed(words), _packed(self.numbers), self.counts["slot"], self.counts["memory"], tuple(self.kernels),
            tuple(self.functions),
        )  # fmt: skip
        return HostProgram(
            inputs=kinds, constants=tuple(graph.constants), results=results, outputs=outputs,
            operators=tuple(self.operators), releases_lock=True, steps=steps, events=tuple(self.events),
        )  # fmt: skip

    def _input_kind(self, position: int, name: str) -> str:
        if name in self.graph.buffers:
            return "t"
        return "i" if any(at == (position, -1) for at in self.graph.symbols.values()) else "o"

    # --- numbers ---

    def _symbol(self, name: str, position: int, dimension: int) -> None:
        at = self.symbols[name] = len(self.numbers)
        self.numbers.append(0)
        if dimension < 0:
            self.first += [Op.INTEGER, at, position]
            return
        rank = len(self.graph.buffers[self.graph.inputs[position]].sizes)
        if dimension < rank:
            self.first += [Op.SIZE, at, position, dimension]
        else:
            self.first += [Op.STRIDE, at, position, dimension - rank]

    def _list(self, values: Iterable[Expr | int]) -> int:
        """Where these numbers lie side by side."""
        wanted = tuple(sympy.sympify(v) for v in values)
        found = self.lists.get(wanted)
        if found is None:
            found = self.lists[wanted] = len(self.numbers)
            self.numbers += [_word(int(v)) if v.is_Integer else 0 for v in wanted]
            for at, value in enumerate(wanted, found):
                if not value.is_Integer:
                    words = self._postfix(ast.parse(print_index(value, None, PYTHON), mode="eval").body)
                    self.first += [Op.COMPUTE, at, len(words), *words]
        return found

    def _postfix(self, e: ast.expr) -> list[int]:
        if isinstance(e, ast.Name):
            return [Postfix.NUMBER, self.symbols[e.id]]
        if isinstance(e, ast.Constant):
            return [Postfix.NUMBER, self._list([sympy.Integer(e.value)])]  # pyright: ignore[reportArgumentType]
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return [*self._postfix(ast.Constant(0)), *self._postfix(e.operand), Postfix.SUBTRACT, 0]
        if isinstance(e, ast.BinOp):
            return [*self._postfix(e.left), *self._postfix(e.right), _OPERATIONS[type(e.op)], 0]
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name):
            return [*self._postfix(e.args[0]), *self._postfix(e.args[1]), _OPERATIONS[e.func.id], 0]
        raise Unsupported(f"index expression {ast.unparse(e)}")

    def _shape(self, buffer: Buffer) -> tuple[int, int]:
        return len(buffer.sizes), self._list([*buffer.sizes, *buffer.strides])

    # --- slots ---

    def _take(self, buffer: str, kind: str) -> int:
        """A slot for what ``buffer`` is about to be."""
        if self.free[kind]:
            slot = self.free[kind].pop()
        else:
            slot = self.counts[kind]
            self.counts[kind] += 1
        if kind == "memory":
            slot = -1 - slot
        if buffer:
            self.slot[buffer] = slot
            self.holders[slot] = {buffer}
        return slot

    def _share(self, buffer: str, earlier: str) -> None:
        slot = self.slot[buffer] = self.slot[earlier]
        self.holders.setdefault(slot, {earlier}).add(buffer)

    def _drop(self, statement: Statement) -> None:
        slot = self.slot.pop(statement.name)
        holders = self.holders.get(slot, {statement.name})
        holders.discard(statement.name)
        if holders:
            return
        if slot < 0:
            self.words += [Op.RELEASE, -1 - slot]
            self.free["memory"].append(-1 - slot)
        else:
            if slot >= len(self.graph.inputs) or self._input_kind(slot, self.graph.inputs[slot]) == "t":
                self.words += [Op.DROP, slot]
            if slot >= self.given:
                self.free["slot"].append(slot)

    # --- statements ---

    def _new(self, statement: Statement) -> None:
        buffer = self.graph.buffers[statement.name]
        device, _, index = buffer.device.partition(":")
        if buffer.dtype not in _SCALAR_TYPES or device not in ("cpu", "cuda"):
            raise Unsupported(f"a tensor of {buffer.dtype} on {buffer.device}")
        if self.roots[buffer.name] in self.bare:
            extent = self._bytes(buffer)
            again = self._operator(("n0",), f"torch.empty(n0, dtype=torch.uint8, device={buffer.device!r})", 0, 1, -1)
            self.words += [Op.ALLOCATE, -1 - self._take(buffer.name, "memory"), again, self._list([extent])]
            return
        rank, at = self._shape(buffer)
        names = [f"n{k}" for k in range(2 * rank)]
        dtype = next(str(d) for d, short in NAMES.items() if short == buffer.dtype)
        call = f"torch.empty_strided([{', '.join(names[:rank])}], [{', '.join(names[rank:])}], dtype={dtype}, device={buffer.device!r})"
        again = self._operator(tuple(names), call, 0, 2 * rank, -1)
        where = (int(device == "cuda"), int(index) if index else -1)
        self.words += [Op.NEW, self._take(buffer.name, "slot"), _SCALAR_TYPES[buffer.dtype], *where, again, rank, at]

    def _bytes(self, buffer: Buffer) -> Expr:
        if any(s == 0 for s in buffer.sizes):
            return sympy.S.Zero
        extent: Expr = sympy.S.One
        for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
            extent = extent + (size - 1) * stride
        return sympy.expand(extent * ITEMSIZE[buffer.dtype])

    def _alias(self, statement: Statement) -> None:
        self._share(statement.name, statement.base)

    def _view(self, statement: Statement) -> None:
        buffer = self.graph.buffers[statement.name]
        offset = buffer.offset if buffer.storage else sympy.S.Zero
        base = self.slot[statement.base]
        if base < 0:
            raise Unsupported(f"a view of {statement.base}, which is no tensor")
        rank, at = self._shape(buffer)
        self.words += [Op.VIEW, self._take(buffer.name, "slot"), base, rank, at, self._list([offset])]

    def _reshape(self, statement: Statement) -> None:
        if self.slot[statement.base] < 0:
            self._share(statement.name, statement.base)
        else:
            self._view(statement)

    def _reinterpret(self, statement: Statement) -> None:
        buffer, base = self.graph.buffers[statement.name], self.slot[statement.base]
        if base < 0:
            self._share(statement.name, statement.base)
            return
        if self.roots[statement.base] in self.graph.inputs or buffer.dtype not in _SCALAR_TYPES:
            raise Unsupported(f"{buffer.dtype} in the memory of another")
        rank, at = self._shape(buffer)
        self.words += [Op.OVER, self._take(buffer.name, "slot"), base, _SCALAR_TYPES[buffer.dtype], rank, at]

    def _kernel(self, statement: Statement) -> None:
        assert statement.node is not None
        info = self.infos[statement.node.name]
        kernel = self.kernels.setdefault(info.function, len(self.kernels))
        addresses = [self.slot[name] for name in info.arguments]
        sizes = [self.symbols[name] for name in info.sizes]
        programs = self._list([info.launch["grid"]])
        self.events.append(event_name(statement.node, info.function))
        self.words += [Op.LAUNCH, kernel, programs, len(addresses), *addresses, len(sizes), *sizes]

    def _wrote(self, statement: Statement) -> None:
        self.words.append(Op.WROTE)

    def _settle(self, statement: Statement) -> None:
        buffer = self.graph.buffers[statement.name]
        if buffer.dtype not in _SCALAR_TYPES:
            raise Unsupported(f"an operator gives a tensor of {buffer.dtype}")
        rank, at = self._shape(buffer)
        self.words += [Op.SETTLE, self.slot[buffer.name], _SCALAR_TYPES[buffer.dtype], rank, at, self.last]

    # --- operators ---

    def _operator(self, parameters: tuple[str, ...], call: str, tensors: int, numbers: int, results: int) -> int:
        made = PythonOperator("", parameters, call, tensors, numbers, results)
        return self.operators.setdefault(made, len(self.operators))

    def _call(self, statement: Statement) -> None:
        """Words: function (-1: none), Python operator; how many results, a slot (-1) for each; how many tensors, a slot for
        each; the integers after them; how many arguments of the function, kind and value of each.

        What cannot be called by address, or fails, is called by Python, which raises the operator's own error.
        """
        node = statement.node
        assert isinstance(node, Extern)
        used = used_outputs(node)
        made, tensors, numbers = python_operator(node, "")
        self.last = again = self.operators.setdefault(made, len(self.operators))
        given = [self.slot[name] for name in tensors]
        after = self._list(numbers) if numbers else 0
        found = self._direct(node)
        if found is not None and found[0].into:
            self._new(Statement("new", node.name))
        else:
            for name in filter(None, used):
                self._take(name, "slot")
        results = [self.slot[name] if name else -1 for name in used]
        words = self._arguments(node, *found) if found is not None else []
        function = -1
        if found is not None:
            symbol = f"aoti_torch_{self._device(node)}_{found[0].function}"
            function = self.functions.setdefault(symbol, len(self.functions))
        self.events.append(event_name(node))
        self.words += [Op.CALL, function, again, len(results), *results, len(given), *given, after, len(words) // 2]
        self.words += self._placed(words)

    def _device(self, node: Extern) -> str:
        """Where all tensors of an operator are, else nothing."""
        names = (*extern_reads(node), *(o for o in node.outputs if o))
        devices = {self.graph.buffers[n].device.partition(":")[0] for n in names if n in self.graph.buffers}
        return devices.pop() if len(devices) == 1 else ""

    def _direct(self, node: Extern) -> tuple[Shim, tuple[tuple[str, Any], ...]] | None:
        found = direct(node, self._device(node))
        return None if found is None or any(kind in "sNE" for kind, _ in found[1]) else found

    def _arguments(self, node: Extern, shim: Shim, values: Iterable[tuple[str, Any]]) -> list[int]:
        words = [Argument.TENSOR, self.slot[node.name]] if shim.into else []
        for kind, value in values:
            words += self._argument(kind, value)
        if not shim.into:
            for k, kind in enumerate(shim.results):
                words += [Argument.RESULT, k] if kind == "t" else [Argument.INTEGER_RESULT, 0]
        return words

    def _argument(self, kind: str, value: Any) -> list[int]:
        null = [Argument.WORD, 0]
        if kind in "tTU" and isinstance(value, Ref):
            return [Argument.OPTIONAL if kind == "T" else Argument.TENSOR, self.slot[value.name]]
        if kind == "U":
            return [Argument.UNDEFINED, 0]
        if kind == "d":
            return [Argument.DOUBLE, _bits(value)]
        if kind == "b":
            return [Argument.WORD, int(value)]
        if kind == "l":
            return [Argument.NUMBER, self._list([value])]
        if kind == "L":
            return [Argument.LIST, self._list(value), Argument.WORD, len(value)]
        if value is None:
            return null if kind in "TD" else null + null
        if kind == "D":
            return [Argument.DATA, self._data([_bits(value)])]
        if kind == "Z":
            return [Argument.LISTS, self._list(value), Argument.WORD, len(value)]
        assert kind == "M"
        bits = struct.pack(f"{len(value) + len(value) % 2}i", *map(int, value), *[0] * (len(value) % 2))
        return [Argument.DATA, self._data(array("q", bits)), Argument.WORD, len(value)]

    def _data(self, words: Iterable[int]) -> int:
        at = len(self.data)
        self.data += words
        return at

    def _placed(self, words: list[int]) -> list[int]:
        """Arguments as they follow the words so far: places in `data` are made final when all words are known."""
        for k in range(0, len(words), 2):
            if words[k] == Argument.DATA:
                self.data_places.append(len(self.words) + k + 1)
        return words

    # --- results ---

    def _outputs(self) -> tuple[str, tuple[int | None, ...]]:
        """Kinds of results, and for each output where it comes from."""
        kinds = ""
        outputs: list[int | None] = []
        known: dict[int, int] = {}
        for value in self.graph.outputs:
            if value is None:
                outputs.append(None)
            elif isinstance(value, str) and value not in self.graph.buffers:  # an input that is no tensor
                outputs.append(-1 - self.graph.inputs.index(value))
            elif isinstance(value, str):
                slot = self.slot[value]
                if slot < self.given:
                    outputs.append(-1 - slot)
                    continue
                if slot not in known:
                    known[slot] = len(kinds)
                    self.words += [Op.RESULT, len(kinds), slot]
                    kinds += "t"
                outputs.append(known[slot])
            else:
                self.words += [Op.INTEGER_RESULT, len(kinds), self._list([value])]
                outputs.append(len(kinds))
                kinds += "i"
        return kinds, tuple(outputs)


def _word(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise Unsupported(f"{value} has more than 64 bits")
    return value


def _packed(words: Sequence[int]) -> bytes:
    return array("q", [int(w) for w in words]).tobytes()


def _bits(value: float) -> int:
    return struct.unpack("q", struct.pack("d", float(value)))[0]
