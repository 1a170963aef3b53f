"""Changes found in a text: edits out, and what is refused before it is tried."""

from __future__ import annotations

import ast

from fuselens.record.report import Graph, Input, Inputs, Kernel, Report, Span
from fuselens.source import fixes
from fuselens.source.changes import Change, Place, found

HEAD = "import torch\nimport fuselens\n\n\n"
FILE = "/model.py"


def place(
    text: str, *, training: bool = False, operations: tuple[str, ...] = (), inputs: str = "", programs: tuple[str, ...] = ()
) -> Place:  # fmt: skip
    source = fixes.Source(text, FILE)
    (target,) = source.targets
    lines = len(text.splitlines())
    spans = tuple(Span(FILE, n, 0, n, 1) for n in range(1, lines))
    kernel = Kernel("k", "cpp", "forward", "pointwise", operations, spans)
    graph = Graph(0, "step", None, 1, kernels=[kernel], training=training)
    report = Report(target.annotated.qualname, FILE, target.annotated.name_span, graphs=[graph])
    report.inputs = Inputs("annotations", (Input("x", inputs),)) if inputs else None
    return Place(source, target, report, programs)


def changes(text: str, **how: object) -> dict[str, Change]:
    return {change.title: change for change in found(place(text, **how))}  # type: ignore[arg-type]


def edited(text: str, change: Change) -> str:
    after = fixes.applied(text, change.edits)
    ast.parse(after)
    return after


def test_copies_are_left_out() -> None:
    text = HEAD + (
        "@fuselens.compile\ndef step(x, w):\n    y = (x + 1).t().contiguous()\n    z = torch.clone(w)\n    return y @ z\n"
    )
    by_title = changes(text)
    assert "y = (x + 1).t()\n" in edited(text, by_title["Leave out .contiguous()"])
    assert "z = w\n" in edited(text, by_title["Leave out .clone()"])
    assert not any(c.refused for c in by_title.values())


def clone_refused(*body: str) -> str:
    text = HEAD + "@fuselens.compile\ndef step(x, w=None, kept=None):\n" + "".join(f"    {line}\n" for line in body)
    return changes(text)["Leave out .clone()"].refused


def test_a_copy_that_somebody_needs_is_not() -> None:
    assert "`y` is written to in line 8" in clone_refused("y = x.clone()", "y += 1", "return y")
    assert "`x` is written to" in clone_refused("y = x.clone()", "x.add_(1)", "return y * 2")
    assert "`y` is written to" in clone_refused("y = x.clone()", "y[0] = 1", "return y")
    assert "`y` is written to" in clone_refused("y = x.clone()", "torch.add(x, 1, out=y)", "return x")
    assert "`y` is written to" in clone_refused("y = x.clone()", "y.view(-1)[0] = 1", "return x")
    assert "written to at once" in clone_refused("return x.clone().mul_(2)")
    assert "returned" in clone_refused("return x.clone()")
    assert "returned" in clone_refused("return x + 1, x.clone()")
    assert "kept" in clone_refused("kept.last = x.clone()", "return x + 1")
    assert "kept" in clone_refused("kept.append(x.clone())", "return x + 1")
    assert "kept" in clone_refused("y = x.clone()", "kept.last = y", "return y * 2")
    assert "kept" in clone_refused("y = x.clone()", "kept[0] = (y, 1)", "return y * 2")
    assert "kept" in clone_refused("y = x.clone()", "setattr(kept, 'last', y)", "return y * 2")
    assert not clone_refused("y = x.clone()", "return y * 2")
    assert not clone_refused("y = x.clone()", "kept.count = 1", "return y * 2")


def test_a_copy_in_a_function_that_is_not_run_is_not_looked_at() -> None:
    text = HEAD + "def other(x):\n    return x.clone() + 1\n\n\n@fuselens.compile\ndef step(x):\n    return x + 1\n"
    for line, looked_at in ((11, False), (6, True)):
        here = place(text)
        kernel = Kernel("k", "cpp", "forward", "pointwise", operations=(), spans=(Span(FILE, line, 0, line, 1),))
        here.report.graphs[0].kernels[:] = [kernel]
        assert any(c.kind == "clone" for c in found(here)) == looked_at


def test_options_are_written_where_the_function_is_compiled() -> None:
    body = "def step(x):\n    return x + 1\n"
    mode = 'mode="max-autotune"'
    text = f"{HEAD}@fuselens.compile\n{body}"
    assert f"@fuselens.compile({mode})" in edited(text, changes(text)[mode])
    text = f"{HEAD}@fuselens.compile(mode='default', fullgraph=True)\n{body}"
    assert f"@fuselens.compile({mode}, fullgraph=True)" in edited(text, changes(text)[mode])
    text = f"{HEAD}{body}\n\nfast = torch.compile(step)\n"
    assert f"fast = torch.compile(step, {mode})" in edited(text, changes(text)[mode])
    text = f"{HEAD}{body}\n\nfast = fuselens.compile(dynamic=True)(step)\n"
    assert "fast = fuselens.compile(dynamic=False)(step)" in edited(text, changes(text)["dynamic=False"])
    text = f"{HEAD}{body}\n\nfast = fuselens.compile(step, **how)\n"
    assert mode not in changes(text)
    text = f"{HEAD}@fuselens.compile\n{body}"
    kept = changes(text, training=True)["Keep half as much for the backward"]
    assert '@fuselens.compile(options={"memory_budget": 0.5})' in edited(text, kept)
    assert not any(
        c.kind == "memory_budget" for c in changes(text.replace("fuselens.c", "torch.c"), training=True).values()
    )


NET = """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)

    @fuselens.compile
    def forward(self, x):
        '''Images.'''
        y = self.layer(x)
        return y.relu()


"""
USED = "def predict(x):\n    net = Net()\n    return net(x)\n"


def test_no_grad_where_nobody_asks_for_gradients() -> None:
    title = "Run inside of torch.no_grad()"
    text = HEAD + NET + USED
    change = changes(text, training=True)[title]
    assert not change.refused
    assert "        with torch.no_grad():\n            y = self.layer(x)\n            return y.relu()\n" in edited(
        text, change
    )
    assert title not in changes(text, training=False)
    for more in ("predict(1).backward()\n", "torch.autograd.grad(1, 2)\n", "from torch.optim import SGD\n", "Net().train()\n",
                 "from lightning import Trainer\n", "x = torch.ones(3, requires_grad=True)\n"):  # fmt: skip
        assert "may ask for gradients" in changes(text + more, training=True)[title].refused, more
    assert "no call of it is known" in changes(HEAD + NET, training=True)[title].refused
    other = "from model import Net\n\nnet = Net()\nnet(1)\n"
    assert not changes(HEAD + NET, training=True, programs=(other,))[title].refused
    assert changes(HEAD + NET, training=True, programs=(other + "loss.backward()\n",))[title].refused


def test_layouts_and_precision() -> None:
    text = HEAD + NET + USED
    assert not any(c.kind in ("channels_last", "autocast") for c in changes(text, inputs="f32[8, 3, 32, 32]").values())
    every = changes(text, operations=("aten.convolution.default",), inputs="f32[8, 3, 32, 32]")
    after = edited(text, every["Have x in channels-last memory"])
    assert "        x = x.to(memory_format=torch.channels_last)\n        y = self" in after
    assert "Conv2d(3, 4, 3)\n        self.to(memory_format=torch.channels_last)\n" in after
    after = edited(text, every["Compute products in bfloat16"])
    assert '        with torch.autocast("cpu", dtype=torch.bfloat16):\n            y = self.layer(x)\n' in after
    assert "Have x in channels-last memory" not in changes(text, operations=("convolution",), inputs="f32[8, 3]")


def test_checkpoints_where_a_backward_follows() -> None:
    text = HEAD + NET + "def train(x):\n    Net()(x).sum().backward()\n"
    change = changes(text, training=True)["Compute self.layer again in the backward"]
    assert "checkpoint(self.layer, x, use_reentrant=False)" in edited(text, change) and change.of == "backward"
    assert not any(c.kind == "checkpoint" for c in changes(HEAD + NET + USED, training=True).values())
