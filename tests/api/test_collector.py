"""Python's collector is kept from what lives, and otherwise left as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

from fuselens.system.collector import importing, uncollected


def is_old(made: Any) -> bool:
    return any(o is made for o in gc.get_objects(generation=2))


def test_what_was_imported_is_old() -> None:
    gc.unfreeze()  # another test of this process may have frozen what it made
    with importing():
        assert not gc.isenabled()
        made = [[]]
        assert not is_old(made)
    assert gc.isenabled()
    assert is_old(made)
    assert gc.get_freeze_count() == 0


def test_what_the_program_froze_stays_so() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with importing():
            made = [[]]
        assert gc.get_freeze_count() == before > 0
        assert not is_old(made)
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_off() -> None:
    for paused in (importing, uncollected):
        gc.disable()
        try:
            with paused():
                made = [[]]
            assert not gc.isenabled()
            assert not is_old(made)
        finally:
            gc.enable()


def test_the_compiler_is_imported_once_and_without_the_collector() -> None:
    code = """
import gc, torch
gc.collect()
before = gc.get_stats()[2]["collections"]
import fuselens
fuselens.compile
assert gc.get_stats()[2]["collections"] == before
young = [[]]
fuselens.compile
assert not any(o is young for o in gc.get_objects(generation=2))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
