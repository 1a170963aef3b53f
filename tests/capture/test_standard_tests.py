"""CPython's own regression tests, each method compiled: what passes eagerly passes compiled.

The installed ``test`` package is copied, so that it is a program like any other and not part of the standard library.
Each module runs in a process of its own. ``pytest -m sweep`` runs the modules that take long.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

CHEAP = ("test_bool", "test_complex", "test_except_star", "test_patma")
LONG = (
    "test_augassign", "test_binop", "test_fstring", "test_keywordonlyarg", "test_named_expressions", "test_textwrap",
    "test_cmath", "test_compare", "test_fractions", "test_heapq", "test_bisect",
    "test_math", "test_positional_only_arg", "test_range", "test_raise", "test_sort", "test_statistics", "test_string",
    "test_typechecks", "test_unpack", "test_userdict", "test_userlist", "test_with", "test_yield_from",
)  # fmt: skip
_SWEEP = (pytest.mark.sweep, pytest.mark.timeout(1800))
EXPECTED = {
    "test_raise": {
        "test_3611",  # when a variable that is not used again is freed
        "test_accepts_traceback",
    },
}
"""What differs, and is known to."""
RUNNER = """
import json, sys, unittest
import fuselens
from test import support
call = unittest.case.TestCase._callTestMethod
def compiled(self, method):
    fuselens.compile(method.__func__, backend="eager")(self)
class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.bad = {}
    def addError(self, test, error):
        self.bad[test.id()] = repr(error[1])
    addFailure = addError
    def addSubTest(self, test, part, error):
        if error is not None:
            self.bad[test.id()] = repr(error[1])
support.verbose = 0
found = []
for way in (call, compiled):
    unittest.case.TestCase._callTestMethod = way
    result = Result()
    unittest.defaultTestLoader.loadTestsFromName("test." + sys.argv[1]).run(result)
    found.append(result)
print(json.dumps([found[1].testsRun, {k: v for k, v in found[1].bad.items() if k not in found[0].bad}]))
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    spec = importlib.util.find_spec("test.support")
    if spec is None or spec.origin is None:
        pytest.skip("CPython's regression tests are not installed")
    place = tmp_path_factory.mktemp("regression")
    shutil.copytree(pathlib.Path(spec.origin).parents[1], place / "test", ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.mark.parametrize("module", [*CHEAP, *(pytest.param(m, marks=_SWEEP) for m in LONG)])
def test_what_passes_eagerly_passes_compiled(module: str, programs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not (programs / "test" / f"{module}.py").exists():
        pytest.skip("not in this Python")
    path = os.pathsep.join([str(programs), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "FUSELENS_STRICT": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, module],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, bad = json.loads(done.stdout.splitlines()[-1])
    assert count
    unexpected = {k: v for k, v in bad.items() if k.rpartition(".")[2] not in EXPECTED.get(module, ())}
    assert not unexpected
