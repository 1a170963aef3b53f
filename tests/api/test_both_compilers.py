"""What the other compiler leaves in the process when it has run first. In processes of their own: it stays there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import torch
    from torch import nn

    layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
    x = torch.ones(2, 3)
    torch.compile(nn.Linear(3, 3), backend="eager")(x)  # from here on every module that is made is entered into its books
    from torch._dynamo import mutation_guard

    mutation_guard.install_generation_tagging_init()

    import fuselens

    def sliced(x):
        for layer in layers[:2]:
            x = layer(x)
        made = nn.Sequential(nn.ReLU(), nn.Flatten())
        return made(x), len(layers[1:])

    compiled = fuselens.compile(sliced, backend="eager", fullgraph=True)
    for _ in range(2):
        (expected, n), (actual, m) = sliced(x), compiled(x)
        assert torch.equal(expected, actual) and n == m
    print("agrees")
"""

OPTIONS = """
    import torch
    import torch.nn.functional as F

    x = torch.ones(100)
    for options, as_eager in (({"fallback_random": True}, True), (None, False)):
        compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="fuselens", options=options)
        torch.manual_seed(1)
        found = compiled(x)
        torch.manual_seed(1)
        assert torch.equal(found, F.dropout(x, 0.5)) == as_eager
    print("agrees")
"""


def agrees(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "agrees\n", done.stderr


def test_modules_are_made_after_the_peer_has_run() -> None:
    agrees(PROGRAM)


PLACES = """
    import inspect
    import sys

    from fuselens import torch_private

    with torch_private.peer.without_peer_import():
        for module in list(sys.modules.values()):
            getattr(module, "__file__", None), getattr(module, "__warningregistry__", None)
        inspect.getmodule(sys._getframe())
        assert "torch._dynamo" not in sys.modules
        assert sys.modules["torch._dynamo.config"].fake_tensor_cache_enabled
        import torch._dynamo  # as another thread may do meanwhile

        assert torch._dynamo.config.recompile_limit > 0
        assert torch._dynamo.config.__file__
    import torch._dynamo.config as config

    assert config.__file__ and torch._dynamo.config.recompile_limit == config.recompile_limit
    print("agrees")
"""


def test_whoever_asks_all_modules_where_they_are_imports_no_peer() -> None:
    agrees(PLACES)


def test_the_peers_options_reach_the_backend() -> None:
    agrees(OPTIONS)
