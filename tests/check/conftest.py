"""Files for check_file: written to a temporary directory, with the usual imports in front."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

IMPORTS = "import fuselens, torch\nfrom torch import Tensor, nn\nfrom jaxtyping import Float32\n"


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """``written(body)`` → the path of a file with :data:`IMPORTS` (three lines) and the dedented body."""

    def write(body: str, name: str = "module_under_check.py", imports: str = IMPORTS) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(imports + textwrap.dedent(body), encoding="utf-8")
        return path

    return write
