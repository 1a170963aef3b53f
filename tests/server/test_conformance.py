"""Whatever the server advertises, driven over stdio by a real client, and audited: see :mod:`auditing`.

One server for a client that declares all there is, with a driver for each capability; then whole sessions with what real
clients declare, down to nothing at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol.converters import get_converter

from fuselens_server.client import messages

from .drivers import DRIVERS
from .world import FOLDER, TEXT, World, everything

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(new_editor, tmp_path_factory) -> AsyncIterator[World]:
    made = await World.begin(new_editor(), tmp_path_factory.mktemp("conformance") / FOLDER, everything())
    made.file = await made.show("toy.py", TEXT)
    yield made
    await made.auditor.finish()
    await made.editor.stop()


@pytest.mark.parametrize(
    "driver", {driver.__name__: driver for driver in DRIVERS.values()}.values(), ids=lambda d: d.__name__
)
async def test_driver(world, driver):
    await driver(world)
    wrong, world.auditor.wrong = world.auditor.wrong, []
    assert not wrong, "\n".join(wrong)


async def test_every_capability_has_a_driver(world):
    result = get_converter().unstructure(world.editor.initialized)
    registered = {f"registered {method}" for method in world.auditor.registered}
    assert set(_leaves(result["capabilities"])) | registered | {*messages.REQUEST_TYPES, "progress"} == set(DRIVERS)


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """The names of what is offered: ``hoverProvider``, ``executeCommandProvider.commands: fuselens.server.run``."""
    if isinstance(value, dict):
        offered = {name: part for name, part in value.items() if part}
        for name, part in offered.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
        if value and not offered:
            yield path
    elif isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        yield from (f"{path}: {part}" for part in value)
    else:
        yield path
