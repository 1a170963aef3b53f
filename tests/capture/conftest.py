import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh: None) -> None:
    """Every test of this folder starts so."""
