"""Graphs as they are compiled for a GPU, on the CPU: their host programs as they are, their kernels by Triton's interpreter.

``python -m tests.integration.interpreted operators abs:float32 …``, ``models bert gpt2 …``, ``tuned`` (products as kernels),
``images`` (convolutions), ``decided`` (by data), ``attention "soft caps" …`` (as it is written out) or ``graphs 1 2 …`` (seeds of random graphs, ``--count`` each) compares with eager,
in a process of its own (the interpreter is chosen when Triton is imported), and prints a line of JSON. ``--all [--shard K/N]`` takes
every operator, ``--choose SEED`` blocks by chance, ``--small`` a card for which short rows are long.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import functools
import json
import math
import os
import random
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy
import torch
import torch.nn.functional as F

from fuselens import torch_private
from fuselens.codegen.triton.tools.interpret import together
from fuselens.codegen.triton.tools.offline import load_module
from fuselens.ir.card import H100
from fuselens.ir.contracts.source import KernelInfo, Source
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Extern
from fuselens.pipeline import phases, programs, stages, tuning
from fuselens.pipeline.recorder import Run
from fuselens.rewrite import biases, own_attention
from fuselens.runtime import memory
from fuselens.runtime.gpu import launch, triton_worker

from . import graph_stages, interpreter_semantics

# gradients of samples that eager computes as badly
INEXACT = {("logcumsumexp", "float32"), ("addcmul", "float16")}
MOST_PROGRAMS = 256  # of a launch; one takes milliseconds
_POINTEES = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32,
    "u64": torch.uint64, "i1": torch.bool, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip


@dataclasses.dataclass
class Counts:
    """What happened in this process. ``errors`` would be hidden by the eager run that follows them."""

    kernels: int = 0  # functions that ran
    launches: int = 0
    graphs: int = 0  # random ones that were compared
    chosen: int = 0  # kernels that another choice was made for
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    errors: list[str] = dataclasses.field(default_factory=list)


COUNTS = Counts()


class Skipped(Exception):
    """A launch that would take too long, or failed."""


def kernels(source: Source, *_: Any) -> dict[str, Any]:
    """In the place of :func:`launch.load_triton`."""
    module = load_module(source)
    if hasattr(module, "libdevice"):
        module.libdevice = Libdevice()  # type: ignore[attr-defined]
    return {info.name: _launcher(module, info) for info in source.kernels if info.same_as is None}


def _launcher(module: types.ModuleType, info: KernelInfo) -> Callable[..., None]:
    function = getattr(module, info.name)
    pointees = [_POINTEES[t.removeprefix("*")] for t in list(info.launch["signature"].values())[: len(info.arguments)]]
    ran = False

    def run(_stream: int, programs: int, *given: int) -> None:
        nonlocal ran
        if programs > MOST_PROGRAMS:
            COUNTS.skipped["too many programs"] += 1
            raise Skipped
        addresses, sizes = given[: len(pointees)], given[len(pointees) :]
        tensors = [_at(address, dtype) for address, dtype in zip(addresses, pointees, strict=True)]
        COUNTS.kernels += not ran
        COUNTS.launches += 1
        ran = True
        if not programs:
            return
        try:
            together(functools.partial(function[(programs,)], *tensors), module, info)(*sizes)
        except Exception as error:
            COUNTS.errors.append(f"{info.name}: {error}\n{Path(module.__file__ or '').read_text()}")
            raise Skipped from error

    return run


def _at(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose only element is at an address; kernels count from there."""
    if not address:
        return torch.empty(1, dtype=dtype)
    memory_there = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory_there, dtype=torch.uint8).view(dtype)


class Libdevice:
    """Functions of CUDA's library by torch's."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(torch, name)

        def call(*given: Any) -> Any:
            from triton import language as tl
            from triton.runtime.interpreter import TensorHandle

            (first, *_) = tensors = [g for g in given if isinstance(g, tl.tensor)]
            arrays = [
                torch.from_numpy(numpy.asarray(g.handle.data)) if isinstance(g, tl.tensor) else torch.tensor(g)
                for g in given
            ]
            made = function(*torch.broadcast_tensors(*arrays)).to(arrays[given.index(first)].dtype).numpy()
            widest = max(tensors, key=lambda t: (t.handle.data.ndim, t.handle.data.size))
            return tl.tensor(TensorHandle(made, first.handle.dtype), widest.type)

        return call


def install() -> None:
    """From here on, graphs of this process are compiled for a GPU and run by the interpreter."""
    plain, floats_as_tensors, built = stages.lower, phases.floats_as_tensors, programs.build

    def lower(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **{**kwargs, "device": "cuda"})

    def on_cpu(call: Any, inputs: Any, outputs: Any, graph: Any) -> Any:
        buffers = {name: dataclasses.replace(b, device="cpu") for name, b in graph.buffers.items()}
        return floats_as_tensors(call, inputs, outputs, graph.replace(buffers=buffers))

    def build(graph: Any, generated: Any, *args: Any) -> Any:
        """Operators that make tensors are told where."""
        host = generated.host
        host = host and dataclasses.replace(host, text=host.text.replace("torch.device('cuda')", "torch.device('cpu')"))
        return built(graph, dataclasses.replace(generated, host=host), *args)

    def evaluated(graph: Any, given: Any) -> Any:
        """The operators that a stage leaves run on the CPU, too."""
        nodes = [
            n if not isinstance(n, Extern) else dataclasses.replace(n, kwargs=_on_cpu(n.kwargs)) for n in graph.nodes
        ]
        return evaluate(graph.replace(nodes=tuple(nodes)), given)

    def no_work(*_: Any, **__: Any) -> None: ...

    interpreter_semantics.install()
    replaced: list[tuple[Any, str, Any]] = [
        (stages, "lower", lower),
        (stages, "call_flash_attention", lambda module: []),
        (stages, "call_own_attention", functools.partial(own_attention.call_own_attention, device="cuda")),
        (biases, "_is_on_gpu", lambda node: bool(node.args)),
        (Run, "target", "cuda"),
        (phases, "floats_as_tensors", on_cpu),
        (programs, "build", build),
        (graph_stages, "evaluate", evaluated),
        (memory, "maker", MEMORY.maker),
        (launch, "load_triton", kernels),
        (launch, "compile_ahead", no_work),
        (triton_worker, "start", no_work),
        (torch_private, "current_stream", lambda: 0),
        (torch.cuda, "is_current_stream_capturing", lambda: False),
        (tuning, "MEASURE", tuning.unmeasured),
    ]
    for module, name, value in replaced:
        assert hasattr(module, name), name
        setattr(module, name, value)


def _on_cpu(kwargs: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    return tuple((k, torch.device("cpu") if isinstance(v, torch.device) else v) for k, v in kwargs)


def choose(seed: int) -> None:
    """From here on, what ``max-autotune`` would measure is chosen by chance, though always the same of the same kernel: blocks of
    any size, clusters, products as kernels."""
    from fuselens.codegen.triton.choices import blocks
    from fuselens.ir import text
    from fuselens.pipeline import gpu

    plain = gpu.tuned

    def chance(*what: Any) -> random.Random:
        return random.Random(f"{seed} {what}")

    def measured(questions: Any, *_: Any) -> list[list[float]]:
        picks = [
            chance(text.show(q[0].graph)[0], *(candidate.label for candidate in q)).randrange(len(q)) for q in questions
        ]
        return [[0.5 if k == pick else 1.0 for k in range(len(q))] for q, pick in zip(questions, picks, strict=True)]

    def tuned(fused: Any, loops: Any, run: Any) -> Any:
        config = run.recorder.config
        run.recorder.config = dataclasses.replace(config, mode="max-autotune-no-cudagraphs")
        try:
            made = plain(fused, loops, run)
        finally:
            run.recorder.config = config
        COUNTS.chosen += len(made[1])
        return made

    replaced: list[tuple[Any, str, Any]] = [
        (blocks, "predicted", lambda *given: chance(*given).random()),
        (blocks, "PERSISTENT", 16),
        (gpu, "is_tuned", lambda run: True),
        (gpu, "tuned", tuned),
        (tuning, "MEASURE", measured),
    ]
    for module, name, value in replaced:
        assert hasattr(module, name), name
        setattr(module, name, value)


def small() -> None:
    """From here on, a card has one processor, and rows are long that are not: they are split, shared and held in registers."""
    from fuselens.codegen.triton.choices import blocks, row_plan
    from fuselens.schedule.gpu import split

    replaced: list[tuple[Any, str, Any]] = [
        (split, "PROGRAM_BANDWIDTH", 1.0),
        (split, "COLUMNS", 8),
        (split, "LEAST", {True: 8, False: 64}),
        (row_plan, "PERSISTENT", 64),
        (row_plan, "LOOPED", (64, 4)),
        (row_plan, "REREAD", ((599, 128),)),
        (blocks, "HELD", (256, 128)),
        (blocks, "LONG", (256, 256)),
        (stages.gpu, "card", lambda _: dataclasses.replace(H100, processors=1)),
    ]
    for module, name, value in replaced:
        assert hasattr(module, name), name
        setattr(module, name, value)


MEMORY = interpreter_semantics.Memory()
_SCRATCH = tempfile.TemporaryDirectory(prefix="fuselens-interpreted-")


def operators(cases: Iterable[tuple[str, str]], most: int) -> list[str]:
    """The differences that samples of torch's own operators show."""
    from . import operator_database as database

    out: list[str] = []
    for name, dtype in cases:
        before, skipped = len(COUNTS.errors), COUNTS.skipped.total()
        try:
            found = database.verify(name, dtype, most).differences
        except Skipped:
            found = []
        except Exception as error:  # noqa: BLE001 - what stops the compiler is the finding
            found = [f"{name} ({dtype}): {type(error).__name__}: {error}"]
        COUNTS.errors += MEMORY.problems()
        if COUNTS.skipped.total() > skipped:  # whose samples end with that exception
            found = [d for d in found if "['exception']" not in d]
        out += [*found, *COUNTS.errors[before:]]
    return out


def models(names: Iterable[str]) -> list[str]:
    """The differences that training steps of models show."""
    import fuselens
    from tests.models import runner

    def compile_(model: torch.nn.Module) -> torch.nn.Module:
        return fuselens.compile(model, options={"fallback_random": True})

    out = []
    for name in names:
        fuselens.reset()
        outcome = runner.measure(name, compile_, training=True, exact=False)
        COUNTS.errors += MEMORY.problems()
        out += [f"{name}: {outcome.problem}"] if outcome.problem else []
    return [*out, *COUNTS.errors]


def _tensors(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, generator=generator) / math.sqrt(s[-1]) for s in shapes)


def _images(count: int, high: int, *, last: bool) -> tuple[torch.Tensor, ...]:
    x, w, b = _tensors((count, 12, high, 8), (16, 12, 3, 3), (16,))
    form = torch.channels_last if last else torch.contiguous_format
    return x.contiguous(memory_format=form), w.contiguous(memory_format=form), b


def _convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.conv2d(x, w, b, 2, 1))


def _channels(count: int) -> tuple[torch.Tensor, ...]:
    x, w, b = _tensors((count, 24, 9, 8), (24, 1, 7, 7), (24,))
    return x.contiguous(memory_format=torch.channels_last), w, b


def _normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.conv2d(x, w, b, 1, 3, 1, 24).permute(0, 2, 3, 1), (24,))


TUNED: dict[str, tuple[Callable[..., torch.Tensor], bool | None, list[tuple[torch.Tensor, ...]]]] = {
    "rows vary": (lambda x, w: F.gelu(x @ w), None, [_tensors((n, 24), (24, 40)) for n in (20, 33, 50)]),
    "bfloat16": (lambda x, w: F.gelu(x @ w), None, [tuple(t.bfloat16() for t in _tensors((20, 24), (24, 40)))]),
    "all vary": (lambda x, w: F.gelu(x @ w), True, [_tensors((n, n + 4), (n + 4, 2 * n)) for n in (20, 33, 50)]),
    "batches": (lambda q, k, m: (q @ k.mT) * 0.5 + m, True,
                [_tensors((n, 2, 3 * n, 16), (n, 2, 5 * n, 16), (3 * n, 5 * n)) for n in (3, 5, 7)]),
    "images": (_convolved, None, [_images(n, 9, last=True) for n in (2, 3, 5)]),
    "images in order": (_convolved, None, [_images(2, 9, last=False)]),
    "channels, then norms": (_normed, None, [_channels(n) for n in (2, 3)]),
    "images of any size": (_convolved, True, [_images(n, 2 * n + 5, last=True) for n in (2, 3, 5)]),
}  # fmt: skip


def tuned() -> list[str]:
    """The differences that functions show when the first kernel is taken in the place of each of the vendor's products."""
    import fuselens

    def first(questions: Any, *_: Any) -> list[list[float]]:
        return [[1.0, 0.5, *(1.0 for _ in question[2:])] for question in questions]

    tuning.MEASURE = first
    out = []
    for name, (function, dynamic, calls) in TUNED.items():
        fuselens.reset()
        compiled: Any = fuselens.compile(function, mode="max-autotune-no-cudagraphs", dynamic=dynamic)
        for given in calls:
            with torch.no_grad():
                found, wanted = compiled(*given), function(*given)
            near = max(1e-4, 2 * torch.finfo(wanted.dtype).eps)
            if not torch.allclose(found, wanted, rtol=near, atol=near):
                out.append(f"{name}: {(found - wanted).abs().max()}")
        taken = [d for g in compiled.__fuselens__.recorder.report.graphs for d in g.decisions if d.verdict == "taken"]
        out += [] if taken else [f"{name}: the vendor's"]
    return [*out, *COUNTS.errors]


def images() -> list[str]:
    """The differences of networks of convolutions, whose images change their memory, and of their gradients."""
    import fuselens

    nets = {
        "transposed": (torch.nn.Conv2d(4, 8, 1), torch.nn.ConvTranspose2d(8, 6, 3, stride=2), torch.nn.SiLU()),
        "depthwise": (torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Hardswish(), torch.nn.Conv2d(8, 5, 1)),
        "groups": (torch.nn.Conv2d(4, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.SiLU(), torch.nn.Conv2d(8, 4, 3)),
        "lines": (torch.nn.Conv2d(4, 8, 3), torch.nn.Softmax(2), torch.nn.Conv2d(8, 4, 1), torch.nn.Softmax(3)),
        "instances": (torch.nn.Conv2d(4, 8, 3), torch.nn.InstanceNorm2d(8, affine=True), torch.nn.GELU()),
    }
    out = []
    for name, layers in nets.items():
        net = torch.nn.Sequential(*layers)
        channels = next(p for p in net.parameters()).shape[1] if name != "depthwise" else 8
        x = torch.randn(3, channels, 17, 19, requires_grad=True)
        leaves = [x, *net.parameters()]
        wanted, found = net(x), fuselens.compile(net, fullgraph=True)(x)
        cotangent = torch.randn_like(wanted)
        pairs = zip(*(torch.autograd.grad(y, leaves, cotangent) for y in (found, wanted)), strict=True)
        for k, (a, b) in enumerate([(found, wanted), *pairs]):
            if a.stride() != b.stride() or not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
                out.append(f"{name}: value {k} differs by {(a - b).abs().max():.2g}")
        COUNTS.errors += MEMORY.problems()
    return [*out, *COUNTS.errors]


def difference(program: Any) -> str | None:
    """How a random graph differs from eager, or why its kernels could not run; None also where they would take too long."""
    from .graph_comparison import outcome

    errors, skipped = len(COUNTS.errors), COUNTS.skipped.total()
    try:
        found = outcome(program).difference
    except Skipped:
        found = None
    COUNTS.errors += MEMORY.problems()
    if COUNTS.errors[errors:]:
        found = COUNTS.errors.pop()
        del COUNTS.errors[errors:]
    elif COUNTS.skipped.total() > skipped:
        return None
    return found


def graphs(seeds: Iterable[str], count: int) -> list[str]:
    """The differences that random graphs show: for each seed of the first, in a small form."""
    from .graph_comparison import reduced
    from .random_graphs import SIZES, WIDE_SIZES, first_failing

    told: dict[str, str] = {}  # again it may be another compilation, from the cache

    def fails(program: Any) -> bool:
        found = difference(program)
        told[str(program)] = found or ""
        return bool(found)

    out: list[str] = []
    for seed in map(int, seeds):
        found, seen = first_failing(count, seed, fails, (SIZES, WIDE_SIZES)[seed % 2])
        COUNTS.graphs += seen
        if found:
            small = reduced(found, fails)
            out.append(f"seed {seed}: {told[str(small)]}\n\n{small}\n\nfound as\n\n{found}")
    return out


def attention(names: Iterable[str]) -> list[str]:
    """The differences that attention shows as it is written out, of few rows and of more, and where it does not become a kernel."""
    import fuselens
    from tests.rewrite.spellings import HEADS, SPELLINGS, inputs

    out = []
    for name in names:
        spelling = SPELLINGS[name]
        shared = spelling.groups not in (None, HEADS)
        for length, keys, dtype in ((1, 150, torch.float16), (3, 70, torch.float32), (17, 256, torch.float16)):
            given = inputs(spelling, length, keys, dtype, 16)
            compiled = fuselens.compile(spelling.write, fullgraph=True)
            with torch.no_grad():
                found, eager = compiled(*given), spelling.write(*given)
            exact = spelling.write(*(t.double() if t.is_floating_point() else t for t in given))
            worst, eagers = ((t.double() - exact).nan_to_num().abs().max().item() for t in (found, eager))
            kernels = [k.kind for k in compiled.__fuselens__.recorder.report.kernels]
            own = spelling.taken and (dtype != torch.float32 or shared)
            case = f"{name}, {length} rows, {dtype}"
            if worst > 1.2 * eagers + torch.finfo(dtype).eps or not torch.equal(found.isnan(), eager.isnan()):
                out.append(f"{case}: {worst} from what is exact, eager {eagers}")
            if ("attention" in kernels) != own:
                out.append(f"{case}: {kernels}")
    return [*out, *COUNTS.errors]


def decided() -> list[str]:
    """What of numbers, sizes and branches that data decides does not go as in C++, where every part is loops."""
    from . import test_decided_by_data as programs

    out = []
    for name in (
        "a_number_a_nonzero_and_a_mask",
        "gradients_through_a_mask",
        "a_branch_that_data_chooses",
        "a_loop_that_data_ends",
    ):
        try:
            getattr(programs, f"test_{name}")()
        except AssertionError as error:
            out.append(f"{name}: {error}")
    return [*out, *COUNTS.errors]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("operators", "models", "tuned", "attention", "graphs", "images", "decided"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--most", type=int, default=2, help="signatures of an operator and dtype")
    parser.add_argument("--choose", type=int, help="seed of choices by chance among what measuring would choose from")
    parser.add_argument("--small", action="store_true", help="a card for which short rows are long")
    parser.add_argument("--count", type=int, default=50, help="graphs of a seed")
    given = parser.parse_args()
    os.environ |= {"FUSELENS_CACHE_DIR": _SCRATCH.name, "FUSELENS_STRICT": "1"}
    torch.set_num_threads(1)
    install()
    if given.small:
        small()
    if given.choose is not None:
        choose(given.choose)
    said = os.dup(1)
    os.dup2(2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if given.what == "models":
            differences = models(given.names)
        elif given.what == "tuned":
            differences = tuned()
        elif given.what == "images":
            differences = images()
        elif given.what == "graphs":
            differences = graphs(given.names, given.count)
        elif given.what == "decided":
            differences = decided()
        elif given.what == "attention":
            differences = attention(given.names)
        else:
            from . import operator_database as database
            from .test_interpreted import DTYPES

            k, n = map(int, given.shard.split("/"))
            cases = [c for c in database.cases("cpu", DTYPES) if c not in INEXACT][k::n] if given.all else []
            cases += [(name, dtype) for name, _, dtype in (case.rpartition(":") for case in given.names)]
            differences = operators(cases, given.most)
    counts = vars(COUNTS) | {"differences": differences}
    os.write(said, (json.dumps(counts) + "\n").encode())
    sys.stdout = sys.stderr


if __name__ == "__main__":
    main()
