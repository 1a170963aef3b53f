"""Functions that launch Triton kernels, compiled, where Triton's interpreter runs the kernels: one process for all checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.kernels.from_functions import A_VIEW, FUNCTIONS, KERNELS

ROOT = Path(__file__).resolve().parents[2]
NAMES = """
add by_function_of_parameters writes_inputs writes_views writes_view_of_input twice_the_same without_bias with_bias rows tuned ruled
wrapped several unused returned old_and_new overlapping with_gaps writes_row through_an_operator writes_by_an_operator sizes_that_vary
inputs_that_share_memory inputs_with_gaps writes_count_as_eagers parameters_are_written inputs_are_written_in_place
nothing_fills_what_a_kernel_fills training addresses_of_numbers_break kernels_and_helpers_that_are_replaced other_ways_to_call_break
the_text_shows_the_kernels_source artifacts_say_why_not functions_inside_of_compiled_programs what_is_no_function_is_refused
what_is_no_kernel_is_refused
""".split()
NAMES += [f"function: {name}" for name in FUNCTIONS]
NAMES += [f"kernel: {name}" for name in KERNELS] + [f"kernel: {name}, any size" for name in KERNELS if name != A_VIEW]


def run(*names: str, **environment: str) -> tuple[dict[str, str], str]:
    command = [sys.executable, "-m", "tests.kernels.interpreted", *names]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().rpartition("\n")[2]), done.stderr


@cache
def every() -> dict[str, str]:
    return run()[0]


def test_all_are_named() -> None:
    assert sorted(every()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_against_eager(name: str) -> None:
    assert not every()[name], every()[name]


def test_the_cache_tells_kernels_apart(tmp_path: Path) -> None:
    """A second process finds the graph; one in which a constant that a helper reads is another does not."""
    asked = {"FUSELENS_CACHE_DIR": str(tmp_path), "FUSELENS_LOGS": "+cache"}
    for scale, found in (("", False), ("", True), ("5", False), ("5", True)):
        wrong, log = run("keys", **asked, SCALE=scale)
        assert not wrong["keys"], wrong["keys"]
        assert ("graph 0: graph found" in log) == found, log


@pytest.mark.parametrize(
    ("example", "section", "indents"),
    [
        ("user_kernels", "## Kernels of your own", [""]),
        ("triton_functions", "## Functions for kernels", ["", "    "]),
    ],
)
def test_a_guides_example(example: str, section: str, indents: list[str], tmp_path: Path) -> None:
    """It runs, and has what the guide shows: its first blocks, in functions or not."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "FUSELENS_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, f"examples/{example}.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.stdout == "as eager\n", done.stderr
    program = (ROOT / f"examples/{example}.py").read_text()
    _, *blocks = (ROOT / "docs/guides/gpu.md").read_text().partition(section)[2].split("```python\n")
    for block, indent in zip(blocks, indents, strict=False):
        assert textwrap.indent(block.partition("```")[0].strip(), indent) in program
