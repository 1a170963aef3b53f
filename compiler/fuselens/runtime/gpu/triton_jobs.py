"""What Triton is to compile, and the cache of what it made: a second process loads binaries and imports no Triton.

A binary's key is over all that Triton reads: the function's text, without comments and names, and those of its helpers, what is
known of its arguments, the options, the architecture, Triton's version with its libraries, and the environment variables it
looks at.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...system.generated_modules import module_of
from ..cache.store import Cache, key_of

if TYPE_CHECKING:
    from ...ir.contracts.source import KernelInfo, Source

KIND = "cubin"
_FIRST_SIZE = 2
_NOTE = re.compile(r"\s*# [^\"'#\n]*$", re.MULTILINE)  # a quote after it: it may be within a string
_ABOUT = re.compile(r'^    """[^"\n]*"""$', re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ENTRY = re.compile(r"\.entry \w+\(([^)]*)\)")
_ADDED = 2  # parameters that Triton's kernels end with: addresses of scratch memory
_FUNCTION = re.compile(r"^@triton\.jit.*\ndef (\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Binary:
    """A kernel as the driver loads it."""

    name: str
    threads: int
    shared: int
    image: bytes


@dataclass(frozen=True, slots=True)
class Job:
    """A variant of a kernel: ``function`` of the module ``name`` of ``text``. ``key`` is its binary's in the cache."""

    key: str
    name: str
    function: str
    signature: dict[str, str]
    blocks: dict[str, int]
    divisible: tuple[int, ...]  # arguments that are multiples of 16
    options: dict[str, Any]
    architecture: int
    limit: float  # seconds after which its compiler is ended
    length: int = 0  # of its text
    text: str = field(default="", repr=False, compare=False)  # of the module
    scratch: bool = False  # whether it is given memory of its own, after its arguments

    def is_made(self, cache: Cache) -> bool:
        return cache.exists(KIND, self.key)

    def binary(self, cache: Cache) -> Binary | None:
        """What was made of it; None also where another version of the compiler kept it in another form."""
        head, _, image = (cache.get(KIND, self.key) or b"").partition(b"\n")
        try:
            return Binary(**json.loads(head), image=image)
        except (ValueError, TypeError):
            return None

    def make(self, cache: Cache) -> Binary:
        """Compiles it, here. Raises whatever Triton raises."""
        made = self.compiled()
        self._check(made)
        about = {"name": made.metadata.name, "threads": 32 * made.metadata.num_warps, "shared": made.metadata.shared}
        cache.put(KIND, self.key, json.dumps(about).encode() + b"\n" + made.asm["cubin"])
        return Binary(**about, image=made.asm["cubin"])

    def _check(self, made: Any) -> None:
        """Raises where the launcher would not give the kernel what it takes: what it takes is not documented by Triton."""
        entry = _ENTRY.search(made.asm["ptx"])
        taken, given = entry[1].count(".param") if entry else 0, len(self.signature) + _ADDED
        if taken != given:
            raise RuntimeError(
                f"this Triton made a kernel of {taken} parameters, and the launcher knows {given}: use another version of Triton"
            )
        wants = made.metadata.profile_scratch_size or (made.metadata.global_scratch_size and not self.scratch)
        if wants or made.metadata.num_ctas != 1:
            raise RuntimeError(
                "this Triton made a kernel that wants memory or programs of which the launcher knows nothing: use another version of it"
            )

    def compiled(self) -> Any:
        """What Triton makes of it."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        function = getattr(module_of(self.name, self.text), self.function)
        source = ASTSource(
            fn=function,
            signature={**self.signature, **dict.fromkeys(self.blocks, "constexpr")},
            constexprs=self.blocks,
            attrs={(k,): [["tt.divisibility", 16]] for k in self.divisible},
        )
        # kernels that hold assertions would otherwise check each sum of indices, too
        checks = {"debug": bool(getattr(function, "debug", False)), "sanitize_overflow": False}
        target = GPUTarget("cuda", self.architecture, 32)
        return triton.compile(source, target=target, options={**self.options, **checks})


class Module:
    """The kernels of a Triton source."""

    def __init__(self, source: Source, variables: Sequence[str], limit: float) -> None:
        self.text = source.text
        self.name = f"fuselens_kernels_{key_of({'triton': source.text})}"
        self._variables, self._limit = list(variables), limit
        kernels = {k.function for k in source.kernels}
        starts = [*((m.start(), m[1]) for m in _FUNCTION.finditer(source.text)), (len(source.text), "")]
        parts = {name: source.text[a:b] for (a, name), (b, _) in itertools.pairwise(starts)}
        self._head = _bare(source.text[source.text.find("import ") : starts[0][0]])
        self._parts = {name: _bare(text) for name, text in parts.items()}
        self._helpers = self._parts.keys() - kernels

    def _read(self, function: str) -> list[str]:
        """The texts that Triton reads for a function beside its own: of the helpers that it names, which name others."""
        found, new = {function}, {function}
        while new:
            new = {w for name in new for w in _WORD.findall(self._parts[name])} & self._helpers - found
            found |= new
        texts = {name: text for name, text in self._parts.items() if name in found}
        names = {line: line.rpartition(" ")[2] + "." for line in self._head.splitlines()}
        imports = [line for line, name in names.items() if any(name in text for text in texts.values())]
        del texts[function]
        return [*imports, *texts.values()]

    def job(self, info: KernelInfo, variant: int, architecture: int) -> Job:
        """The ``variant`` (see ``_launch.pyi``) of one kernel."""
        names = list(info.launch["signature"])
        pointers = info.pointers
        types = dict(info.launch["signature"])
        for size in names[pointers:]:
            types[size] = "i32" if variant & 2 else "i64"
        divisible = list(range(pointers)) if variant & 1 else []
        divisible += [pointers + k for k in range(len(names) - pointers) if variant >> (_FIRST_SIZE + k) & 1]
        blocks, options = dict(info.launch["blocks"]), dict(info.launch["options"])
        if "ALIGNED" in blocks:
            blocks["ALIGNED"] = variant & 1
        key = key_of({
            "text": [_anonymous(self._parts[info.function], (info.function, *names)), *self._read(info.function)],
            "arguments": [list(types.values()), list(blocks.items()), divisible],
            "options": options,
            "architecture": architecture,
            "compiler": [*versions(), *self._variables],
        })  # fmt: skip
        return Job(
            key, self.name, info.function, types, blocks, tuple(divisible), options, architecture,
            self._limit, len(self._parts[info.function]), self.text, len(info.arguments) > pointers,
        )  # fmt: skip


def _anonymous(text: str, names: Sequence[str]) -> str:
    """Without the names of a kernel and its arguments: parts of a graph that were measured have others than the whole."""
    numbers = {name: f"${k}" for k, name in enumerate(names)}
    return _WORD.sub(lambda word: numbers.get(word[0], word[0]), text)


def _bare(text: str) -> str:
    """Without the comments that name the user's lines, and what tells people of a function."""
    return _NOTE.sub("", _ABOUT.sub("", text)).strip()


@functools.cache
def versions() -> list[str]:
    """What tells one build of Triton from another, without importing it."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    parts = ("*.py", "compiler/*.py", "language/**/*.py", "backends/*.py", "backends/nvidia/*.py", "backends/nvidia/bin/*",
             "backends/nvidia/lib/*", "_C/libtriton*")  # fmt: skip
    files = sorted(f for part in parts for f in root.glob(part))
    found = [(str(f.relative_to(root)), f.stat()) for f in files if f.is_file()]
    version = re.search(r"__version__ = .*", Path(spec.origin).read_text(encoding="utf-8"))
    return [version[0] if version else "", *(f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in found)]
