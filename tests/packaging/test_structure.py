"""``scripts/structure.py``: a small tree whose numbers are known, and the tree of this project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TREE = {
    "compiler/pack/__init__.py": "",
    "compiler/pack/first.py": "from .second import b\nfrom .inner import deep\na = 1\n",
    "compiler/pack/second.py": "import pack.first\nb = 2\n",
    "compiler/pack/third.py": (
        "from typing import TYPE_CHECKING, Any\n"
        "if TYPE_CHECKING:\n    from .fourth import d\n"
        "def late(x: Any, y: 'list[Any]') -> int:\n    from server_pack import app\n    return x\n"
    ),
    "compiler/pack/fourth.py": "from . import third\nd = 4\n",
    "compiler/pack/inner/__init__.py": "from .deep import e\n",
    "compiler/pack/inner/deep.py": (
        "e = 5\n\n\n"
        "def branches(x):\n"
        "    if x and e or x > 2:\n        return [y for y in x]\n"
        "    match x:\n        case 1:\n            pass\n"
        "    return isinstance(x, int)\n\n\n"
        + "class Large:\n"
        + "".join(f"    def m{i}(self): ...\n" for i in range(31))
        + "def long():\n"
        + "    pass\n" * 41
    ),
    "server/server_pack/__init__.py": "",
    "server/server_pack/app.py": "x = 1\n" * 501,
    "server/server_pack/broken.py": "def (\n",
}


def measured(root: Path) -> dict[str, Any]:
    script = ROOT / "scripts" / "structure.py"
    done = subprocess.run([sys.executable, script, root, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def named(sizes: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return [(s["size"], s["path"], s["name"]) for s in sizes]


def test_a_tree_whose_numbers_are_known(tmp_path: Path) -> None:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = measured(tmp_path)
    deep = "compiler/pack/inner/deep.py"
    assert found["modules"] == {"pack": 4, "pack.inner": 1, "server_pack": 1}
    assert found["arrows_at_import_time"] == {"pack -> pack.inner": 1}
    assert found["arrows_otherwise"] == {"pack -> server_pack": 1}
    assert found["arrows"] == {"pack -> pack.inner": 1, "pack -> server_pack": 1}
    assert found["cycles"] == [["pack.first", "pack.second"]]
    assert found["cycles_with_typing"] == [["pack.first", "pack.second"], ["pack.fourth", "pack.third"]]
    assert named(found["long_files"]) == [(501, "server/server_pack/app.py", "")]
    assert named(found["long_functions"]) == [(42, deep, "long")]
    assert named(found["complex_functions"])[0] == (6, deep, "branches")
    assert named(found["large_classes"]) == [(31, deep, "Large")]
    assert found["isinstance_calls"] == {"pack": 0, "pack.inner": 1, "server_pack": 0}
    assert found["any_annotations"] == {"pack": 2, "pack.inner": 0, "server_pack": 0}
    assert found["unreadable"] == ["server/server_pack/broken.py"]


def test_this_project_is_measured_for_readers() -> None:
    script = ROOT / "scripts" / "structure.py"
    done = subprocess.run([sys.executable, script, ROOT], capture_output=True, text=True, check=True)
    titles = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert titles[0].startswith("modules: ") and any(t.startswith("cycles at import time: ") for t in titles)
    assert "cannot be parsed" not in done.stdout


def test_the_goals_of_the_house() -> None:
    """What ARCHITECTURE.md promises of every folder, function and class."""
    found = measured(ROOT)
    assert found["cycles"] == []
    assert max(found["modules"].values()) <= 15
    assert max(size["size"] for size in found["complex_functions"]) <= 25
    assert found["large_classes"] == []
