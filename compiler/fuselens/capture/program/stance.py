"""What the whole process does about compiling at the moment: the default, nothing new, nothing at all."""

from __future__ import annotations

import sys
import types
from typing import Any

from ... import torch_private
from ..hook import _hook

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")
_ours = "default"
_theirs = "default"


def current() -> str:
    """Ours when one was set, else that of ``torch.compiler.set_stance``."""
    return _ours if _ours != "default" else _theirs


def change(stance: str) -> str:
    """Sets our stance; returns the one before."""
    global _ours
    before, _ours = _ours, stance
    _hook.set_regions_off(current() == "force_eager")
    return before


def _follow(stance: Any) -> None:
    global _theirs
    name = getattr(stance, "stance", "default")
    _theirs = name if name in STANCES else "default"
    _hook.set_regions_off(current() == "force_eager")


def _follow_module(module: Any) -> None:
    """Called when the module that holds torch's stance is imported."""
    if isinstance(module, types.ModuleType):
        _hook.watch(module.__dict__, torch_private.PEER_STANCE, _follow)


_hook.watch(sys.modules, torch_private.PEER_STANCE_MODULE, _follow_module)
_hook.set_exclude_other(torch_private.SWITCH_PEER)
