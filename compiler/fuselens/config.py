"""The configuration: one frozen dataclass, passed down. The environment is read in :func:`from_environment` only."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
import os
import re
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WEEK = 604800
TARGET = re.compile(r"auto|cpu|cuda(:sm_\d+[af]?)?")
UNTIL = re.compile(r"|capture|joint|lower|(simplify|fuse|generate)(:\d+)?")  # the number: so many rewrites or fusions
EXECUTIONS = ("slice", "import", "never")
TARGETS = "auto, cpu, cuda or a GPU's architecture, such as cuda:sm_90"


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A GPU: ``memory`` is what torch says that it has in all, in bytes."""

    name: str
    architecture: int
    memory: int


def _gib(count: float) -> int:
    return int(count * 2**30)


CARDS: dict[str, KnownCard] = {
    "t4": KnownCard("T4", 75, _gib(14.56)),
    "v100-16gb": KnownCard("V100", 70, _gib(15.77)),
    "v100-32gb": KnownCard("V100", 70, _gib(31.73)),
    "a10": KnownCard("A10", 86, _gib(21.99)),
    "a100-40gb": KnownCard("A100", 80, _gib(39.39)),
    "a100-80gb": KnownCard("A100", 80, _gib(79.14)),
    "a6000": KnownCard("RTX A6000", 86, _gib(47.53)),
    "rtx3090": KnownCard("RTX 3090", 86, _gib(23.68)),
    "rtx4090": KnownCard("RTX 4090", 89, _gib(23.53)),
    "l4": KnownCard("L4", 89, _gib(21.95)),
    "l40s": KnownCard("L40S", 89, _gib(44.39)),
    "h100": KnownCard("H100", 90, _gib(79.11)),
    "h200": KnownCard("H200", 90, _gib(139.8)),
    "b200": KnownCard("B200", 100, _gib(178.35)),
    "rtx5090": KnownCard("RTX 5090", 120, _gib(31.36)),
}


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that steers a compilation. All fields but those in ``_APART`` enter cache keys."""

    target: str = "auto"  # "auto", "cpu", "cuda", "cuda:sm_90"
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str = "default"
    backend: str = "fuselens"
    symbolic_module_integers: bool = False  # integer attributes of nn.Modules become symbolic too when they change
    capture_scalar_outputs: bool = False  # item(), int(tensor), float(tensor) do not end the graph
    capture_dynamic_output_shape_ops: bool = False  # nonzero(), boolean masks, unique() do not end the graph
    recompile_limit: int = 8  # compilations of one frame that differ in more than its tensors, and of each of these
    accumulated_recompile_limit: int = 256  # compilations of one function and of what resumes it after graph breaks
    error_on_recompile: bool = False
    fail_on_recompile_limit_hit: bool = (
        False  # raise `RecompileError` where a limit is reached, in place of running eagerly
    )
    minimum_call_count: int = 1  # the call of a frame that compiles it; those before run eagerly
    specialize_int: bool = False  # integers are never symbols: another one compiles again
    specialize_float: bool = False  # nor are floats
    suppress_errors: bool = False  # where a backend of the program's own raises, run eagerly
    guard_filter_fn: Callable[..., Any] | None = (
        None  # which guards to keep: entries → a bool for each; the rest is not checked
    )
    keep_sizes: bool = True  # which sizes varied is kept in the cache: the next run begins with symbols for them
    guard_costs: bool = False  # measure each guard, for the report
    regions: bool = True  # what a graph computes again and again, as layers do, is compiled once
    freezing: bool = False  # without gradients: compute once what depends on parameters and buffers alone
    fallback_random: bool = False  # draw exactly eager's numbers
    fast_math: bool = False  # on the CPU: sums in any order, approximate maths, no care for NaN, infinity and -0
    memory_budget: float = 1.0  # bytes kept for the backward, as a part of what the fastest choice keeps: 0 to 1
    bucket_cap_mb: float = 0.0  # MiB of small collectives that become one, 0: none; every rank runs the same graphs
    measure_overlap: bool = False  # whether FL418 tells how long collectives took, and were waited for
    cuda_graph_memory: float = 0.5  # part of a GPU's memory that its recorded calls may hold
    keep_freed_memory: bool = True  # in this process, instead of giving it back to the system after each step (glibc)
    build_limit: float = 300.0  # seconds after which a compiler that builds kernels is ended
    debug_symbols: bool = False  # C++ kernels know the lines of the program that they come from, for perf and gdb
    build: bool = True  # without: graphs run as captured, and what their kernels would be is worked out after the call
    explore: bool = False  # compile both sides of data-dependent branches (the editor's and explain()'s mode)
    weightless: bool = (
        False  # on the CPU, graphs with large tensors compute nothing: for one who looks (a check's mode)
    )
    # in a check: evaluate what a program compiles ("slice"), "import" every file, or "never" run one
    execution: str = "slice"
    preview: bool = False  # in a check: look at a file that compiles nothing as if it compiled its modules
    as_mode: str = ""  # in a check: compile with this mode in place of the one that the author states
    card: str = ""  # in a check: whether a step of training fits the memory of this card, such as h100: see CARDS
    step_limit: str = ""  # in a check: whether it fits this much, such as 40GiB
    step_memory: bool = False  # in a check: predict what a step holds, also where no limit is given
    step_sizes: str = ""  # in a check: the sizes of the step, such as batch=64
    step_optimizer: str = ""  # in a check: of the step, such as adamw; "none": without; "": the program's
    ranks: int = 0  # in a check: look at a function as so many ranks would run it
    mesh: str = ""  # in a check: how these ranks are laid out, such as "data=8,tensor=8"
    ranks_per_host: int = 8  # ranks that the faster link connects
    host_link: str = "450 GB/s, 3.4 us"  # bandwidth one way and latency inside of a host: NVLink of an H100
    network_link: str = "50 GB/s, 14 us"  # the same between hosts, for each rank: InfiniBand NDR
    cache_dir: Path = field(default_factory=lambda: _absolute(Path("~/.cache/fuselens")))
    cache_limit: int = 10 << 30  # bytes of the cache; what was not used for longest goes first; 0: no limit
    pins: bool = True  # use kernels of the project, in .fuselens/kernels, where they are pinned to what is compiled
    patches: bool = True  # trace what the project's patches, in .fuselens/patches, make of libraries
    remote_cache: str = ""  # an address of fsspec or Redis: a cache that machines share; off where it is empty
    remote_cache_secret: str = field(default="", repr=False)  # entries of the shared cache are signed with it
    cxx: str = ""  # empty: $CXX, else g++, clang++, ziglang
    cpu_isa: str = ""  # "", "avx2", "avx512", "neon", "scalar"
    until: str = ""  # the stage after which graphs run as they are (see UNTIL): how `fuselens bisect` finds a wrong one
    print_after: tuple[str, ...] = ()
    dump: Path | None = None
    strict: bool = False  # raise the compiler's own errors instead of running eagerly (its tests do)
    live: bool | None = None  # show the editor what happens in this process; None: where the editor asks for it
    triton_text: bool = False  # also generate Triton text for CPU graphs, as a document
    assembly: tuple[str, ...] = ()  # those of ASSEMBLY that a report has the texts of, or "all"
    triton_variables: tuple[str, ...] = ()  # what the environment tells Triton's compiler: name=value

    def __post_init__(self) -> None:
        if not TARGET.fullmatch(self.target):
            raise ValueError(f"target is {self.target!r}: give {TARGETS}")
        if self.as_mode and self.as_mode not in MODES:
            raise ValueError(f"as_mode is {self.as_mode!r}: give {', '.join(MODES)}")
        if not UNTIL.fullmatch(self.until):
            raise ValueError(f"until is {self.until!r}: give capture, joint, simplify, lower, fuse or generate")
        if self.execution not in EXECUTIONS:
            raise ValueError(f"execution is {self.execution!r}: give {', '.join(EXECUTIONS[:-1])} or {EXECUTIONS[-1]}")
        in_mesh = math.prod(mesh_of(self.mesh).values())
        if self.ranks < 0 or (self.mesh and self.ranks not in (0, in_mesh)):
            raise ValueError(
                f"ranks is {self.ranks}: give as many as the mesh {self.mesh or 'holds'} has, or 0 for none"
            )
        if self.card and self.card not in CARDS:
            raise ValueError(f"card is {self.card!r}: give one of {', '.join(CARDS)}, or step_limit")
        if self.step_limit and not bytes_of(self.step_limit):
            raise ValueError("step_limit is 0: give bytes, or a number with KiB, MiB, GiB or TiB")
        sizes_of(self.step_sizes)
        if self.ranks_per_host < 1:
            raise ValueError(f"ranks_per_host is {self.ranks_per_host}: give 1 or more")
        for link in (self.host_link, self.network_link):
            link_of(link)
        if not 0.0 <= self.memory_budget <= 1.0:
            raise ValueError(f"memory_budget is {self.memory_budget}: give a number from 0 (recompute) to 1 (keep)")
        if not 0.0 <= self.cuda_graph_memory <= 1.0:
            raise ValueError(
                f"cuda_graph_memory is {self.cuda_graph_memory}: give a part of the GPU's memory, from 0 to 1"
            )
        if not 0.0 <= self.bucket_cap_mb < math.inf:
            raise ValueError(f"bucket_cap_mb is {self.bucket_cap_mb}: give MiB, or 0 for no buckets")
        for name in ("recompile_limit", "accumulated_recompile_limit", "minimum_call_count"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.cache_limit < 0:
            raise ValueError(f"cache_limit is {self.cache_limit}: give bytes, or 0 for no limit")
        if not 0.0 < self.build_limit <= _WEEK:
            raise ValueError(f"build_limit is {self.build_limit}: give seconds, from more than 0 to {_WEEK}")

    @property
    def predicts_memory(self) -> bool:
        """Whether a check says what a step of training holds."""
        return self.step_memory or bool(self.card or self.step_limit)

    @property
    def limit_bytes(self) -> int:
        """What a step may hold; 0 where ``step_limit`` says nothing."""
        return bytes_of(self.step_limit) if self.step_limit else 0

    @property
    def world_size(self) -> int:
        """Ranks that a check looks at a function for; 0: none."""
        return math.prod(mesh_of(self.mesh).values()) if self.mesh else self.ranks


_KINDS = typing.get_type_hints(Config)
ASSEMBLY = frozenset(
    {"ttir", "ttgir", "llir", "ptx", "sass"}
)  # what Triton's compilers make, recorded for who asks for it
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_OPTION_FIELDS = frozenset(f.name for f in dataclasses.fields(Config)) - {"backend", "mode", "fullgraph", "dynamic"}


_TRITON = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_", "DISABLE_")
_PLACES = ("_DIR", "_HOME")  # where Triton keeps things

_patches: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("fuselens_config", default={})  # noqa: B039


@contextlib.contextmanager
def patch(**options: Any) -> Iterator[None]:
    """Inside, also as a decorator, these options are the defaults of what is given to ``fuselens.compile``.

    Unknown names raise ValueError, values of other types TypeError.
    """
    token = _patches.set({**_patches.get(), **_values(options)})
    try:
        yield
    finally:
        _patches.reset(token)


def from_environment(environ: Mapping[str, str] | None = None, **changes: Any) -> Config:
    """The process' configuration: defaults, then ``FUSELENS_*`` variables, then ``changes``."""
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    if env.get("FUSELENS_CACHE_DIR"):
        values["cache_dir"] = Path(env["FUSELENS_CACHE_DIR"])
    elif env.get("XDG_CACHE_HOME"):
        values["cache_dir"] = Path(env["XDG_CACHE_HOME"]) / "fuselens"
    if env.get("FUSELENS_CACHE_LIMIT"):
        try:
            values["cache_limit"] = bytes_of(env["FUSELENS_CACHE_LIMIT"])
        except ValueError as error:
            raise ValueError(f"FUSELENS_CACHE_LIMIT: {error}") from None
    if env.get("FUSELENS_REMOTE_CACHE"):
        values["remote_cache"] = env["FUSELENS_REMOTE_CACHE"]
    if env.get("FUSELENS_REMOTE_CACHE_SECRET"):
        values["remote_cache_secret"] = env["FUSELENS_REMOTE_CACHE_SECRET"]
    if env.get("FUSELENS_PRINT_AFTER"):
        values["print_after"] = tuple(s.strip() for s in env["FUSELENS_PRINT_AFTER"].split(",") if s.strip())
    if env.get("FUSELENS_DUMP"):
        values["dump"] = Path(env["FUSELENS_DUMP"])
    elif env.get("FUSELENS_DEBUG", "0") != "0":
        values["dump"] = _folder_of_run()
    if env.get("FUSELENS_TARGET"):
        values["target"] = env["FUSELENS_TARGET"]
    if env.get("FUSELENS_CPU_ISA"):
        values["cpu_isa"] = env["FUSELENS_CPU_ISA"]
    if env.get("FUSELENS_STRICT"):
        values["strict"] = env["FUSELENS_STRICT"] != "0"
    if env.get("FUSELENS_MEASURE_OVERLAP"):
        values["measure_overlap"] = env["FUSELENS_MEASURE_OVERLAP"] != "0"
    if env.get("FUSELENS_KEEP_SIZES"):
        values["keep_sizes"] = env["FUSELENS_KEEP_SIZES"] != "0"
    if env.get("FUSELENS_PINS"):
        values["pins"] = env["FUSELENS_PINS"] != "0"
    if env.get("FUSELENS_PATCHES"):
        values["patches"] = env["FUSELENS_PATCHES"] != "0"
    if env.get("FUSELENS_LIVE"):
        values["live"] = env["FUSELENS_LIVE"] != "0"
    if env.get("CXX"):
        values["cxx"] = env["CXX"]
    values["triton_variables"] = triton_variables(env)
    values.update(_patches.get())
    values.update(changes)
    config = Config(**values)
    return dataclasses.replace(config, cache_dir=_absolute(config.cache_dir))


def logs(environ: Mapping[str, str] | None = None) -> tuple[str, str, str]:
    """What the environment asks to be logged, in which format, and into which file."""
    env = os.environ if environ is None else environ
    return env.get("FUSELENS_LOGS", ""), env.get("FUSELENS_LOGS_FORMAT", ""), env.get("FUSELENS_LOGS_OUT", "")


@functools.cache
def _folder_of_run() -> Path:
    """Where ``FUSELENS_DEBUG=1`` writes, in the folder that the program was started in: each run has a folder of its own."""
    return _absolute(Path("fuselens_debug") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}")


_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d*)\s*")
_LINK = re.compile(r"\s*(\d+(?:\.\d+)?) ?([KMGT]?)B/s, ?(\d+(?:\.\d+)?) ?([mun]?)s\s*")


def mesh_of(text: str) -> dict[str, int]:
    """``data=8,tensor=8`` as name → size, the outermost dimension first; nothing for "". Raises ValueError."""
    found = [_AXIS.fullmatch(part) for part in text.split(",")] if text.strip() else []
    sizes = {axis[1]: int(axis[2]) for axis in found if axis is not None}
    if len(sizes) < len(found):
        raise ValueError(f"mesh is {text!r}: give names and sizes, such as data=8,tensor=8")
    return sizes


_SIZE = re.compile(r"\s*([A-Za-z_]\w*(?:\.\d+)?)\s*=\s*([1-9]\d*)\s*")


def sizes_of(text: str) -> dict[str, int]:
    """``batch=64,length=1024`` as name → size; nothing for "". Raises ValueError."""
    found = [_SIZE.fullmatch(part) for part in text.split(",")] if text.strip() else []
    sizes = {size[1]: int(size[2]) for size in found if size is not None}
    if len(sizes) < len(found):
        raise ValueError(f"step_sizes is {text!r}: give names and sizes, such as batch=64,length=1024")
    return sizes


def link_of(text: str) -> tuple[float, float]:
    """``450 GB/s, 3.4 us`` as bytes a second and seconds. Raises ValueError."""
    found = _LINK.fullmatch(text)
    if found is None or not float(found[1]):
        raise ValueError(f"a link is {text!r}: give bandwidth and latency, such as 450 GB/s, 3.4 us")
    bandwidth = float(found[1]) * 1000.0 ** " KMGT".index(found[2] or " ")
    return bandwidth, float(found[3]) * {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}[found[4]]


_BYTES = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B?", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """``500MiB`` or ``2GiB`` in bytes. Raises ValueError."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size: give bytes, or a number with KiB, MiB, GiB or TiB")
    return int(float(found[1]) * 1024 ** (1 + "kmgt".index(found[2][0].lower()) if found[2] else 0))


def _absolute(path: Path) -> Path:
    """``path`` wherever the process goes; where no home folder is known it stays below ``~``, which nobody can use."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        return path


def triton_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What an environment tells Triton's compiler."""
    found = (f"{name}={v}" for name, v in environ.items() if name.startswith(_TRITON) and not name.endswith(_PLACES))
    return tuple(sorted(found))


def with_options(config: Config, options: Mapping[str, Any] | None) -> Config:
    """``config`` changed by the ``options=`` of :func:`fuselens.compile`. Unknown names raise ValueError, values of
    other types TypeError."""
    return dataclasses.replace(config, **_values(options)) if options else config


def _values(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` as the fields of a configuration hold them."""
    for name in options:
        if name not in _OPTION_FIELDS:
            raise ValueError(f"unknown option {name!r}; known options are {', '.join(sorted(_OPTION_FIELDS))}")
    return {name: _value(name, value) for name, value in options.items()}


def _value(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if kind == tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, (list, tuple)) and all(isinstance(part, str) for part in parts):
            return tuple(parts)
    elif kind in (Path, Path | None) and isinstance(value, (str, os.PathLike)):
        return Path(value).expanduser()
    elif name == "guard_filter_fn":
        if value is None or callable(value):
            return value
        raise TypeError(f"option guard_filter_fn takes a function, not {value!r}")
    elif isinstance(value, (int, float) if kind is float else kind):
        return value
    raise TypeError(f"option {name} takes {kind.__name__ if isinstance(kind, type) else kind}, not {value!r}")


def last_stage(config: Config) -> tuple[str, int | None]:
    """The stage that ``until`` names, "" for none, and how many of its rewrites or fusions are made; None: all."""
    name, _, most = config.until.partition(":")
    return name, int(most) if most else None


def assembly_of(config: Config) -> frozenset[str]:
    """The stages of ``ASSEMBLY`` that somebody asked for."""
    asked = {name.partition(".")[0] for name in (*config.assembly, *config.print_after)}
    return ASSEMBLY if config.dump is not None or "all" in asked else ASSEMBLY & asked


# What a graph becomes does not depend on how it was captured, how often, where things are kept and what is printed.
_APART = frozenset({
    "fullgraph", "dynamic", "symbolic_module_integers", "capture_scalar_outputs", "capture_dynamic_output_shape_ops",
    "recompile_limit", "accumulated_recompile_limit", "error_on_recompile", "fail_on_recompile_limit_hit", "minimum_call_count",
    "specialize_int", "specialize_float", "suppress_errors", "guard_filter_fn", "keep_sizes", "guard_costs", "cuda_graph_memory",
    "keep_freed_memory", "build", "build_limit", "explore", "weightless", "execution", "preview", "as_mode",
    "card", "step_limit", "step_memory", "step_sizes", "step_optimizer",
    "ranks", "mesh", "measure_overlap",
    "cache_dir", "cache_limit", "remote_cache", "remote_cache_secret", "print_after", "dump", "strict", "live",
    "assembly", "triton_variables", "debug_symbols", "pins", "patches",
})  # fmt: skip


def cache_key(config: Config) -> dict[str, Any]:
    """The part of the configuration that changes generated code."""
    return {f.name: str(getattr(config, f.name)) for f in dataclasses.fields(config) if f.name not in _APART}


_OF_CAPTURE = (
    "fullgraph",
    "dynamic",
    "symbolic_module_integers",
    "capture_scalar_outputs",
    "capture_dynamic_output_shape_ops",
    "specialize_int",
    "specialize_float",
    "strict",
)


def capture_key(config: Config) -> dict[str, Any]:
    """The part of the configuration that changes what is captured of a frame, or what its graph becomes."""
    return cache_key(config) | {name: str(getattr(config, name)) for name in _OF_CAPTURE}


def changed_options(config: Config) -> dict[str, Any]:
    """The options of ``config`` that change generated code and are not at their defaults, as ``options=`` takes them."""
    default = Config()
    names = (f.name for f in dataclasses.fields(config) if f.name in _OPTION_FIELDS - _APART)
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(default, name)}
