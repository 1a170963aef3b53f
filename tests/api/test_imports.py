"""First calls of a process that import: what runs while a module is imported is no part of the compiled function."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FINDER = """
    class Finder:  # as editable installs and test runners have
        def find_spec(self, name, path=None, target=None):
            return None
    import sys
    sys.meta_path.insert(0, Finder())
"""
PREAMBLE = """
    import torch, fuselens, sys, types
    from fuselens.capture.hook import _hook
    from torch.func import functional_call, grad, vmap
    x = torch.arange(12.0).view(4, 3)
"""

PROGRAMS = {
    "the_peer_by_a_transform": FINDER
    + PREAMBLE
    + """
    m = torch.nn.Linear(3, 1)
    params = {k: v.detach() for k, v in m.named_parameters()}
    def loss(p, x):
        return vmap(lambda v: functional_call(m, p, (v,)).pow(2).sum())(x).sum()
    got, expected = grad(fuselens.compile(loss))(params, x), grad(loss)(params, x)
    assert all(torch.allclose(got[k], expected[k]) for k in expected)
    """,
    "the_peer_in_a_function": FINDER
    + PREAMBLE
    + """
    def f(x):
        import torch._dynamo
        return x * 2
    assert torch.equal(fuselens.compile(f)(x), x * 2)
    """,
    "triton": FINDER
    + PREAMBLE
    + """
    def f(x):
        y = x + 1
        try:
            import triton
        except ImportError:
            pass
        return y * 2
    assert torch.equal(fuselens.compile(f)(x), (x + 1) * 2)
    """,
    "a_lazy_module": PREAMBLE
    + """
    def f(x):
        y = x + 1
        import lazy
        return lazy.helper(y) * lazy.FACTOR
    compiled = fuselens.compile(f)
    assert torch.equal(compiled(x), (x + 1) * 16)
    import lazy
    assert not _hook.entries(lazy.helper) and not _hook.entries(lazy.only_here)
    assert torch.equal(compiled(x), (x + 1) * 16)
    """,
    "a_module_that_imports_a_module": PREAMBLE
    + """
    def f(x):
        import outer
        return x * outer.FACTOR
    assert torch.equal(fuselens.compile(f)(x), x * 8)
    import lazy
    assert not _hook.entries(lazy.only_here)
    """,
    "importlib_by_hand": PREAMBLE
    + """
    import importlib.util
    def f(x):
        spec = importlib.util.find_spec("lazy")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kept.append(module)
        return x * module.FACTOR
    kept = []
    assert torch.equal(fuselens.compile(f)(x), x * 8)
    assert not _hook.entries(kept[0].only_here)
    """,
    "a_module_that_compiles": PREAMBLE
    + """
    def f(x):
        import compiling
        return compiling.compiled(x) + compiling.RESULT
    assert torch.equal(fuselens.compile(f)(x), x + 2)
    import compiling
    assert _hook.entries(compiling.add_one)
    """,
    "a_half_imported_peer_of_another_thread": PREAMBLE
    + """
    sys.modules["torch._dynamo.trace_rules"] = types.ModuleType("torch._dynamo.trace_rules")
    assert torch.equal(fuselens.compile(lambda x: x.sin() + 1, fullgraph=True)(x), x.sin() + 1)
    """,
}

MODULES = {
    "lazy": """
    import torch
    def only_here(v):
        return v * 2 + 1
    def helper(v):
        return v * 2
    FACTOR = int((only_here(torch.ones(3)) + helper(torch.ones(3))).sum()) - 7
    """,
    "outer": """
    import lazy
    FACTOR = lazy.FACTOR
    """,
    "compiling": """
    import fuselens, torch
    def add_one(v):
        return v + 1
    compiled = fuselens.compile(add_one)
    RESULT = compiled(torch.zeros(()))
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_calls_that_import(name: str, tmp_path: Path) -> None:
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(text))
    (tmp_path / "main.py").write_text(textwrap.dedent(PROGRAMS[name]))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FUSELENS_")}
    environment["FUSELENS_CACHE_DIR"] = str(tmp_path / "fuselens-cache")
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "FL1" not in done.stderr, done.stderr
