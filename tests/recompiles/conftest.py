"""Asks a worker for what is foreseen, as the language server does."""

import pytest

from tests.support.workers import Client


@pytest.fixture(scope="package")
def cache(tmp_path_factory):
    return {"FUSELENS_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="package")
def ask(cache):
    worker = Client("--jobs", "1", environment=cache)
    ready = worker.event()
    assert ready is not None and ready.file is None, ready

    def asked(path, text=None):
        file = worker.result(worker.send("recompiles", path, text)).file
        assert file is not None
        return file

    yield asked
    worker.close()
