"""What is traced of a library that a project patches: code of functions, their lines, and what cannot be patched."""

from __future__ import annotations

import types

import pytest

from fuselens.capture.program import overlays

BEFORE = '''
import math
NUMBER = 1

class Layer:
    size: int = 3

    def forward(self, x, *rest, scale=2):
        """What it does."""
        y = x + NUMBER
        return [v * scale for v in y]

    def other(self, x):
        return math.sqrt(x)

def outer(k):
    def inner(x):
        return x + k
    return inner
'''


def names(found: dict[types.CodeType, types.CodeType]) -> set[str]:
    return {code.co_qualname for code in found}


def test_the_functions_that_change_are_others_and_say_the_installed_lines() -> None:
    after = BEFORE.replace("        y = x + NUMBER\n", "        y = x\n        y = y + NUMBER\n")
    found = overlays.changed("lib.py", BEFORE, after)
    assert names(found) == {"Layer.forward"}
    ((code, patched),) = found.items()
    assert patched.co_firstlineno == code.co_firstlineno == 8
    lines = {position[0] for position in patched.co_positions() if position[0] is not None}
    assert lines <= set(range(8, 12))
    assert patched.co_filename == "lib.py"


def test_a_loaded_function_is_found_by_its_code() -> None:
    after = BEFORE.replace("x + k", "x - k")
    space: dict[str, types.FunctionType] = {}
    exec(compile(BEFORE, "lib.py", "exec", dont_inherit=True), space)
    found = overlays.changed("lib.py", BEFORE, after)
    assert names(found) == {"outer", "outer.<locals>.inner"}
    inner = space["outer"](1)
    patched = types.FunctionType(found[inner.__code__], {}, closure=inner.__closure__)
    assert patched(3) == 2
    assert space["outer"].__code__ in found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("NUMBER = 1", "NUMBER = 2"), "when it is imported"),
        (("size: int = 3", "size: int = 4"), "when it is imported"),
        (("import math\n", "import math, torch\n"), "when it is imported"),
        (("scale=2", "scale=3"), "when it is imported"),
        (("self, x, *rest", "self, z, *rest"), "when it is imported|parameters"),
        (
            ("        return math.sqrt(x)", "        def made(): pass\n        return math.sqrt(x)"),
            "adds, removes or moves",
        ),
        (("x + k", "x"), "closes over"),
        (("x + k", "x +"), "no Python"),
    ],
)
def test_only_bodies_of_functions_are_patched(change: tuple[str, str], why: str) -> None:
    with pytest.raises(overlays.DoesNotFit, match=why):
        overlays.changed("lib.py", BEFORE, BEFORE.replace(*change))
