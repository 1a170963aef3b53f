"""check_file in this process: what the file does wrong becomes one diagnostic at the best line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens.checking import check, function_check, user_code
from fuselens.config import Config
from fuselens.record.report import Diagnostic, FileReport, Report, Span, Tensor

Written = Callable[..., Path]
IMPORTED = Config(execution="import", explore=True)  # as all files that make nothing but values
GOOD = """
@fuselens.compile
def double(x: Float32[Tensor, "n"]):
    return x * 2
"""


def only(file: FileReport) -> Diagnostic:
    """The one finding about the file as a whole."""
    (found,) = file.diagnostics
    assert file.functions == []
    return found


def complaints(report: Report) -> list[str]:
    """Codes of what check_file found; what the compiler says about the graphs is tested elsewhere."""
    return [d.code for d in report.diagnostics if d.code.startswith("FL9")]


def at(path: Path, found: Diagnostic) -> str:
    """The source text under a diagnostic."""
    assert found.span is not None
    assert found.span.file == str(path)
    return user_code.text_at(path.read_text(), found.span)


def test_good_file(written: Written) -> None:
    stages: list[str] = []
    path = written(GOOD)
    file = check.check_file(path, progress=stages.append)
    (report,) = file.functions
    assert (report.function, report.breaks, complaints(report)) == ("double", [], [])
    assert report.span == Span(str(path), 6, 4, 6, 10)
    assert len(report.graphs) == 1
    assert file.seconds > 0
    assert stages[:3] == ["discover", "import", "double: example inputs"]


def test_given_source_wins_over_the_file(written: Written) -> None:
    path = written("raise SystemExit\n")
    file = check.check_file(path, source="import fuselens\n@fuselens.compile\ndef f(x=1): return x\n")
    assert [r.function for r in file.functions] == ["f"]


def test_source_without_a_file(tmp_path: Path) -> None:
    file = check.check_file(
        tmp_path / "unsaved.py", source="import fuselens\n@fuselens.compile\ndef f(x=1): return x\n"
    )
    assert [r.function for r in file.functions] == ["f"]


def test_file_without_annotated_functions_is_not_imported(written: Written) -> None:
    file = check.check_file(written("raise RuntimeError\n"))
    assert (file.functions, file.diagnostics) == ([], [])


def test_surroundings_are_restored(written: Written) -> None:
    path = written("import sys\nassert sys.argv == [__file__], sys.argv\n" + GOOD)
    before = list(sys.path), list(sys.argv)
    assert check.check_file(path).diagnostics == []
    assert (sys.path, sys.argv) == before
    assert "module_under_check" not in sys.modules


def test_name_and_source_as_in_a_real_import(written: Written) -> None:
    path = written(
        """
        import inspect, sys
        assert __name__ == "module_under_check", __name__
        assert sys.modules[__name__].__file__ == __file__
        @fuselens.compile
        def f(x=1): return x
        assert "def f" in inspect.getsource(sys.modules[__name__])
        """
    )
    assert check.check_file(path).diagnostics == []


def test_neighbours_and_relative_imports(written: Written) -> None:
    written("WIDTH = 4\n", name="pkg/near.py", imports="")
    written("", name="pkg/__init__.py", imports="")
    path = written(
        "from .near import WIDTH\nimport pkg.near\nassert __name__ == 'pkg.model'\n" + GOOD, name="pkg/model.py"
    )
    assert check.check_file(path).diagnostics == []


def test_file_named_like_a_loaded_library(written: Written) -> None:
    path = written(GOOD, name="torch.py")
    before = sys.modules["torch"]
    assert check.check_file(path).diagnostics == []
    assert sys.modules["torch"] is before


# --- files that cannot be used --------------------------------------------------------------------------------------


def test_syntax_error(written: Written) -> None:
    path = written("def f(:\n    pass\n")
    found = only(check.check_file(path))
    assert found.code == "FL902"
    assert at(path, found) == ":"
    assert "invalid syntax" in found.message


def test_syntax_error_that_only_the_compiler_finds(written: Written) -> None:
    path = written(GOOD + "return 3\n")
    found = only(check.check_file(path))
    assert found.code == "FL902"
    assert at(path, found) == "return 3"


def test_syntax_error_columns_are_bytes(written: Written) -> None:
    path = written("ä = 'ö' )\n")
    found = only(check.check_file(path))
    assert found.span == Span(str(path), 4, 10, 4, 11)


@pytest.mark.parametrize("data, message", [(b"\n\nx = '\xff'\n", "utf-8"), (b"# coding: nonsense\n", "nonsense"),
                                           (b"x = '\0'\n", "null")])  # fmt: skip
def test_undecodable_file(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.py"
    path.write_bytes(data)
    found = only(check.check_file(path))
    assert found.code == "FL902"
    assert message in found.message


def test_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    source = "# coding: latin-1\nimport fuselens\nä = 'ä'\n@fuselens.compile\ndef f(x=1): return x\n"
    path.write_bytes(source.encode("latin-1"))
    assert check.check_file(path).diagnostics == []


def test_missing_file(tmp_path: Path) -> None:
    found = only(check.check_file(tmp_path / "gone.py"))
    assert found.code == "FL903"
    assert "FileNotFoundError" in found.message


def test_exception_at_import(written: Written) -> None:
    path = written(GOOD + "def inner():\n    return {}['key']\n\nx = inner()\n")
    found = only(check.check_file(path, config=IMPORTED))
    assert found.code == "FL903"
    assert "KeyError: 'key'" in found.message
    assert at(path, found) == "{}['key']"
    assert [frame.function for frame in found.stack] == ["<module>", "inner"]


def test_exception_below_the_file(written: Written) -> None:
    path = written(GOOD + "import json\njson.loads('{')\n")
    found = only(check.check_file(path, config=IMPORTED))
    assert at(path, found) == "json.loads('{')"
    assert "JSONDecodeError" in found.message


def test_missing_import(written: Written) -> None:
    path = written(GOOD + "import no_such_library\n")
    found = only(check.check_file(path))
    assert at(path, found) == "import no_such_library"


def test_syntax_error_in_a_neighbour(written: Written) -> None:
    written("def (\n", name="neighbour_with_error.py", imports="")
    path = written(GOOD + "import neighbour_with_error\n")
    found = only(check.check_file(path))
    assert found.code == "FL903"
    assert at(path, found) == "import neighbour_with_error"
    assert "line 1" in found.message


@pytest.mark.parametrize("call", ["sys.exit(3)", "exit()", "raise SystemExit('bye')"])
def test_exit_at_import(written: Written, call: str) -> None:
    path = written(f"import sys\n{GOOD}{call}\n")
    found = only(check.check_file(path, config=IMPORTED))
    assert found.code == "FL904"
    assert at(path, found) == call
    assert call in found.message


def test_interrupt_at_import(written: Written) -> None:
    path = written(GOOD + "raise KeyboardInterrupt\n")
    assert only(check.check_file(path)).code == "FL903"


# --- functions ------------------------------------------------------------------------------------------------------


def test_no_example_inputs(written: Written) -> None:
    path = written("@fuselens.compile\ndef f(a, b): ...\n" + GOOD)
    first, second = check.check_file(path).functions
    (found,) = first.diagnostics
    assert (found.code, found.severity) == ("FL901", "hint")
    assert at(path, found) == "f"
    assert "`a` has no annotation" in found.message
    assert complaints(second) == []


def test_example_callable_that_raises(written: Written) -> None:
    path = written("def make():\n    return (1 / 0,)\n\n@fuselens.compile(example_inputs=make)\ndef f(a): ...\n")
    (found,) = check.check_file(path).functions[0].diagnostics
    assert found.code == "FL908"
    assert at(path, found) == "1 / 0"


def test_example_of_the_wrong_type(written: Written) -> None:
    path = written("@fuselens.compile(example_inputs=lambda: 3)\ndef f(a): ...\n")
    (found,) = check.check_file(path).functions[0].diagnostics
    assert found.code == "FL908"
    assert at(path, found).startswith("fuselens.compile")


@pytest.mark.parametrize(
    "decorators",
    ["@fuselens.example(torch.ones(3))\n@fuselens.compile", "@fuselens.compile\n@fuselens.example(torch.ones(3))",
     "@fuselens.compile(example_inputs=(torch.ones(3),))", "@fuselens.compile(example_inputs=lambda: [torch.ones(3)])",
     "@fuselens.example(lambda: (torch.ones(3),))\n@fuselens.compile",
     "@fuselens.example(x=torch.ones(3))\n@torch.compile",
     "@torch.compile(fullgraph=True)\n@fuselens.example(torch.ones(3))"],
)  # fmt: skip
def test_stated_examples(written: Written, decorators: str) -> None:
    (report,) = check.check_file(written(f"{decorators}\ndef f(x):\n    return x * 2\n")).functions
    assert complaints(report) == []
    assert len(report.graphs) == 1


def test_a_stated_example_of_a_method_that_the_program_does_not_call(written: Written) -> None:
    program = """
GEN = torch.Generator().manual_seed(3)

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(3, generator=GEN))

    @fuselens.compile(example_inputs=lambda: (torch.ones(5, 3),))
    def forward(self, x):
        return x * self.weight
"""
    (report,) = check.check_file(written(program)).functions
    assert complaints(report) == [] and len(report.graphs) == 1
    assert ("5", "3") in [t.shape for t in report.graphs[0].inputs if isinstance(t, Tensor)]


def test_example_call_raises(written: Written) -> None:
    path = written("@fuselens.compile\ndef f(x: Float32[Tensor, 'n']):\n    return torch.add(x, 1)[99, 99]\n")
    assert complaints(check.check_file(path).functions[0]) == ["FL909"]


def test_example_call_exits(written: Written) -> None:
    path = written("import sys\n@fuselens.compile\ndef f(x: Float32[Tensor, 'n']):\n    sys.exit(3)\n" + GOOD)
    first, second = check.check_file(path).functions
    assert complaints(first) == ["FL909"]
    assert complaints(second) == []


def test_function_deleted_or_guarded(written: Written) -> None:
    (found,) = check.check_file(written(GOOD + "del double\n")).functions
    assert [(d.code, d.severity) for d in found.diagnostics] == [("FL912", "warning")]
    body = "if __name__ == '__main__':\n    m = torch.compile(nn.Identity())\n"
    body += "def outer():\n    @fuselens.compile\n    def inner(x=1): ...\n"
    found = [r.diagnostics[0] for r in check.check_file(written(body)).functions]
    assert [(d.code, d.severity) for d in found] == [("FL921", "hint"), ("FL913", "hint")]


def test_only_named_functions(written: Written) -> None:
    path = written(GOOD + GOOD.replace("double", "again"))
    file = check.check_file(path, functions=("again",))
    assert [r.function for r in file.functions] == ["again"]
    assert only(check.check_file(path, functions=("nothing",))).code == "FL912"


def test_methods_and_modules(written: Written) -> None:
    path = written(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)
            @fuselens.compile
            def forward(self, x: Float32[Tensor, "n 4"]):
                return self.linear(x)
            @staticmethod
            @fuselens.compile
            def plain(x: Float32[Tensor, "n"]):
                return x + 1
            @classmethod
            @fuselens.compile
            def of_class(cls, x: Float32[Tensor, "n"]):
                return x + 2
        class Plain(nn.Module):
            def forward(self, x: Float32[Tensor, "n 4"]):
                return x * 3
        ours = fuselens.compile(Plain())
        theirs = torch.compile(Plain(), fullgraph=True)
        free = torch.compile(lambda x: x + 1)
        """
    )
    reports = {r.function: r for r in check.check_file(path).functions}
    assert list(reports) == ["Net.forward", "Net.plain", "Net.of_class", "ours", "theirs", "free"]
    for name, report in reports.items():
        assert complaints(report) == (["FL901"] if name == "free" else []), name
        assert len(report.graphs) == (0 if name == "free" else 1), name


def test_decorator_above_ours(written: Written) -> None:
    path = written(
        """
        import functools
        def noisy(fn):
            @functools.wraps(fn)
            def wrapper(*args): return fn(*args)
            return wrapper
        @noisy
        @fuselens.compile
        def f(x: Float32[Tensor, "n"]):
            return x + 1
        """
    )
    (report,) = check.check_file(path).functions
    assert len(report.graphs) == 1


# --- run ------------------------------------------------------------------------------------------------------------


def test_run(written: Written) -> None:
    result = check.run_function(written(GOOD), "double")
    assert result.error is None
    assert result.agrees
    assert result.eager_seconds


@pytest.mark.parametrize(
    "body, name, code",
    [
        (GOOD, "nothing", "FL912"),
        ("def (", "f", "FL902"),
        (GOOD + "raise ValueError\n", "double", "FL903"),
        ("@fuselens.compile\ndef f(x): ...\n", "f", "FL901"),
    ],
)
def test_run_that_cannot(written: Written, body: str, name: str, code: str) -> None:
    result = check.run_function(written(body), name)
    assert not result.agrees
    assert result.error is not None
    assert result.error.code == code


# --- configuration --------------------------------------------------------------------------------------------------


def test_merge_config() -> None:
    ours = Config(target="cpu", explore=True)
    theirs = Config(fullgraph=True, recompile_limit=3, target="cuda")
    merged = function_check.merge_config(ours, theirs, {})
    assert (merged.fullgraph, merged.recompile_limit, merged.target, merged.explore) == (True, 3, "cpu", True)


def test_merge_config_of_torch_compile() -> None:
    merged = function_check.merge_config(
        Config(), None, {"fullgraph": True, "backend": "eager", "mode": None, "dynamic": True}
    )
    assert (merged.fullgraph, merged.backend, merged.mode, merged.dynamic) == (True, "fuselens", "default", True)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_a_run_measures_memory(written: Written) -> None:
    """Eager holds temporaries of 16 MiB each, compiled code the result alone."""
    body = """
    @fuselens.compile(example_inputs=lambda: (torch.ones(1 << 22),))
    def f(x):
        return (x.sin() + x.cos() * x.exp()) * (x.tan() + x.exp())
    """
    stages: list[str] = []
    result = check.run_function(written(body), "f", gradients=False, progress=stages.append)
    assert result.agrees
    assert result.eager_bytes is not None
    assert result.compiled_bytes is not None
    assert 2 * 16 << 20 < result.eager_bytes
    # what the system counts is resident: it may take pages of libraries back meanwhile
    assert 8 << 20 < result.compiled_bytes < result.eager_bytes
    steps = ("run eagerly", "run compiled", "time", "measure memory", "time kernels")
    assert stages[-5:] == [f"f: {step}" for step in steps]


def test_a_loop_is_told_what_helps_a_loop(written: Written) -> None:
    body = """
    @fuselens.compile
    def f(x: Float32[Tensor, "n"]):
        while x.sum() < 3:
            x = x + 1
        if x.sum() > 5:
            x = x - 1
        return x
    """
    (report,) = check.check_file(written(body)).functions
    loop, branch = (found for found in report.breaks if found.code == "FL101")
    assert "in the loop and after it" in loop.explanation and "fixed number of steps" in loop.hints[0]
    assert "on each side" in branch.explanation and "torch.where(condition, a, b)" in branch.hints[0]


def test_an_error_of_the_program_is_one_finding(written: Written) -> None:
    body = """
    @fuselens.compile
    def f(a: Float32[Tensor, "n"], b: Float32[Tensor, "m"]):
        return a + b
    """
    (report,) = check.check_file(written(body)).functions
    assert [found.code for found in (*report.breaks, *report.diagnostics)] == ["FL909"]


NAMED = [
    ("x.sum().item()", "FL102", "`x.sum().item()` turns"),
    ("x[x > 0]", "FL108", "`x[x > 0]` depends on data"),
    ("random.choice([1.0, 2.0])", "FL115", "`random.Random.choice` draws"),
    ("open(__file__).read()", "FL118", "`io.open` talks to the file system"),
    ("logging.getLogger('a').warning(x)", "FL103", "`Logger.warning` prints"),
]


@pytest.mark.parametrize(("expression", "code", "words"), NAMED, ids=[case[0] for case in NAMED])
def test_breaks_speak_the_words_of_the_program(written: Written, expression: str, code: str, words: str) -> None:
    body = f"""
    import logging, random

    @fuselens.compile
    def f(x: Float32[Tensor, "n"]):
        y = x + 1
        z = {expression}
        return y
    """
    (report,) = check.check_file(written(body)).functions
    assert any(found.code == code and words in found.message for found in report.breaks), report.breaks
    assert not any("__fuselens" in found.message or "getLogger`" in found.message for found in report.breaks)


def test_fullgraph_says_that_nothing_was_compiled(written: Written) -> None:
    body = """
    @fuselens.compile(fullgraph=True)
    def f(x: Float32[Tensor, "n"]):
        return x * 2 if x.sum() > 0 else x
    """
    (report,) = check.check_file(written(body)).functions
    (found,) = report.breaks
    assert found.severity == "error" and found.cost == ""
    assert found.message.endswith("fullgraph=True allows no graph break") and "graph ends" not in found.explanation
    assert report.summary() == "not compiled: fullgraph=True allows no graph break"
