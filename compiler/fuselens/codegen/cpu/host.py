"""The host program of a CPU graph: one C++ function in the unit of its kernels, so that a graph is one call.

It takes addresses of tensors, allocates, calls kernels and operators in order, and hands out addresses of tensors. What
the process offers it (memory, tensors, Python) is ``struct Runtime``, which runtime/_program.c fills; operators that
torch's C shim offers (``operators.py``) are called by address, the others through a Python function each.

Pointers: index expressions count from the start of a storage. A storage that is a graph input starts at that tensor's
first element; a view of it has an ``offset`` relative to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import sympy
from sympy import Expr

from ...ir.contracts.native import (
    CHECK_FAILED,
    NO_MEMORY,
    OPERATOR_FAILED,
    OPERATOR_SHIFT,
    RESULT_DIFFERS,
    SCALAR_TYPES,
    WROTE,
)
from ...ir.contracts.source import HostProgram, KernelInfo, PythonOperator, Unsupported, Writer, checked
from ...ir.dtypes import NAMES
from ...ir.loops import ITEMSIZE, Buffer, Extern, Graph, Kernel, Node, element, extern_reads
from ..expressions import print_factor, print_index
from ..host import event_name, python_operator, used_outputs
from ..operators import c_parameters, direct
from .reserved import KEYWORDS
from .translation_unit import TranslationUnit
from .vectors.parts import C_TYPES

_SCALAR_TYPES = {
    short: SCALAR_TYPES[name]
    for dtype, short in NAMES.items()
    if (name := str(dtype).removeprefix("torch.")) in SCALAR_TYPES
}
LONG = 16  # nodes from which optimising a host program takes the compiler longer than it could ever gain
LOCK_WORK = 1 << 16  # bytes of kernels beyond which other Python threads may run meanwhile

RUNTIME = """
union Value { void* tensor; long integer; double real; };
struct Runtime {  // what the process offers (runtime/_program.c)
  void* (*allocate)(long bytes);
  void (*release)(void*);
  int (*new_tensor)(long bytes, long dim, const long* sizes, const long* strides, int dtype, void** made);
  void (*drop)(void* tensor);
  void* (*data)(void* tensor);
  const long* (*sizes)(void* tensor);
  const long* (*strides)(void* tensor);
  int (*view)(void* base, long dim, const long* sizes, const long* strides, long offset, void** made);
  int (*over)(void* base, long dim, const long* sizes, const long* strides, int dtype, void** made);
  int (*settle)(void** tensor, int dtype, long dim, const long* sizes, const long* strides);
  int (*python)(void* call, int which, void* const* tensors, const long* numbers, void** results);
  void (*done)(void* call, Value* in, long input);
  int (*own)(void* call, Value* in, long input);
  int (*fail)(void* call, int which, void* const* tensors, const long* numbers);
  void (*begin)(void* call, int event);
  void (*end)(void* call);
};
// Where a profiler listens, it hears of each kernel and operator.
static inline void event_begins(const Runtime* run, void* call, int event) { if (*(const int*)call) run->begin(call, event); }
static inline void event_ends(const Runtime* run, void* call) { if (*(const int*)call) run->end(call); }
namespace {
template <long memories, long tensors>
struct Held {  // what the call has made so far: freed however it ends
  const Runtime* run;
  void* memory[memories + 1];
  void* tensor[tensors + 1];
  __attribute__((noinline)) ~Held() {
    for (long k = 0; k < memories; ++k) run->release(memory[k]);
    for (long k = 0; k < tensors; ++k) run->drop(tensor[k]);
  }
};
}
""".strip()

_PLAINLY = """
#ifdef __clang__
__attribute__((optnone))
#else
__attribute__((optimize("O0")))
#endif
""".strip()


def write_host(
    unit: TranslationUnit, infos: Collection[KernelInfo], out: Writer, floats: Collection[int] = (), float_outputs: Collection[int] = ()
) -> HostProgram:  # fmt: skip
    """Appends the host function ``fuselens_call`` of the unit's graph to the text of its kernels.

    ``floats`` are positions of inputs that are Python floats, ``float_outputs`` those of outputs. Raises Unsupported.
    """
    return _Host(unit, infos, out, frozenset(floats), frozenset(float_outputs)).write()


class _Host:
    def __init__(
        self, unit: TranslationUnit, infos: Collection[KernelInfo], out: Writer, floats: frozenset[int], outputs: frozenset[int]
    ) -> None:  # fmt: skip
        self.unit, graph = unit, unit.graph
        for buffer in graph.buffers.values():
            if buffer.device != "cpu" or buffer.dtype not in _SCALAR_TYPES:
                raise Unsupported(f"a tensor of {buffer.dtype} on {buffer.device}")
        self.graph, self.out = graph, out
        self.infos = {k.name: k for k in infos}
        self.floats, self.float_outputs = floats, outputs
        self.given = (*graph.inputs, *graph.constants)
        self.names: dict[str, str] = {}
        self.roots = graph.roots()
        self.fixed = {n for n in graph.inputs if n not in graph.donated}
        self.seen = self._seen()  # roots of which a tensor is needed
        self.last = self._last_uses()
        self.pointers: set[str] = set()  # storages whose address is known
        self.tensors: dict[str, str] = {}  # buffer → C++ text of its tensor
        self.memory: dict[str, str] = {}  # root → slot, while it is alive
        self.slots: dict[str, str] = {}  # buffer → slot of a tensor of our own, while it is alive
        self.counts = {"memory": 0, "tensor": 0}
        self.operators: list[PythonOperator] = []
        self.events: list[str] = []
        self.imports: dict[str, tuple[int, str]] = {}
        self.lists: dict[str, str] = {}  # constant arrays: their declaration → their name
        self.body = Writer("//")
        self.checks = any(i.checks for i in self.infos.values())
        # Errors are looked for before the first kernel that writes to an input (nothing fails after that), else at the end.
        self.checked_before = next((n.name for n in graph.kernels() if self._overwrites(n.writes())), "")
        self.overwritten: set[str] = set()  # inputs that were written to so far, by their roots
        self.symbols = set(graph.symbols)

    # --- what lies where ---

    def _seen(self) -> set[str]:
        names: list[str] = [o for o in self.graph.outputs if isinstance(o, str) and o in self.graph.buffers]
        for node in self.graph.nodes:
            if isinstance(node, Extern):
                names += [*extern_reads(node), *(o for o in node.outputs if o), *node.mutates]
        return {self.roots[n] for n in names if n in self.roots}

    def _last_uses(self) -> dict[str, int]:
        """The last node that uses each root."""
        last: dict[str, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for name in self._uses(node):
                last[self.roots[name]] = position
        for name in self.graph.outputs:
            if isinstance(name, str) and name in self.roots:
                last[self.roots[name]] = len(self.graph.nodes)
        return last

    def _uses(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, Kernel):
            return (*node.reads(), *node.writes())
        if isinstance(node, Extern):
            return (*extern_reads(node), *(o for o in node.outputs if o))
        raise Unsupported(f"{node.name} is not a kernel: the graph was not fused")

    # --- text ---

    def _name(self, buffer: str) -> str:
        found = self.names.get(buffer)
        if found is None:
            found = re.sub(r"\W", "_", buffer)
            taken = found in KEYWORDS or found in _RESERVED or found in self.symbols or found in self.infos
            if taken or not found[0].isalpha() or re.match(r"(aten_|list\d)", found):
                found = f"v_{found}"
            while found in self.names.values():
                found += "_"
            self.names[buffer] = found
        return found

    def _list(self, values: Iterable[Any], ctype: str = "const long", text: Callable[[Any], str] = print_index) -> str:
        """The name of a constant array, 0 for an empty one."""
        texts = [text(v) for v in values]
        if not texts:
            return "0"
        declaration = f"{ctype} @[] = {{{', '.join(texts)}}};"
        return self.lists.setdefault(declaration, f"list{len(self.lists)}")

    def _shape(self, buffer: Buffer) -> str:
        return f"{len(buffer.sizes)}, {self._list(buffer.sizes)}, {self._list(buffer.strides)}"

    def _bytes(self, buffer: Buffer) -> str:
        if any(s == 0 for s in buffer.sizes):
            return "0"
        extent: Expr = sympy.S.One
        for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
            extent = extent + (size - 1) * stride
        return print_index(sympy.expand(extent * ITEMSIZE[buffer.dtype]))

    def _try(self, call: str, code: int = OPERATOR_FAILED, spans: tuple[Any, ...] = ()) -> None:
        self.body.put(f"if ({call}) return {code | self._wrote};", spans)

    # --- memory and tensors ---

    def _slot(self, kind: str) -> str:
        number = self.counts[kind]
        self.counts[kind] += 1
        return f"held.{kind}[{number}]"

    def _tensor(self, name: str) -> str:
        """The text of a buffer's tensor, which is made when it is first needed."""
        found = self.tensors.get(name)
        if found is not None:
            return found
        buffer = self.graph.buffers[name]
        if name in self.given:
            position = self.given.index(name)
            if position in self.floats:
                raise Unsupported("an operator is given a float that varies")
            text = f"in[{position}].tensor"
        elif buffer.storage:
            base = self._tensor(buffer.storage)
            text = self._slot("tensor")
            self._try(f"run->view({base}, {self._shape(buffer)}, {print_index(buffer.offset)}, &{text})")
            self.slots[name] = text
        elif name in self.graph.reuse:
            text = self._taken_over(buffer, self.graph.reuse[name])
        else:
            text = self._slot("tensor")
            self._try(
                f"run->new_tensor({self._bytes(buffer)}, {self._shape(buffer)}, {_SCALAR_TYPES[buffer.dtype]}, &{text})",
                NO_MEMORY,
            )
            self.slots[name] = text
        self.tensors[name] = text
        return text

    def _taken_over(self, buffer: Buffer, earlier: str) -> str:
        old, base = self.graph.buffers[earlier], self._tensor(earlier)
        if (old.dtype, old.sizes, old.strides) == (buffer.dtype, buffer.sizes, buffer.strides):
            if self.roots[earlier] in self.given:
                return base
            call = f"run->view({base}, {self._shape(buffer)}, 0, &"
        elif self.roots[earlier] in self.fixed:
            raise Unsupported("an operator reads an input's memory in another shape")
        else:
            call = f"run->over({base}, {self._shape(buffer)}, {_SCALAR_TYPES[buffer.dtype]}, &"
        text = self._slot("tensor")
        self._try(f"{call}{text})")
        self.slots[buffer.name] = text
        return text

    def _pointer(self, storage: str) -> str:
        """The variable with the address of a storage; allocates what is written first."""
        name = self._name(storage)
        if storage in self.pointers:
            return name
        root = self.roots[storage]
        self.pointers.add(storage)
        if root != storage:
            self._pointer(root)
            self.body.put(f"void* const {name} = {self._name(root)};  // in its memory")
        elif root in self.given and self.given.index(root) in self.floats:
            self.body.put(f"void* const {name} = &in[{self.given.index(root)}].real;")
        elif root in self.seen or root in self.given:
            self.body.put(f"void* const {name} = run->data({self._tensor(root)});")
        else:
            slot = self.memory[root] = self._slot("memory")
            self.body.put(f"void* const {name} = {slot} = run->allocate({self._bytes(self.graph.buffers[root])});")
            self.body.put(f"if (!{name}) return {NO_MEMORY | self._wrote};")
        return name

    # --- the function ---

    def write(self) -> HostProgram:
        graph, body, infos = self.graph, self.body, self.infos.values()
        for name in graph.overwritten():
            self._try(f"run->own(call, in, {graph.inputs.index(name)})", NO_MEMORY)
        for position, node in enumerate(graph.nodes):
            if isinstance(node, Kernel):
                self._kernel(node)
            elif isinstance(node, Extern):
                self._extern(node)
            self._free(node, position)
        results, outputs, moved = self._outputs()
        if not self.checked_before:
            self._check()
        for text in moved:
            body.put(text)
        body.put("return 0;")
        self._unit()
        kinds = "".join(self._input_kind(k, n) for k, n in enumerate(graph.inputs))
        return HostProgram(
            inputs=kinds, constants=tuple(graph.constants), results=results, outputs=outputs,
            operators=tuple(self.operators), checks=checked(infos), imports=tuple(self.imports), releases_lock=_is_long(graph, infos),
            events=tuple(self.events),
        )  # fmt: skip

    def _unit(self) -> None:
        """The declarations and the function, around its body."""
        out, graph = self.out, self.graph
        out.put()
        out.put(RUNTIME)
        if self.imports:
            out.put(f'extern "C" {{ void* fuselens_imports[{len(self.imports)}]; }}  // set when the unit is loaded')
            for function, (number, parameters) in self.imports.items():
                short = _short(function)
                named = ", ".join(f"{t} a{k}" for k, t in enumerate(parameters.split(", ")))
                passed = ", ".join(f"a{k}" for k in range(len(parameters.split(", "))))
                out.put(
                    f"static inline int {short}({named}) {{ return ((int (*)({parameters}))fuselens_imports[{number}])({passed}); }}"
                )
        out.put()
        out.put(f"// Host program of graph {graph.name}: inputs {', '.join(graph.inputs) or 'none'}.")
        out.put('extern "C"')
        if len(graph.nodes) >= LONG:
            out.put(_PLAINLY)  # here: compilers ignore attributes before a linkage
        out.open("int fuselens_call(const Runtime* run, void* call, Value* __restrict in, Value* __restrict out) {")
        if self.checks:
            out.put("fuselens_take_errors();  // of a call that ended early")
        out.put(f"Held<{self.counts['memory']}, {self.counts['tensor']}> held = {{run}};")
        for name, (position, dimension) in graph.symbols.items():
            out.put(f"const long {name} = {self._symbol(position, dimension)};")
        for declaration, name in self.lists.items():
            out.put(declaration.replace("@", name, 1))
        out.include(self.body)
        out.close()
        text = out.text()
        for part, functions in (("floor_div", ("floor_div(", "floor_mod(")), ("min_max", ("least(", "greatest("))):
            if any(f in text for f in functions):
                self.unit.lane_free.add(part)

    def _symbol(self, position: int, dimension: int) -> str:
        if dimension < 0:
            return f"in[{position}].integer"
        rank = len(self.graph.buffers[self.graph.inputs[position]].sizes)
        if dimension < rank:
            return f"run->sizes(in[{position}].tensor)[{dimension}]"
        return f"run->strides(in[{position}].tensor)[{dimension - rank}]"

    def _input_kind(self, position: int, name: str) -> str:
        if position in self.floats:
            return "d"
        if name in self.graph.buffers:
            return "t"
        return "i" if any(at == (position, -1) for at in self.graph.symbols.values()) else "o"

    def _overwrites(self, storages: Iterable[str]) -> set[str]:
        """The inputs among what is written."""
        return {self.roots[s] for s in storages} & self.fixed

    @property
    def _wrote(self) -> int:
        """What codes of failures say besides."""
        return WROTE if self.overwritten else 0

    def _check(self) -> None:
        if self.checks:
            self.body.put(f"if (const int errors = fuselens_take_errors()) return {CHECK_FAILED} | errors;")

    def _kernel(self, node: Kernel) -> None:
        info = self.infos.get(node.name)
        if info is None:
            raise Unsupported(f"no kernel was generated for {node.name}")
        if node.name == self.checked_before:
            self._check()
        written = set(info.written)
        arguments = []
        for storage in info.arguments:
            constant = "" if storage in written else "const "
            arguments.append(
                f"({constant}{C_TYPES[element(self.graph.buffers[storage].dtype)]}*){self._pointer(storage)}"
            )
        self.body.forget()
        _begins(self.body, self.events, event_name(node, info.function))
        self.body.put(f"{info.function}({', '.join([*arguments, *info.sizes])});", node.spans)
        self.body.put("event_ends(run, call);")
        self.overwritten.update(self._overwrites(info.written))

    def _free(self, node: Node, position: int) -> None:
        """Gives up memory that nothing uses any more, so that it serves the next allocation."""
        if position + 1 == len(self.graph.nodes):
            return
        dead = dict.fromkeys(self.roots[n] for n in self._uses(node) if self.last[self.roots[n]] == position)
        for root in dead:
            if root in self.memory:
                slot = self.memory.pop(root)
                self.body.put(f"run->release({slot}), {slot} = 0;")
            for name in [n for n in self.slots if self.roots[n] == root]:
                slot = self.slots.pop(name)
                self.body.put(f"run->drop({slot}), {slot} = 0;")
            if root in self.graph.inputs and self._input_kind(self.graph.inputs.index(root), root) == "t":
                self.body.put(f"run->done(call, in, {self.graph.inputs.index(root)});")

    # --- operators ---

    def _extern(self, node: Extern) -> None:
        self.body.forget()
        if node.reason:
            self.body.put(f"// {node.target}: {node.reason}")
        self.overwritten.update(self._overwrites(node.mutates))
        found = direct(node, "cpu")
        if found is None:
            self._by_python(node)
        else:
            self._by_shim(node, *found)

    def _by_shim(self, node: Extern, shim: Any, values: tuple[tuple[str, Any], ...]) -> None:
        parameters = ", ".join(c_parameters(shim))
        self.imports.setdefault(f"aoti_torch_cpu_{shim.function}", (len(self.imports), parameters))
        arguments = [a for kind, value in values for a in self._c_argument(kind, value)]
        if shim.into:
            arguments.insert(0, self._tensor(node.name))
            results: list[str] = []
        else:
            results = [self._slot("tensor") for _ in node.outputs]
            arguments += [f"&{r}" for r in results]
        which = self._failed_call(node, f"aten_{shim.function}({', '.join(arguments)})")
        if results:
            self._take(node, results, which)

    def _c_argument(self, kind: str, value: Any) -> list[str]:
        if kind == "t":
            return [self._tensor(value.name)]
        if kind == "T":
            return ["0" if value is None else f"&{self._tensor(value.name)}"]
        if kind == "d":
            return [_double(value)]
        if kind == "D":
            return ["0" if value is None else self._list([value], "const double", _double)]
        if kind == "l":
            return [print_index(value)]
        if kind == "b":
            return [str(int(value))]
        if kind == "s":
            return [f'"{value}"']
        if kind == "N":
            return ["0"]
        if kind == "E":
            return ["0", "0"]
        if kind == "M":
            return [self._list(value, "const int", lambda v: str(int(v))), str(len(value))]
        if kind == "Z":
            if value is None:
                return ["0", "0"]
            return [self._list([self._list(value)], "const long*", str), str(len(value))]
        return [self._list(value), str(len(value))]

    def _by_python(self, node: Extern) -> None:
        which = len(self.operators)
        made, tensors, numbers = python_operator(node, f"operator{which}")
        self.operators.append(made)
        given = [self._tensor(n) for n in tensors]
        results = [self._slot("tensor") for _ in used_outputs(node)]
        into = f"&{results[0]}" if results else "0"  # slots that were made together lie side by side
        passed = self._passed(which, given)
        _begins(self.body, self.events, event_name(node))
        self.body.put(
            f"if (const int code = run->python(call, {which}, {passed}, {self._list(numbers)}, {into})) return code{f' | {WROTE}' * bool(self._wrote)};",
            node.spans,
        )
        self.body.put("event_ends(run, call);")
        self._take(node, results, which)

    def _passed(self, which: int, tensors: list[str]) -> str:
        """The name of an array of an operator's tensors, 0 for an empty one."""
        if not tensors:
            return "0"
        self.body.put(f"void* const given{which}[] = {{{', '.join(tensors)}}};")
        return f"given{which}"

    def _failed_call(self, node: Extern, call: str) -> int:
        """Writes a call by address. Where it fails Python calls the operator, which raises torch's own error. Its number."""
        which = len(self.operators)
        made, tensors, numbers = python_operator(node, "")
        self.operators.append(made)
        passed = self._passed(which, [self._tensor(n) for n in tensors])
        fails = f"run->fail(call, {which}, {passed}, {self._list(numbers)})" + f" | {WROTE}" * bool(self._wrote)
        _begins(self.body, self.events, event_name(node))
        self.body.put(f"if ({call}) return {fails};", node.spans)
        self.body.put("event_ends(run, call);")
        return which

    def _take(self, node: Extern, results: list[str], which: int) -> None:
        for name, slot in zip(node.outputs, results, strict=bool(results)):
            if not name:
                self.body.put(f"run->drop({slot}), {slot} = 0;")
                continue
            buffer = self.graph.buffers[name]
            self.tensors[name] = self.slots[name] = slot
            if not buffer.storage and buffer.sizes:
                if buffer.dtype not in _SCALAR_TYPES:
                    raise Unsupported(f"an operator gives a tensor of {buffer.dtype}")
                settle = f"run->settle(&{slot}, {_SCALAR_TYPES[buffer.dtype]}, {self._shape(buffer)})"
                self._try(settle, RESULT_DIFFERS | (which + 1) << OPERATOR_SHIFT)

    # --- results ---

    def _outputs(self) -> tuple[str, tuple[int | None, ...], list[str]]:
        """Kinds of results, for each output where it comes from, and the statements that hand the results out."""
        kinds, moved = "", []
        outputs: list[int | None] = []
        known: dict[str, int] = {}
        for position, value in enumerate(self.graph.outputs):
            if value is None:
                outputs.append(None)
            elif isinstance(value, str) and value in self.given:
                outputs.append(-1 - self.given.index(value))
            elif isinstance(value, str) and value not in self.graph.buffers:  # an input that is no tensor
                outputs.append(-1 - self.graph.inputs.index(value))
            elif isinstance(value, str):
                if value not in known:
                    known[value] = len(kinds)
                    text = self._tensor(value)
                    if text not in self.slots.values():
                        raise Unsupported("a result lies in an input's memory")
                    moved.append(f"out[{len(kinds)}].tensor = {text}, {text} = 0;")
                    kinds += "d" if position in self.float_outputs else "t"
                outputs.append(known[value])
            else:
                moved.append(f"out[{len(kinds)}].integer = {print_factor(value)};")
                outputs.append(len(kinds))
                kinds += "i"
        return kinds, tuple(outputs), moved


def _begins(body: Writer, events: list[str], event: str) -> None:
    body.put(f"event_begins(run, call, {len(events)});")
    events.append(event)


def _is_long(graph: Graph, infos: Collection[KernelInfo]) -> bool:
    """Whether a call takes so long that other threads of Python's run meanwhile."""
    if any(isinstance(n, Extern) for n in graph.nodes):
        return True
    moved = [b for i in infos for b in (i.bytes_read, i.bytes_written)]
    known = [int(b) for b in moved if isinstance(b, int) or (b is not None and b.is_Integer)]
    return len(known) < len(moved) or sum(known) > LOCK_WORK


def _double(value: float) -> str:
    text = repr(float(value))
    return {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}.get(text, text)


def _short(function: str) -> str:
    return f"aten_{function.removeprefix('aoti_torch_cpu_')}"


_RESERVED = frozenset(
    "run call in out held Runtime Held Value bf16 f16 floor_div floor_mod least greatest event_begins event_ends".split()
)
