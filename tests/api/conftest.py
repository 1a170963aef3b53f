import pytest

import fuselens


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch):
    """Internal errors fail the test, and no test sees another's compiled code."""
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    yield
    fuselens.reset()
    fuselens.set_stance("default")
