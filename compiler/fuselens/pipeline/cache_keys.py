"""What names an entry of the cache of graphs: all that its stages read, and, where an entry is missing, what of that is new.

Beside the entries the cache keeps, for each captured frame, the parts of its last keys. So a miss can say which part differs
from what is there: the sizes of an input, an option, the version of torch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import operator
import os
import platform
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .. import torch_private
from ..capture.bodies.higher_order import Operator
from ..capture.frame.captured import GraphFacts
from ..capture.kept.names import Nameless, replaced
from ..capture.tracing.tracer import describe_tensor
from ..config import Config, cache_key, capture_key
from ..ir import user_kernels
from ..ir.contracts.signature import Sharing
from ..record import report
from ..runtime.cache.store import key_of
from ..runtime.measure import machine

if TYPE_CHECKING:
    from ..capture.frame.captured import Captured

_PLAIN = frozenset({
    int, float, bool, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip
_SEQUENCES = (tuple, list, torch.Size)
_READABLE = 4096  # characters of a part that is kept as it is; of a longer one, a digest


@dataclasses.dataclass(frozen=True)
class Key:
    """``name`` is the entry's, "" where the graph has none, and then ``why`` says why. ``frame`` names the function that
    the graph was captured from; ``parts`` are what the name is a digest of, each readable or a digest itself."""

    name: str = ""
    why: str = ""
    frame: str = ""
    parts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def told(self) -> dict[str, Any]:
        """The parts as they are kept for those who miss the entry: JSON-ready, and short."""
        return {"name": self.name, **{name: _short(value) for name, value in self.parts.items()}}


class _Nameless(Exception):
    """The graph holds something that has no name which means the same in another process; the message says what."""


def key_for(
    captured: Captured, config: Config, shared: Sharing, *, graph: int, texts: bool, host: tuple[Any, ...]
) -> Key:  # fmt: skip
    """The key of a captured graph whose inputs share memory as ``shared`` says.

    ``host`` is what code is generated for, and how it is called: the processor, or the cards.
    """
    state = torch_private.tracing_state()
    if state is None:
        return Key(why="a mode, a function transform or a Python rule for torch's operators takes part in it")
    try:
        captured.digest = captured.digest or key_of({"nodes": list(_nodes(captured.module.graph))})
        parts = {
            "graph": captured.digest,
            "inputs": _inputs(captured.fakes),
            "sizes": []
            if captured.sizes is None
            else [*torch_private.known_sizes(captured.sizes.env), captured.sizes.ends],
            "frame": [captured.frame, graph, _span(captured.span), captured.grad_enabled],
            "sharing": repr(shared),
            "config": cache_key(config),
            "texts": texts,
            "state": state,
            "replaced": replaced(),
            "versions": versions(),
            "sources": own_sources(),
            "machine": [platform.machine(), platform.system(), *host, machine()],
        }
    except (_Nameless, Nameless) as error:
        return Key(why=str(error))
    file = captured.span.file if captured.span is not None else ""
    return Key(key_of(parts), "", key_of({"file": file, "frame": captured.frame}), parts)


def facts_of(captured: Captured) -> GraphFacts:
    """What its nodes say of a captured graph; found out once."""
    if captured.facts is None:
        nodes = list(captured.module.graph.nodes)
        values = [n.meta.get("val") for n in nodes]
        results = [n.meta.get("val") for n in nodes[-1].args[0]]
        captured.facts = GraphFacts(
            inputs=told_inputs(captured),
            outputs=tuple(describe_tensor(v, captured.sizes) for v in results if hasattr(v, "stride")),
            devices=tuple(sorted({str(v.device) for v in values if isinstance(v, torch.Tensor)})),
            generators=any(isinstance(v, torch.Generator) for v in values),
        )
    return captured.facts


def told_inputs(captured: Captured) -> tuple[report.Tensor, ...]:
    return tuple(
        describe_tensor(f, captured.sizes) if isinstance(f, torch.Tensor) else report.Tensor(_number_or_object(f), ())
        for f in captured.fakes
    )


def _number_or_object(given: Any) -> str:
    if isinstance(given, torch.Generator):
        return type(given).__name__
    return "float" if isinstance(given, torch.SymFloat) else "int"


def sizes_key(identity: tuple[Any, ...]) -> str:
    """What names the entry that tells which sizes of a code object varied, in runs of this program: library code runs in others."""
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return key_of({"code": identity, "program": os.path.abspath(program) if program else ""})


def frame_key(identity: tuple[Any, ...], state: int, config: Config) -> str:
    """What names the entries of frames, which ``identity`` tells from others; "" where something takes part in a trace that has no name.
    ``state`` is who handles torch functions."""
    surroundings = torch_private.tracing_state()
    if surroundings is None:
        return ""
    return key_of({
        "code": identity, "functions": int(state), "grad": torch.is_grad_enabled(), "config": capture_key(config),
        "state": surroundings, "versions": versions(), "sources": own_sources(), "machine": [platform.machine(), machine()],
        "cards": torch.cuda.device_count() if torch.version.cuda else 0,
    })  # fmt: skip


# --- why an entry is missing ------------------------------------------------------------------------------------------


def _short(value: Any) -> Any:
    text = json.dumps(value, default=str)
    return json.loads(text) if len(text) <= _READABLE else hashlib.sha256(text.encode()).hexdigest()


def why_missing(key: Key, before: Sequence[Mapping[str, Any]]) -> str:
    """What of ``key`` differs from the nearest of those that were kept ``before``, newest first."""
    if not before:
        return "it was not compiled before"
    now = key.told
    if any(other.get("name") == key.name for other in before):
        return "its entry was removed"
    nearest = min(before, key=lambda other: sum(now[name] != other.get(name) for name in _DIFFERENCES))
    found = [
        _DIFFERENCES[name](nearest.get(name), now[name]) for name in _DIFFERENCES if now[name] != nearest.get(name)
    ]
    return "; ".join(filter(None, dict.fromkeys(found))) or "it was not compiled before"


def _versions_differ(before: Any, now: Any) -> str:
    names = ("torch", "torch's sources", "Python")
    found = [
        f"{name} {a.split()[0]} made what is there, and this is {b.split()[0]}"
        for name, a, b in zip(names, _texts(before), _texts(now), strict=False)
        if a != b and a and b
    ]
    return "; ".join(found[:1]) or "another torch or Python made what is there"


def _texts(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def _options_differ(before: Any, now: Any) -> str:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return "options differ"
    found = [f"option {n} was {before.get(n)}, and is {v}" for n, v in now.items() if before.get(n) != v]
    return "; ".join(found) or "options differ"


def _machine_differs(before: Any, now: Any) -> str:
    """ "" where torch alone is another: its version says so."""
    before, now = _without_torch(before), _without_torch(now)
    if before == now:
        return ""
    a, b = (
        next((v for v in part if isinstance(v, dict)), {}) if isinstance(part, list) else {} for part in (before, now)
    )
    found = [
        f"{name} were {a[name]}, and are {v}" for name, v in b.items() if name == "threads" and a.get(name, v) != v
    ]
    return "; ".join(found) or "what is there was made for another machine"


def _without_torch(machine: Any) -> Any:
    if not isinstance(machine, list):
        return machine
    return [{k: v for k, v in part.items() if k != "torch"} if isinstance(part, dict) else part for part in machine]


def _inputs_differ(before: Any, now: Any) -> str:
    if not isinstance(before, list) or not isinstance(now, list):
        return "inputs have other sizes, dtypes or devices"
    if len(before) != len(now):
        return f"it had {len(before)} inputs, and has {len(now)}"
    for number, (a, b) in enumerate(zip(before, now, strict=True)):
        if a != b:
            return f"input {number} was {_input_text(a)}, and is {_input_text(b)}"
    return "inputs differ"


def _input_text(written: Any) -> str:
    """``Tensor float32 cpu (4, 8)`` of what :func:`_value` says of a tensor."""
    try:
        _, dtype, device, *rest = written[1]
        end = rest.index("strides")
        layout, flags = rest[end + 1 : end + 1 + end], rest[end + 1 + end :]
        grad = ", with gradient" if flags[1] else ""
        sizes, strides = (f"[{', '.join(map(str, values))}]" for values in (rest[:end], layout))
        return f"{dtype.removeprefix('torch.')}{sizes} on {device}, strides {strides}{grad}"
    except (AttributeError, LookupError, TypeError, ValueError):
        return str(written[1:] if isinstance(written, list) else written)


def _frame_differs(before: Any, now: Any) -> str:
    known = all(isinstance(written, list) and len(written) == 4 for written in (before, now))
    if not known or before[2] != now[2]:
        return "the function stands at another line"
    if before[3] != now[3]:
        return "gradients were not recorded" if now[3] else "gradients were recorded"
    return f"it was graph {before[1]} of the function"


_DIFFERENCES = {
    "versions": _versions_differ,
    "sources": lambda before, now: "another version of fuselens made what is there",
    "machine": _machine_differs,
    "config": _options_differ,
    "texts": lambda before, now: "checks keep the texts of stages, and runs do not",
    "state": lambda before, now: "settings of torch differ (precision, autocast, determinism, …)",
    "replaced": lambda before, now: "the program has replaced other methods of torch's tensors or modules",
    "inputs": _inputs_differ,
    "sizes": lambda before, now: "its sizes are symbols, of which something else is known",
    "sharing": lambda before, now: "other inputs share memory",
    "frame": _frame_differs,
    "graph": lambda before, now: "the captured graph is another",
}


# --- the parts --------------------------------------------------------------------------------------------------------


def versions() -> list[str]:
    return [torch.__version__, str(torch.version.git_version), sys.version]


@functools.cache
def own_sources() -> str:
    """A digest of this compiler."""
    digest = hashlib.sha256()
    root = os.path.dirname(os.path.dirname(__file__))
    for folder, folders, files in os.walk(root):  # with pathlib it takes twice as long
        folders.sort()
        for path in sorted(os.path.join(folder, name) for name in files if name.endswith(".py")):
            with open(path, "rb", buffering=0) as file:
                digest.update(b"%s\0%s\0" % (path[len(root) :].encode(), file.read()))
    return digest.hexdigest()


def _inputs(fakes: Sequence[Any]) -> list[Any]:
    """The inputs' metadata. Inputs that are one object say where it came first."""
    first: dict[int, int] = {}
    return [[first.setdefault(id(f), i), _value(f)] for i, f in enumerate(fakes)]


def _value(value: Any) -> Any:
    """Metadata of a tensor, or a number; sizes may be symbols."""
    if torch_private.is_symbolic_number(value):
        return [type(value).__name__, _size(value)]
    if not isinstance(value, torch.Tensor):
        return _plain(value)
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        raise _Nameless("an input is sparse, quantized, or a lazily conjugated or negated view")
    return [
        type(value).__qualname__, str(value.dtype), str(value.device), *map(_size, value.shape), "strides",
        *map(_size, value.stride()), _size(value.storage_offset()), value.requires_grad, value.is_leaf, value.is_inference(),
    ]  # fmt: skip


def _size(size: Any) -> int | str:
    if not torch_private.is_symbolic_number(size):
        return int(size)
    if torch_private.is_ragged(size):
        raise _Nameless("an input has a ragged size")
    return str(torch_private.raw_expression(size))


def _nodes(graph: fx.Graph) -> Iterator[list[Any]]:
    numbers: dict[fx.Node, int] = {}
    for i, node in enumerate(graph.nodes):
        numbers[node] = i
        written = [node.op, node.name, _span(node.meta.get("span")), _frames(node.meta.get("stack"))]
        if node.op == "placeholder":
            written += [node.meta.get("source"), _value(node.meta.get("val"))]
        else:
            written += [_target(node), _argument(node.args, numbers), _argument(node.kwargs, numbers)]
        yield written


def _target(node: fx.Node) -> str:
    target = node.target
    if node.op == "output":
        return ""
    if node.op == "call_method" and isinstance(target, str):
        method: Any = getattr(torch.Tensor, target, None)
        if isinstance(method, (types.MethodDescriptorType, types.WrapperDescriptorType)) or _is_torchs(method):
            return f"{target}, which is {method.__qualname__}"  # a program may have put another in its place
    if node.op == "call_function":
        if isinstance(target, torch_private.Operation):
            return f"numpy {target.kind} {target.name}"
        if torch_private.is_torch_operator(target):
            return f"operator {target}"
        if target is user_kernels.LAUNCH:
            return f"operator {target} {_kernel(str(node.args[0]))}"
        if target is getattr:
            return "builtin getattr"
        name = getattr(target, "__name__", "")
        module = getattr(target, "__module__", None) or ""
        if isinstance(target, types.BuiltinFunctionType):
            if target in (getattr(m, name, None) for m in (torch, operator, math, torch_private.VARIABLE_FUNCTIONS)):
                return f"builtin {name}"
            if module.startswith("torch.") and getattr(sys.modules.get(module), name, None) is target:
                return f"{module}.{name}"
        elif isinstance(target, types.FunctionType) and _is_torchs(target):
            return f"{module}.{target.__qualname__}"
        elif isinstance(target, types.FunctionType) and module.startswith("torch."):
            if getattr(sys.modules.get(module), name, None) is target:  # made by a function there
                return f"{module}.{name}"
        elif isinstance(target, Operator):
            return json.dumps(_higher_order(target))
    raise _Nameless(f"it calls {getattr(target, '__name__', None) or target}, which is neither torch's nor ours")


def _higher_order(operator: Operator) -> list[Any]:
    """What tells an operator that runs graphs from others: what it does with them, and their nodes."""
    if operator.policy is not None:
        raise _Nameless(f"what {operator.__name__} keeps is chosen by a function")
    flags = [operator.recomputed, operator.data_decides, operator.traceable]
    return [operator.__name__, *flags, _closed_over(operator.run), [[*_nodes(body.graph)] for body in operator.bodies]]


def _closed_over(value: Any) -> Any:
    """A function of ours with what it closes over, or a value there."""
    if isinstance(value, types.FunctionType) and value.__module__.startswith("fuselens."):
        cells = [_closed_over(cell.cell_contents) for cell in value.__closure__ or ()]
        return ["function", value.__module__, value.__qualname__, cells, _argument(value.__defaults__, {})]
    return _argument(value, {})


def _kernel(name: str) -> str:
    """What tells a Triton kernel of the program, with its constants, from others."""
    launch = user_kernels.launch_of(name)
    if not launch.digest:
        raise _Nameless(f"the Triton kernel {launch.name} depends on objects or functions that have no such name")
    return launch.digest


def _is_torchs(function: Any) -> bool:
    """Whether a Python function is what its module, one of torch's or ours, has under its name."""
    module = getattr(function, "__module__", None) or ""
    if not module.startswith(("torch.", "fuselens.")) and module != "torch":
        return False
    found: Any = sys.modules.get(module)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _argument(value: Any, numbers: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return ["node", numbers[value]]
    if isinstance(value, _SEQUENCES):
        return [type(value).__name__, *(_argument(v, numbers) for v in value)]
    if isinstance(value, dict):
        return ["dict", *([_argument(k, numbers), _argument(v, numbers)] for k, v in value.items())]
    if isinstance(value, slice):
        return ["slice", *(_argument(v, numbers) for v in (value.start, value.stop, value.step))]
    return _plain(value)


def _plain(value: Any) -> list[str]:
    if type(value) not in _PLAIN:
        raise _Nameless(f"it holds an object of {type(value).__qualname__}")
    return [type(value).__name__, repr(value)]


def _span(span: Any) -> Any:
    if span is None:
        return None
    if type(span) is not report.Span:
        raise _Nameless(f"it holds an object of {type(span).__qualname__}")
    return [span.file, span.line, span.column, span.end_line, span.end_column]


def _frames(stack: Any) -> Any:
    return None if not stack else [[f.function, _span(f.span)] for f in stack]
