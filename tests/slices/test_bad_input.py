"""Programs that would harm, hang or end whoever runs them: what can be known is shown, and the folder stays as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAD = "import os, sys\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
NET = "\nnet = torch.compile(nn.Linear(4, 3))\nnet(torch.ones(2, 4))\n"
LOOP = "net = torch.compile(nn.Linear(4, 3))\n"

PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "loops for ever": ("while True:\n    pass\n" + NET, ["this loop takes longer than 3 s"]),
    "takes long": (
        "def load():\n    s = 0\n    for i in range(10**12): s += i\n    return s\ndata = load()\n" + NET,
        ["this takes longer than 4 s"],
    ),
    "exits": ("sys.exit(0)\n" + NET, ["SystemExit: 0"]),
    "exits at once": ("os._exit(3)\n" + NET, ["SystemExit: 3"]),
    "forks": ("pid = os.fork()\nif pid == 0:\n    os._exit(0)\n" + NET, ["a check does not start a process"]),
    "removes": ("os.system('rm -rf .')\n" + NET, ["a check does not start the process `rm -rf .`"]),
    "downloads": (
        "import urllib.request\nurllib.request.urlretrieve('http://example.com/x', 'x')\n" + NET,
        ["a check does not ask the network for `example.com`"],
    ),
    "serves": (
        "import http.server as h\nh.HTTPServer(('', 8000), h.BaseHTTPRequestHandler).serve_forever()\n" + NET,
        [],
    ),
    "tries to write": (
        "try:\n    open('notes', 'w')\nexcept BaseException:\n    pass\n" + NET,
        ["what is written to `notes` goes nowhere: a check writes no file"],
    ),
    "asks": ("n = int(input('how many? '))\n" + NET, ["EOFError: EOF when reading a line"]),
    "alarms": ("import signal\nsignal.signal(signal.SIGALRM, lambda *a: sys.exit(1))\nsignal.alarm(1)\n" + NET, []),
    "never ends a thread": (
        "import threading\ndef work():\n    while True: pass\nthreading.Thread(target=work, daemon=True).start()\n" + NET, [],
    ),
    "recurses": ("def f(n): return f(n + 1)\nf(0)\n" + NET, ["RecursionError: maximum recursion depth exceeded"]),
    "takes all memory": ("x = [0] * 10**13\n" + NET, ["MemoryError"]),
    "large tensors": ("x = torch.zeros(10**11)\nprint((x + 1).sum())\n" + NET, []),
    "default device": ("torch.set_default_device('cuda')\n" + NET, []),
    "sets globals": ("globals()['width'] = 4\n" + LOOP + "exec('net(torch.ones(2, width))')\n", []),
    "star import": ("from helper import *\nnet = torch.compile(Model())\nnet(torch.ones(2, 4))\n", []),
    "circular import": ("import circle\nnet = torch.compile(circle.Model())\nnet(torch.ones(2, 4))\n", []),
    "broken import": ("import broken\n" + NET, ["SyntaxError: invalid syntax (broken.py, line 1)"]),
    "raising import": ("from raising import width\nnet = torch.compile(nn.Linear(width, 3))\nnet(torch.ones(2, width))\n", []),
    "defined twice": (
        "if sys.version_info > (3,):\n    class M(nn.Module):\n        def forward(self, x): return x + 1\n"
        "else:\n    class M(nn.Module):\n        def forward(self, x): return x - 1\n"
        "class M(M):\n    def forward(self, x): return super().forward(x) * 2\n"
        "net = torch.compile(M())\nfor i in range(10**9): net(torch.ones(3))\n",
        [],
    ),
    "class decorator": (
        "REGISTRY = {}\ndef register(cls):\n    REGISTRY[cls.__name__] = cls\n    return cls\n"
        "@register\nclass Net(nn.Linear):\n    pass\nnet = torch.compile(REGISTRY['Net'](4, 4))\nwhile True:\n    net(torch.ones(2, 4))\n",
        [],
    ),
    "ten thousand lines": ("x = 0\n" + "x = x + 1\n" * 10_000 + NET, []),
    "asynchronous": (
        "import asyncio\n" + LOOP + "async def main():\n    while True:\n        net(torch.ones(2, 4))\n        await asyncio.sleep(9)\n"
        "asyncio.run(main())\n",
        [],
    ),
    "endless data": (
        "def batches():\n    while True:\n        yield torch.randn(8, 4)\n" + LOOP +
        "for step, x in enumerate(batches()):\n    loss = net(x).sum(); loss.backward()\n    if step > 1000: break\n",
        [],
    ),
    "absent environment": (
        "import gymnasium\nenv = gymnasium.make('CartPole-v1')\n" + LOOP +
        "state, _ = env.reset()\nwhile not env.done:\n    action = net(torch.from_numpy(state)).argmax()\n"
        "    state, *_ = env.step(action.item())\n",
        ["ModuleNotFoundError: No module named 'gymnasium'"],
    ),
}  # fmt: skip
OTHERS = {
    "helper.py": "import torch.nn as nn\nclass Model(nn.Linear):\n    def __init__(self): super().__init__(4, 4)\n",
    "circle.py": "import back\nfrom torch import nn\nclass Model(nn.Linear):\n    def __init__(self): super().__init__(4, back.N)\n",
    "back.py": "import circle\nN = 3\n",
    "broken.py": "def f(:\n",
    "raising.py": "import not_here\nwidth = 4\nraise RuntimeError('no')\n",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, cache = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("cache")
    names = {f"{name.replace(' ', '_')}.py": name for name in PROGRAMS}
    texts = {file: HEAD + PROGRAMS[name][0] for file, name in names.items()} | OTHERS
    for file, text in texts.items():
        (folder / file).write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fuselens.cli", "check", "--format", "json", *names], cwd=folder, capture_output=True, text=True,
        timeout=170, env=os.environ | {"FUSELENS_CACHE_DIR": str(cache)},
    )  # fmt: skip
    assert done.stderr == ""
    assert {p.name: p.read_text() for p in folder.iterdir()} == texts
    return {names[Path(report["file"]).name]: report for report in json.loads(done.stdout)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_no_harm(name: str, reports: dict[str, Any]) -> None:
    report = reports[name]
    said = [d["message"] for d in report.get("diagnostics", ())]
    assert {d["code"] for d in report.get("diagnostics", ())} <= {"FL922", "FL924"}
    for why in PROGRAMS[name][1]:
        assert any(message.endswith(why) for message in said), said
    (function,) = report["functions"]
    assert len(function["graphs"]) == 1
