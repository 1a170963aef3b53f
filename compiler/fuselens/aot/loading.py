"""Loads an artifact: guards, code and kernels become a callable. Nothing is traced, and no compiler runs."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import torch_private
from ..capture.frame.captured import Captured
from ..capture.frame.mismatch import mismatch
from ..capture.frame.resuming import END
from ..capture.hook import _hook, tensor_layout
from ..capture.kept import graphs
from ..capture.kept.names import Gone, Reader
from ..config import Config
from ..pipeline import Recorder, programs
from ..pipeline.graph_cache import form
from ..pipeline.graphs import of_entry
from ..record.report import Report
from ..runtime import build
from ..runtime.cache.store import Cache
from ..runtime.compile_graph import unit
from . import container, targets
from .container import Container, refuse

_X86 = ("avx512", "avx2", "sse2", "scalar")
_RUNS = {**{isa: _X86[i:] for i, isa in enumerate(_X86)}, "neon": ("neon", "scalar")}
"""Which instruction sets a processor runs."""


class Artifact:
    """A function of an artifact: called as the function was that it was made of.

    ``name`` and ``path`` tell what it is; ``digest`` is that of its content. ``calls`` tells, for each call that it was made for,
    the inputs, the guards that are checked, those that its making has settled, and those that were dropped. ``weights`` are its
    tensors by name, those of a module's state as in its ``state_dict``. ``report`` is that of its graphs and kernels.
    Raises :class:`ArtifactError` (FL929) for a call that no guards let through.
    """

    def __init__(self, opened: Container, weights: Mapping[str, torch.Tensor], region: Any, report: Report) -> None:
        about = opened.about
        self.path, self.digest, self.name = opened.path, opened.digest, about["name"]
        self.calls: list[dict[str, Any]] = about["calls"]
        self.weights, self.report, self.training = dict(weights), report, bool(about["training"])
        self._region = region
        self._inside = (self,) * region.__dict__["held"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            return self._region(*self._inside, *args, **kwargs)
        with torch.no_grad():
            return self._region(*self._inside, *args, **kwargs)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The tensors, as they are now, by name."""
        return {name: tensor.detach() for name, tensor in self.weights.items()}

    def parameters(self) -> list[torch.Tensor]:
        """The tensors that require gradients: for an optimizer."""
        return [tensor for tensor in self.weights.values() if tensor.requires_grad]

    def __repr__(self) -> str:
        return f"<fuselens.Artifact {self.name} of {self.path}, {len(self.calls)} ways to call it>"


class _AsWritten:
    """Stands where a frame would run as it was written after its graph raised: an artifact does not have that code."""

    def __call__(self, error: BaseException, *_: Any) -> Any:
        raise error


def load(path: Path, *, config: Config, weights: Mapping[str, torch.Tensor] | None, sha256: str) -> Artifact:
    """See :func:`fuselens.load`."""
    if not programs.has_cpp_hosts():
        raise refuse("FL928", what=str(path), why="this torch does not have what host programs in C++ call")
    opened = Container(path)
    if sha256 and opened.digest != sha256:
        raise refuse("FL928", what=str(path), why=f"its digest is {opened.digest}, and {sha256} is expected")
    about = opened.about
    programs_of = _programs_here(path, about, config)
    try:
        for module in about["imports"]:
            importlib.import_module(module)
        tensors = _tensors(opened, weights)
        content = form().read(opened.part("frames"))
        cache = Cache(config.cache_dir)
        for part in opened.names("cache/"):
            cache.take(part.partition("/")[2], opened.part(part))
        recorder = Recorder(about["name"], "", None, config, texts=False, backwards=about["training"])
        function = _function(content["function"], about["name"])
        entries = [
            _entry(opened, frame, f"graphs/{number}.{programs_of}", function.__code__, config, tensors, recorder)
            for number, frame in enumerate(content["frames"])
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise refuse("FL928", what=str(path), why=f"it means something else to this fuselens: {error!r}") from error
    except ImportError as error:
        raise refuse("FL928", what=str(path), why=f"it needs the module {error.name}: {error}") from error
    except Gone as error:
        raise refuse("FL928", what=str(path), why=f"this process does not have {error}") from None
    region = _hook.Region(function, _Entries(str(path), function.__code__, entries), object())
    region.__dict__["held"] = content["function"]["held"]
    return Artifact(opened, tensors, region, recorder.report)


def _programs_here(path: Path, about: Mapping[str, Any], config: Config) -> str:
    """What names the programs for this system and processor: the best instruction set in the artifact that it has. Raises
    ArtifactError where the artifact was made with something else than there is here."""
    made = ".".join(map(str, about["python"])), _release(about["torch"])
    own = f"{sys.version_info[0]}.{sys.version_info[1]}", _release(torch.__version__)
    for what, was, found in zip(("python", "torch"), made, own, strict=True):
        if was != found:
            raise refuse("FL928", what=str(path), why=f"it was made with {what} {was}, and this is {found}")
    here = targets.here(())
    made_for = {target.place: target for target in map(targets.Target.from_data, about["targets"])}
    if here.place not in made_for:
        why = f"it was made for {' and '.join(made_for)}, and this is {here.place}"
        raise refuse("FL928", what=str(path), why=why)
    host = build.host_isa(config)
    for isa in made_for[here.place].isas:
        if isa in _RUNS[host]:
            return f"{here.place}.{isa}"
    known = ", ".join(made_for[here.place].isas)
    raise refuse("FL928", what=str(path), why=f"it has code for {known}, and this processor has {host}")


def _release(version: str) -> str:
    """A version of torch without what tells which devices its wheel is for: "2.13.0" of "2.13.0+cpu"."""
    return re.sub(r"\+(cpu|cu\d+|rocm[\d.]*|xpu)$", "", version)


def _tensors(opened: Container, given: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """The artifact's tensors: those in it, or those that are given, by name."""
    wanted = opened.about["weights"]
    inside = container.loaded_tensors(opened.part(container.WEIGHTS)) if opened.has(container.WEIGHTS) else {}
    found = {**inside, **(given or {})}
    missing = [name for name in wanted if name not in found]
    if missing:
        why = f"weights= lacks {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}, which are not in it"
        raise refuse("FL928", what=str(opened.path), why=why)
    return {name: _weight(opened.path, name, like, found[name]) for name, like in wanted.items()}


def _weight(path: Path, name: str, like: Mapping[str, Any], tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the artifact has it: a ``state_dict`` has detached ones, whose memory is the module's."""
    layout = [str(tensor.dtype), list(tensor.shape)]
    if layout != [like["dtype"], like["shape"]]:
        why = f"the weight {name} is a {layout[0]} of {layout[1]}, and it was made for a {like['dtype']} of {like['shape']}"
        raise refuse("FL928", what=str(path), why=why)
    if like["parameter"] and not isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=like["requires_grad"])
    return tensor


def _function(stub: Mapping[str, Any], name: str) -> types.FunctionType:
    """A function with the parameters of the one that was compiled."""
    positional, only, keywords = stub["counts"]
    names, (stars, pairs) = list(stub["names"]), stub["starred"]
    for found in names:
        if not found.isidentifier():
            raise ValueError(found)
    plain, named, rest = names[:positional], names[positional : positional + keywords], names[positional + keywords :]
    text = [*plain[:only], *(["/"] if only else []), *plain[only:]]
    if stars:
        text.append(f"*{rest.pop(0)}")
    elif named:
        text.append("*")
    text += named
    if pairs:
        text.append(f"**{rest.pop(0)}")
    cells = [f"__fuselens_cell_{i}" for i in range(stub["free"])]
    made = f"def function({', '.join(text)}):\n        return ({''.join(f'{c}, ' for c in cells)})"
    space: dict[str, Any] = {}
    exec(f"def outer({', '.join(cells)}):\n    {made}\n    return function", space)
    function = space["outer"](*cells)
    find = Reader()
    function.__defaults__ = find(stub["defaults"]) or None
    function.__kwdefaults__ = {key: find(value) for key, value in stub["keywords"]} or None
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(
        co_filename=stub["file"], co_firstlineno=stub["line"], co_name=name.rpartition(".")[2], co_qualname=name
    )
    return function


def _entry(
    opened: Container, frame: Mapping[str, Any], name: str, code: types.CodeType, config: Config,
    tensors: Mapping[str, torch.Tensor], recorder: Recorder,
) -> _hook.Entry:  # fmt: skip
    special = {
        "weight": tensors.__getitem__,
        "global": lambda module, name: vars(sys.modules[module])[name],
        "graph": lambda: graph,
        "end": lambda: END,
        "retry": lambda *_: _AsWritten(),
    }
    find = Reader(special)
    nodes = [(parent, kind, find(key)) for parent, kind, key in frame["guards"]["nodes"]]
    checks = [_check(check, find) for check in frame["guards"]["checks"]]
    tensor_layout.ensure()
    guards = _hook.Guards(nodes, checks, frame["guards"]["gather"])
    graph = None
    if frame["graph"] is not None:
        entry = form().read(opened.part(f"{name}.forward"))
        backward = form().read(opened.part(f"{name}.backward")) if opened.has(f"{name}.backward") else None
        for phase, program in (("forward", entry.forward), ("backward", backward)):
            if program is not None and opened.has(f"{name}.{phase}.library"):
                carried = build.carried_key(*unit(program.generated.cpp, program.generated.isa_flags, config))
                build.carry(carried, opened.part(f"{name}.{phase}.library"))
        graph = of_entry(_captured(frame["graph"], code.co_name), recorder, entry, backward)
    constants = tuple(map(find, frame["code"]["constants"]))
    made = _hook.Entry(guards, code.replace(**frame["code"]["fields"], co_consts=constants), frame["slot"])
    made.info = frame["texts"]
    _hook.check_fits(code, made)
    return made


def _check(check: tuple[Any, ...], find: Reader) -> tuple[Any, ...]:
    node, kind, *operands = check
    if kind == _hook.IS:  # with what the program says of a function
        operands = operands[:1]
    return node, kind, *map(find, operands)


def _captured(data: Mapping[str, Any], frame: str) -> Captured:
    """The graph, which runs operator by operator where its kernels cannot."""
    graph = graphs.read(data["nodes"])
    module = torch_private.graph_module(torch.nn.Module(), graph)
    return Captured(
        module=module, inputs=[], fakes=[], grad_enabled=data["grad_enabled"], frame=frame, span=None,
        operations=data["operations"], fake_mode=None, owned=tuple(data["owned"]), arguments=tuple(data["arguments"]),
        facts=data["facts"], restored=tuple(data["restored"]),
    )  # fmt: skip


class _Entries:
    """What a region asks where none of its entries serves a call: the one of the artifact that does."""

    def __init__(self, name: str, code: types.CodeType, entries: list[_hook.Entry]) -> None:
        self._name, self._code, self._entries = name, code, entries

    def __call__(self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], misses: Any) -> Any:
        if code is not self._code:  # what its code calls runs as it is
            return None
        why = []
        for entry in self._entries:
            holds, failed, _ = entry.guards.check(function, args)
            if holds:
                return entry
            why.append(mismatch(entry.guards, failed, entry.info, function, args))
        raise refuse("FL929", what=self._name, why="; ".join(dict.fromkeys(why)))
