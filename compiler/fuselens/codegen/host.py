"""The host program: readable Python that allocates, calls kernels and ATen operators in order, and returns.

It is a document people open, so it says what it does: shapes, which operations each kernel came from, what is freed
when. Graphs run by its statements as data (``steps.py``), or by itself where those cannot be used.
Every name it uses that it does not define (kernels, constants, ``new_f32``) is bound by ``runtime.compile_graph``.
A Triton kernel is launched by ``kernel(stream, programs, *addresses, *sizes)``.

Pointers: index expressions count from the start of a storage. A storage that is a graph input starts at that tensor's
``data_ptr()``; a view of it has an ``offset`` relative to that.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import sympy
from sympy import Expr

from ..ir.contracts.source import HostProgram, KernelInfo, PythonOperator, Source, Unsupported, Writer, operator_place
from ..ir.loops import Attention, Buffer, Extern, Graph, Kernel, Node, Ref, extern_reads
from ..ir.user_kernels import LAUNCH, launch_of
from .expressions import PYTHON, print_factor, print_index

TORCH_NAMES: dict[str, str] = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool", "c64": "complex64", "c128": "complex128",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "c32": "complex32",
}  # fmt: skip


def event_name(node: Kernel | Extern, kernel: str = "") -> str:
    """What a profiler calls a kernel or an operator: its name, and the line of the user's that it comes first from."""
    name = kernel or node.name
    if isinstance(node, Extern):
        launched = node.target == str(LAUNCH)
        name = launch_of(str(node.args[0])).name if launched else "::".join(node.target.split(".")[:2])
    span = next(iter(node.spans), None)
    return name if span is None else f"{name} ({PurePath(span.file).name}:{span.line})"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a host program, for ``steps.py``. ``kind`` and what it does: "kernel" and "call" run ``node``;

    ``name`` is a tensor made anew ("new"), another name ("alias"), a view ("view"), another shape ("reshape") or dtype
    ("reinterpret") of ``base``, laid out as kernels expect ("settle"), or not needed any more ("drop"). From "wrote" on,
    inputs have been written to.
    """

    kind: str
    name: str = ""
    base: str = ""
    node: Kernel | Extern | None = None


# What graphs call for a few numbers at a time, by torch's Python binding: that takes a quarter of the operator's time.
_BINDINGS = {"aten.randint.low": "torch.randint"}
_RESERVED = frozenset(
    {"call", "inputs", "torch", "reinterpret", "settled", "check_errors", "stream", "current_stream", "after_writing"}
)


class Host:
    """Writes the host program of a graph. ``sources`` holds the kernels' source by language: "cpp" or "triton"."""

    def __init__(self, graph: Graph, sources: Mapping[str, Source]) -> None:
        self.graph = graph
        self.triton = "triton" in sources and "cpp" not in sources
        kernels = sources.get("cpp") or sources.get("triton")
        self.infos: dict[str, KernelInfo] = {k.name: k for k in kernels.kernels} if kernels else {}
        self.out = Writer("#", "    ")
        self.statements: list[Statement] = []
        self.names: dict[str, str] = {}  # of variables
        self.taken: set[str] = set()
        self.makers: dict[str, tuple[str, str]] = {}  # what the runtime binds: name → dtype, device
        self.made: set[str] = set()  # buffers that exist as tensors at this point
        self.last = self._last_uses()
        self.position = 0  # of the node being written
        self.outputs = frozenset(o for o in graph.outputs if isinstance(o, str))
        self.fixed = {n for n in graph.inputs if n not in graph.donated}
        self.inside: dict[
            str, list[str]
        ] = {}  # buffer → those that are made from it: views, and what takes over its memory
        for buffer in graph.buffers.values():
            for base in {buffer.storage, graph.reuse.get(buffer.name, "")} - {""}:
                self.inside.setdefault(base, []).append(buffer.name)
        self._checks = self._wrote = False

    # --- names ---

    def _name(self, buffer: str) -> str:
        found = self.names.get(buffer)
        if found is None:
            found = re.sub(r"\W", "_", buffer)
            if keyword.iskeyword(found) or not found[0].isalpha() or found in _RESERVED or found in self.infos:
                found = f"v_{found}"
            while found in self.taken:
                found += "_"
            self.names[buffer] = found
            self.taken.add(found)
        return found

    def _did(self, kind: str, name: str = "", base: str = "", node: Kernel | Extern | None = None) -> None:
        self.statements.append(Statement(kind, name, base, node))

    def _last_uses(self) -> dict[str, int]:
        """The last node that uses each buffer's tensor (views and takeovers use what they lie in)."""
        last: dict[str, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for name in self._uses(node):
                last[name] = position
        return last

    def _uses(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, Kernel):
            own = self.infos[node.name].arguments if self.triton and node.name in self.infos else ()
            return tuple(dict.fromkeys((*node.reads(), *node.writes(), *own)))
        if isinstance(node, Extern):
            named = (*extern_reads(node), *(o for o in node.outputs if o))
            owners = tuple(self.graph.buffers[n].owner for n in named)
            return tuple(dict.fromkeys((*named, *owners)))
        raise Unsupported(f"{node.name} is not a kernel: the graph was not fused")

    # --- the program ---

    def write(self) -> Source:
        """The program: a module with ``call(inputs: tuple) -> tuple``.

        Raises Unsupported for arguments of extern calls that have no Python text.
        """
        graph, out = self.graph, self.out
        out.put(f"# Host program of graph {graph.name}. Written by fuselens.")
        out.put(
            "# Bound by the runtime: the kernels, the graph's constants, and new_<dtype>(sizes, strides), which makes an"
        )
        out.put("# uninitialised tensor.")
        out.put()
        out.open("def call(inputs):")
        tensors = [self._name(n) for n in graph.inputs]
        if tensors:
            out.put(f"{', '.join(tensors)}{',' if len(tensors) == 1 else ''} = inputs")
            out.open("if type(inputs) is list:")
            out.put("inputs.clear()  # the caller gives them up: each dies when it has been read")
            out.close("")
        self.made |= set(graph.inputs) | set(graph.constants)
        for name in graph.constants:
            self._name(name)
        for name, (position, dimension) in graph.symbols.items():
            out.put(f"{name} = {self._symbol_source(position, dimension)}")
        if self.triton and self.infos:
            out.put("stream = current_stream()")
        self._checks = not self.triton and any(i.checks for i in self.infos.values())
        for position, node in enumerate(graph.nodes):
            self.position = position
            if isinstance(node, (Kernel, Attention)):
                self._kernel(node)
            elif isinstance(node, Extern):
                self._extern(node)
            else:
                raise Unsupported(f"{node.name} is not a kernel: the graph was not fused")
            self._free(node, position)
        results = [self._output(o) for o in graph.outputs]
        self._check_errors()
        out.put(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        if self._wrote:
            out.close("")
        out.close("")
        constants = {self._name(c): c for c in graph.constants}
        return Source("host", out.text(), out.lines(), tuple(self.infos.values()), dict(self.makers), constants)

    def _check_errors(self) -> None:
        """Before inputs are written to (nothing may fail after that), else at the end."""
        if self._checks:
            self.out.put("check_errors()  # an integer was divided by zero, or an index out of range: raise")
            self._checks = False

    def _writes(self) -> None:
        """Inputs have been written to: what fails from here on may not be repeated."""
        if not self._wrote and self.position + 1 < len(self.graph.nodes):
            self._wrote = True
            self._did("wrote")
            self.out.open("with after_writing:  # to an input: if anything fails now, the call is not repeated")

    def _symbol_source(self, position: int, dimension: int) -> str:
        owner = self.graph.inputs[position]
        if dimension < 0:
            return self._name(owner)
        rank = len(self.graph.buffers[owner].sizes)
        if dimension < rank:
            return f"{self._name(owner)}.size({dimension})"
        return f"{self._name(owner)}.stride({dimension - rank})"

    def _tuple(self, values: tuple[Expr, ...]) -> str:
        texts = [print_index(v, None, PYTHON) for v in values]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def _extent(self, buffer: Buffer) -> Expr:
        """Elements from the start of the storage to the end of the buffer, which is not empty."""
        total: Expr = sympy.S.One + buffer.offset
        for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
            total = total + (size - 1) * stride
        return total

    def _tensor(self, name: str) -> str:
        """The variable of a buffer's tensor; makes views when they are first needed."""
        if name not in self.made:
            buffer = self.graph.buffers[name]
            if not buffer.storage:
                self._allocate(buffer)
            else:
                base = self._tensor(buffer.storage)
                offset = print_index(buffer.offset, None, PYTHON)
                if buffer.storage in self.graph.inputs or buffer.storage in self.graph.constants:
                    start = f"{base}.storage_offset()" + ("" if offset == "0" else f" + {offset}")
                else:
                    start = offset
                text = f"{base}.as_strided({self._tuple(buffer.sizes)}, {self._tuple(buffer.strides)}, {start})"
                self.out.put(f"{self._name(name)} = {text}")
                self._did("view", name, buffer.storage)
                self.made.add(name)
        return self._name(name)

    def _allocate(self, buffer: Buffer) -> None:
        name, out = self._name(buffer.name), self.out
        sizes, strides, dtype = self._tuple(buffer.sizes), self._tuple(buffer.strides), TORCH_NAMES[buffer.dtype]
        self.made.add(buffer.name)
        earlier = self.graph.reuse.get(buffer.name)
        if earlier is None:
            self.makers[maker_name(buffer)] = (buffer.dtype, buffer.device)
            out.put(f"{name} = {maker_name(buffer)}({sizes}, {strides})")
            self._did("new", buffer.name)
            return
        old = self.graph.buffers[earlier]
        base = self._tensor(earlier)
        same = old.dtype == buffer.dtype
        if same and (old.sizes, old.strides) == (buffer.sizes, buffer.strides):
            out.put(f"{name} = {base}  # takes over its memory")
            self._did("alias", buffer.name, earlier)
        elif same and buffer.name not in self.outputs:  # a result is no view
            out.put(f"{name} = {base}.as_strided({sizes}, {strides}, 0)  # takes over its memory")
            self._did("reshape", buffer.name, earlier)
        else:
            out.put(f"{name} = reinterpret({base}, {sizes}, {strides}, torch.{dtype})  # takes over its memory")
            self._did("reinterpret", buffer.name, earlier)
        kept = earlier in self.outputs or earlier in self.graph.inputs
        if self.last.get(earlier, -1) < self.position and not kept:
            out.put(f"del {base}")  # else it would hold the memory when this one is dead
            self._did("drop", earlier)

    def _kernel(self, node: Kernel | Attention) -> None:
        info = self.infos.get(node.name)
        if info is None:
            raise Unsupported(f"no kernel was generated for {node.name}")
        writes = any(self.graph.root(s) in self.fixed for s in info.written)
        if writes:
            self._check_errors()
        tensors = [self._tensor(s) for s in info.arguments]
        origins = ", ".join(dict.fromkeys(info.operations))
        self.out.forget()
        self._did("kernel", node=node)
        if origins:
            self.out.put(f"# {origins}")
        if self.triton:
            grid = print_index(info.launch["grid"], None, PYTHON)
            arguments = ", ".join(["stream", grid, *(f"{t}.data_ptr()" for t in tensors), *info.sizes])
            self.out.put(f"{info.function}({arguments})", node.spans)
        else:
            arguments = ", ".join([*(f"{t}.data_ptr()" for t in tensors), *info.sizes])
            self.out.put(f"{node.name}({arguments})", node.spans)
        if writes:
            self._writes()

    def _extern(self, node: Extern) -> None:
        arguments = [self._argument(a) for a in node.args]
        arguments += [f"{k}={self._argument(v)}" for k, v in node.kwargs]
        call = f"{operator_name(node.target)}({', '.join(arguments)})"
        if any(self.graph.root(n) in self.fixed for n in node.mutates):
            self._writes()
        self._did("call", node=node)
        out = self.out
        out.forget()
        if node.reason:
            out.put(f"# {node.reason}")
        targets = [self._name(o) if o else "_" for o in node.outputs]
        if not any(node.outputs):
            out.put(call, node.spans)
        elif node.outputs == (node.name,):
            out.put(f"{targets[0]} = {call}", node.spans)
        else:
            out.put(f"{', '.join(targets)}{',' * (len(targets) == 1)} = {call}", node.spans)
        for name in node.outputs:
            if name:
                self.made.add(name)
                self._settle(self.graph.buffers[name])

    def _settle(self, buffer: Buffer) -> None:
        """Kernels index by the declared strides and from the storage's start: an operator may have chosen others."""
        if buffer.storage or not buffer.sizes:
            return
        name = self._name(buffer.name)
        self.out.put(
            f"{name} = settled({name}, {self._tuple(buffer.sizes)}, {self._tuple(buffer.strides)}, torch.{TORCH_NAMES[buffer.dtype]})"
        )
        self._did("settle", buffer.name)

    def _argument(self, value: Any) -> str:
        return argument_text(value, self._tensor, lambda number: print_index(number, None, PYTHON))

    def _free(self, node: Node, position: int) -> None:
        """Drops tensors that nothing uses any more, so that their memory serves the next allocation."""
        dead = []
        for name in self._uses(node):
            if name in self.graph.constants or name in self.outputs:
                continue
            if self.last[name] == position and name in self.made and not self._needed_later(name, position):
                dead.append(name)
        if dead and position + 1 < len(self.graph.nodes):
            self.out.put(f"del {', '.join(self._name(name) for name in dead)}")
            for name in dead:
                self._did("drop", name)

    def _needed_later(self, name: str, position: int) -> bool:
        """A buffer that is not there yet will be made from this one: a view of it, or one that takes over its memory."""
        for other in self.inside.get(name, ()):
            if other not in self.made:
                wanted = self.last.get(other, -1) > position or other in self.outputs
                if wanted or self._needed_later(other, position):
                    return True
        return False

    def _output(self, value: Any) -> str:
        if value is None:
            return "None"
        if isinstance(value, str):
            return self._tensor(value) if value in self.graph.buffers else self._name(value)
        return print_factor(value, None, PYTHON)


def maker_name(buffer: Buffer) -> str:
    """The function that makes tensors of a buffer's dtype on its device: ``new_f32``, ``new_f32_cuda0``."""
    device = re.sub(r"\W", "", buffer.device)
    return f"new_{buffer.dtype}" + ("" if device == "cpu" else f"_{device}")


def operators_text(name: str, program: HostProgram) -> Source | None:
    """The operators that a C++ host program calls through Python, as functions; None without any."""
    called = [
        operator for operator in program.operators if operator.name
    ]  # the others only where torch's functions fail
    if not called:
        return None
    out = Writer("#", "    ")
    out.put(f"# Operators that the C++ host program of graph {name} calls through Python. Written by fuselens.")
    for operator in called:
        out.put()
        out.open(f"def {operator.name}({', '.join(operator.parameters)}):")
        out.put(f"return {operator.call}")
        out.close("")
    return Source("host", out.text())


def argument_text(value: Any, tensor: Callable[[str], str], number: Callable[[Expr], str]) -> str:
    """An operator's argument as Python; ``tensor`` spells buffers and ``number`` what depends on sizes."""
    if isinstance(value, Ref):
        return tensor(value.name)
    if isinstance(value, Expr):
        if value.is_Float or (value.is_Rational and not value.is_Integer):
            return repr(float(value))
        return str(int(value)) if value.is_Integer else number(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(argument_text(v, tensor, number) for v in value)}]"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, (float, complex)):
        text = repr(value)
        return f"float('{text}')" if text in ("inf", "-inf", "nan") else text
    kind = type(value).__name__
    if kind in ("dtype", "layout", "memory_format"):
        return str(value)
    if kind == "device":
        return f"torch.device({str(value)!r})"
    raise Unsupported(f"argument {value!r} of an operator")


def python_operator(node: Extern, name: str) -> tuple[PythonOperator, tuple[str, ...], tuple[Expr, ...]]:
    """A call of the operator in Python, and the buffers and numbers that it takes, in order."""
    tensors: dict[str, str] = {}
    numbers: dict[Expr, str] = {}

    def text(value: Any) -> str:
        return argument_text(
            value,
            lambda buffer: tensors.setdefault(buffer, f"t{len(tensors)}"),
            lambda number: numbers.setdefault(number, f"n{len(numbers)}"),
        )

    arguments = ", ".join([text(a) for a in node.args] + [f"{k}={text(v)}" for k, v in node.kwargs])
    results = -1 if node.outputs == (node.name,) else len(used_outputs(node))
    parameters = (*tensors.values(), *numbers.values())
    call = f"{operator_name(node.target)}({arguments})"
    where = operator_place(node.target, node.spans)
    made = PythonOperator(name, parameters, call, len(tensors), len(numbers), results, where)
    return made, tuple(tensors), tuple(numbers)


def used_outputs(node: Extern) -> tuple[str, ...]:
    """The operator's results, "" for those that nobody reads; none where nobody reads any."""
    return node.outputs if any(node.outputs) else ()


def operator_name(target: str) -> str:
    """How the host program spells an operator: ``torch.ops.aten.mm.default``."""
    packet, _, overload = target.rpartition(".")
    plain = f'getattr(torch.ops.{packet}, "{overload}")' if keyword.iskeyword(overload) else f"torch.ops.{target}"
    return _BINDINGS.get(target, plain)
