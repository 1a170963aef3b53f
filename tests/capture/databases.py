"""The databases of torch's own test suite (modules, optimisers), which come with its wheel."""

from __future__ import annotations

import importlib
import sys
import types
import unittest
from typing import Any

import pytest
import torch


def database(name: str) -> Any:
    """The module ``torch.testing._internal.<name>``."""
    with pytest.MonkeyPatch.context() as patch:
        stub = types.ModuleType("expecttest")  # imported for a base class of test cases, which is not used here
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "expecttest", sys.modules.get("expecttest", stub))
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)  # other tests set them
        return importlib.import_module(f"torch.testing._internal.{name}")
