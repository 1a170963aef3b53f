"""Test suites of the standard library have the same outcome on reassembled code, their own and that of what they test."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fuselens.capture.bytecode import instruction as bytecode

SCRIPT = Path(__file__).with_name("reassembling.py")
SAMPLE = ["test_contextlib", "test_with", "test_patma"]
ALL = (
    SAMPLE
    + """
    test_argparse test_asyncgen test_bisect test_bool test_builtin test_call test_class test_collections
    test_compare test_configparser test_contains test_contextlib_async test_copy test_coroutines test_csv
    test_dataclasses test_datetime test_decorators test_defaultdict test_descr test_dict test_difflib
    test_dynamicclassattribute test_enum test_enumerate test_exception_hierarchy test_exception_variations
    test_exceptions test_except_star test_extcall test_fractions test_frame test_fstring test_functools
    test_future test_generators test_genericclass test_genexps test_global test_grammar test_heapq test_inspect
    test_isinstance test_iter test_json test_keywordonlyarg test_list test_listcomps test_metaclass
    test_named_expressions test_operator test_ordered_dict test_positional_only_arg test_pprint test_property
    test_raise test_range test_re test_richcmp test_scope test_set test_setcomps test_slice test_statistics
    test_string test_super test_sys_settrace test_textwrap test_traceback test_tuple test_types test_typing
    test_unittest test_unpack test_unpack_ex test_userdict test_weakref test_yield_from
""".split()
)
LIBRARY = Path(sysconfig.get_path("stdlib"), "test")


def outcome(suite: str, *options: str) -> str:
    root = Path(bytecode.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, suite], capture_output=True, text=True, timeout=600, cwd="/",
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    return done.stdout.strip() or done.stderr[-2000:]


def passes_reassembled(suite: str) -> None:
    if not (LIBRARY / f"{suite}.py").exists() and not (LIBRARY / suite).is_dir():
        pytest.skip("this Python has no such suite")
    plain, reassembled = outcome(suite, "--as-it-is"), outcome(suite)
    assert reassembled == plain
    assert int(plain.splitlines()[-1]) > 0 and "_FailedTest" not in plain


@pytest.mark.parametrize("suite", SAMPLE)
def test_sample(suite: str) -> None:
    passes_reassembled(suite)


@pytest.mark.sweep
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("suite", ALL)
def test_all(suite: str) -> None:
    passes_reassembled(suite)
