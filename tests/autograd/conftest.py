import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fuselens

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled yet, and failures of the compiler are raised."""
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    yield
    fuselens.reset()
