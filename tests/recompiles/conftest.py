"""Asks children for what is foreseen, as the command line does."""

import pytest

from fuselens.checking.isolation import Supervisor, preload
from fuselens.record import wire


@pytest.fixture(scope="package")
def ask():
    preload()
    children = Supervisor(jobs=1)

    def asked(path, text=None):
        event = children.call(wire.Request(1, "recompiles", str(path), text))
        assert event.file is not None
        return event.file

    yield asked
    children.close()
