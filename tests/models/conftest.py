import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh: None) -> None:
    """Every test of this folder starts so."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All architectures run where slow tests are asked for (`make sweep`), a sample of them everywhere else."""
    if "slow" not in config.option.markexpr:
        items[:] = [i for i in items if "models" not in i.path.parts or i.get_closest_marker("slow") is None]
