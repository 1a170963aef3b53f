"""What becomes of Triton kernels on their way to a GPU, as documents: TTIR, TTGIR, LLVM IR, PTX and SASS.

The compilers carry along from which line of the Triton module each instruction came. Here that leads on to the user's lines,
and stands behind the instructions as a comment (``// triton.py:26  // model.py:5``) in place of their debug information.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....ir.contracts.source import KernelInfo, Source, user_lines
from ....record.report import Line, Span

SUFFIXES = {"ttir": "mlir", "ttgir": "mlir", "llir": "ll", "ptx": "ptx", "sass": "sass"}
"""The texts in the order in which they are made, and the extensions of their documents."""

_Text = list[tuple[str, int]]  # lines, each with the line of the Triton module that it came from, or 0


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as Triton compiled it: its texts by name, among them its binary (``cubin``), and what it uses: ``registers``
    per thread, ``spills`` (bytes of local memory per thread) and ``shared`` memory (bytes), where known."""

    asm: Mapping[str, Any]
    resources: Mapping[str, int]


def forms() -> tuple[str, ...]:
    """The texts that can be had here."""
    return tuple(form for form in SUFFIXES if form != "sass" or tool("nvdisasm"))


@functools.cache
def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: the one that Triton brings along, else the system's."""
    try:
        import triton
    except ImportError:
        return None
    found = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return str(found) if found.exists() else shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def _of_cubin(cubin: bytes, name: str, *options: str) -> str:
    """What a tool says about a binary; "" without the tool."""
    path = tool(name)
    if path is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [path, *options, file.name], capture_output=True, encoding="utf-8", errors="replace", check=False
        ).stdout


_ARRAYS = re.compile(rb"\.local [^;]*__local_depot\d+\[(\d+)\]")
_STACK = 8  # bytes, of which stacks are multiples


def resource_usage(cubin: bytes) -> dict[str, int]:
    """``registers`` per thread and ``spills`` of a compiled kernel; 0 where unknown.

    Spills are the bytes of stack per thread beyond arrays of the program's own (of ``sin``, for large arguments), which the
    PTX among the debug information declares.
    """
    text = _of_cubin(cubin, "cuobjdump", "-res-usage")
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    arrays = sum(-(-int(size) // _STACK) * _STACK for size in _ARRAYS.findall(cubin))
    spills = max(0, int(stack[1]) - arrays) if stack else 0
    return {"registers": int(registers[1]) if registers else 0, "spills": spills}


def document(form: str, source: Source, compiled: Mapping[str, Compiled]) -> tuple[str, tuple[Line, ...]]:
    """The text ``form`` of all functions of ``source``, which are ``compiled``, and the user lines behind its lines."""
    user = {line.line: line.spans for line in source.lines}
    comment = ";" if form == "llir" else "//"
    out: list[str] = []
    lines: list[Line] = []
    kernels = [info for info in source.kernels if info.same_as is None and info.name in compiled]
    with ThreadPoolExecutor(len(kernels) or 1) as pool:  # nvdisasm takes some tenths of a second each time
        texts = list(pool.map(lambda info: _READERS[form](compiled[info.name].asm), kernels))
    for info, read in zip(kernels, texts, strict=True):
        out += [""] if out else []
        for heading in _headings(info, source.kernels, compiled[info.name].resources):
            out.append(f"{comment} {heading}")
            lines.append(Line(len(out), info.spans))
        last: tuple[int, tuple[Span, ...]] = (0, ())
        for text, line in read:
            spans = user.get(line, ())
            if line and (line, spans) != last:
                text = f"{text}  {comment} triton.py:{line}" + (f"  {comment} {user_lines(spans)}" if spans else "")
                last = line, spans
            out.append(text)
            if spans:
                lines.append(Line(len(out), spans))
    return "\n".join(out) + "\n", tuple(lines)


def _headings(info: KernelInfo, kernels: Sequence[KernelInfo], resources: Mapping[str, int]) -> list[str]:
    also = [k.name for k in kernels if k.same_as == info.name]
    return [
        f"kernel {info.name}: {', '.join(dict.fromkeys(info.operations)) or info.kind}",
        *([f"also {', '.join(also)}"] if also else []),
        f"{resources['registers']} registers, {resources['spills']} bytes spilled, {resources['shared']} bytes shared",
    ]


# --- MLIR: Triton's own two -------------------------------------------------------------------------------------------

_NAMED = re.compile(r"^(#loc\d*) = (loc\(.*\))$")
_CALL_SITE = re.compile(r"callsite\(.* at (.*)\)$")
_PLACE = re.compile(r'"[^"]*":(\d+):\d+')
_REFERENCE = re.compile(r"#loc\d*")
_LOCATION = re.compile(r" loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")


def _mlir(text: str) -> _Text:
    lines = text.rstrip("\n").split("\n")
    named = {m[1]: m[2] for line in lines if (m := _NAMED.match(line))}

    def line_of(location: str) -> int:
        """Of a location's caller, if it has one: the kernel's own line."""
        while True:
            site = _CALL_SITE.search(location.removeprefix("loc(").removesuffix(")"))
            inner = site[1] if site else location
            if found := _PLACE.search(inner):
                return int(found[1])
            reference = _REFERENCE.search(inner)
            if reference is None or reference[0] not in named:
                return 0
            location = named[reference[0]]

    out: _Text = []
    begun: list[int] = []  # operations with a region: their location stands behind its end
    for line in lines:
        if _NAMED.match(line):
            continue
        locations, bare = _LOCATION.findall(line), _LOCATION.sub("", line)
        at = line_of(locations[-1].strip()) if locations and bare.strip() != "}" else 0
        if bare.endswith("({"):
            begun.append(len(out))
        elif bare.lstrip().startswith("})") and begun:
            first = begun.pop()
            out[first] = out[first][0], at
        out.append((bare, at))
    return out


# --- LLVM IR ----------------------------------------------------------------------------------------------------------

_DEBUG = re.compile(r",? !dbg !(\d+)")
_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!DI")
_DI_LOCATION = re.compile(r"^!(\d+) = (?:distinct )?!DILocation\(line: (\d+)(?:.*inlinedAt: !(\d+))?")


def _llvm(text: str) -> _Text:
    lines = text.rstrip("\n").split("\n")
    places = {m[1]: (int(m[2]), m[3]) for line in lines if (m := _DI_LOCATION.match(line))}

    def line_of(number: str) -> int:
        line, caller = places.get(number, (0, None))
        return line_of(caller) if caller else line

    out: _Text = []
    for line in lines:
        if not _METADATA.match(line):
            debug = _DEBUG.search(line)
            out.append((_DEBUG.sub("", line), line_of(debug[1]) if debug and not line.startswith("define") else 0))
    return out


# --- PTX and SASS -----------------------------------------------------------------------------------------------------

_LOC = re.compile(r"^\s*\.loc\s+(\d+ \d+ \d+)(?:, function_name \S+, inlined_at (\d+ \d+ \d+))?")
_INLINE = re.compile(r"^\s*// (begin|end) inline asm$")
_FRAMES = re.compile(r"\S+:(\d+):\d+(?= \]|$)")
_INSTRUCTION = re.compile(r"^\s+[^\s/.$({})]|^\s+@")
_DEBUG_LABEL = re.compile(r"^\$L__(?:tmp|func_begin|func_end)\d+:$")


def _ptx_places(text: str) -> list[int]:
    """Of each line the line of the module: that of the outermost caller, where code was inlined.

    Triton up to 3.7 writes the callers as a comment. Triton 3.9 names the next one as ``inlined_at``, a place that an earlier
    line has. Within inline assembly places do not count: LLVM adds the number of the assembly's own line to them.
    """
    out: list[int] = []
    outermost: dict[str, int] = {}
    current, inline = 0, False
    for line in text.split("\n"):
        if edge := _INLINE.match(line):
            inline = edge[1] == "begin"
        elif (found := _LOC.match(line)) and not inline:
            place, caller = found.groups()
            frames = _FRAMES.findall(line)
            if caller is not None:
                current = outermost.get(caller, int(caller.split()[1]))
            else:
                current = int(frames[-1] if frames else place.split()[1])
            outermost[place] = current
        out.append(current)
    return out


def _ptx(text: str) -> _Text:
    out: _Text = []
    for line, at in zip(text.rstrip("\n").split("\n"), _ptx_places(text), strict=False):
        if line.strip().startswith((".section\t.debug", ".file")):
            break  # debug information, to the end
        if _LOC.match(line) or _DEBUG_LABEL.match(line):
            continue
        out.append((line.rstrip(), at if _INSTRUCTION.match(line) else 0))
    return out


_FILE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_ENCODED = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/")
_ROOM = re.compile(r"^ {8}(/\*[0-9a-f]+\*/) {0,12}")


def _sass(asm: Mapping[str, Any]) -> _Text:
    """Disassembled, with the lines of PTX that the instructions came from."""
    places = _ptx_places(asm["ptx"])
    text = _of_cubin(asm["cubin"], "nvdisasm", "-gp", "-c") or _of_cubin(asm["cubin"], "nvdisasm", "-c")
    out: _Text = []
    current = 0
    for line in text.rstrip("\n").split("\n"):
        if file := _FILE.match(line):
            number = int(file[2])
            current = places[number - 1] if file[1] == ".nv_debug_ptx_txt" and number <= len(places) else 0
        else:
            out.append((_narrow(line.expandtabs().rstrip()), current if _ENCODED.match(line) else 0))
    return out


def _narrow(line: str) -> str:
    """Without most of the room that nvdisasm leaves, so that what stands behind the instruction is seen."""
    return _ROOM.sub(r"    \1", line) if _ENCODED.match(line) else line.removeprefix("    ")


_READERS = {
    "ttir": lambda asm: _mlir(asm["ttir"]),
    "ttgir": lambda asm: _mlir(asm["ttgir"]),
    "llir": lambda asm: _llvm(asm["llir"]),
    "ptx": lambda asm: _ptx(asm["ptx"]),
    "sass": _sass,
}
