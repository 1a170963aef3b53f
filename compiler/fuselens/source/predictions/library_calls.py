"""What functions of other modules give, and the breaks that they cause: those that must run in plain Python, and a few rules."""

from __future__ import annotations

from . import builtin_calls, tables, torch_calls
from .invocation import Invocation, Rule
from .values import PLAIN, UNKNOWN, Array, Constant, Instance, Plain, Tensor, Value

_WHY = {"FL104": "it is implemented in C", "FL110": "it changes a setting"}
_INSTANCES = {
    "logging.getLogger": "logging.Logger",
    "random.Random": "random.Random",
    "random.SystemRandom": "random.Random",
    "numpy.random.default_rng": "random.Random",
    "numpy.random.RandomState": "random.Random",
    "pathlib.Path": "pathlib.Path",
    "builtins.open": "io.TextIOWrapper",
    **{name: name for name in tables.LOCKS},
}


def called(name: str, call: Invocation) -> Value:
    """What the function ``name`` of another module gives, a builtin included."""
    if name in tables.KNOWN_TRUTH:
        return Constant(tables.KNOWN_TRUTH[name])
    module, _, last = name.rpartition(".")
    if name in tables.QUIET:
        return Instance(_INSTANCES[name])
    if code := _code(name, module, last):
        call.found(code, what=call.callee, why=_WHY.get(code, ""))
        return Instance(_INSTANCES[name]) if name in _INSTANCES else UNKNOWN
    if module == "builtins":
        return builtin_calls.called(last, call)
    if name.startswith("torch."):
        return torch_calls.called(name, call)
    if name.startswith("numpy."):
        return _numpy(last, call)
    if module == "math":
        return _math(call)
    rule = _RULES.get(name)
    return UNKNOWN if rule is None else rule(call)


def _code(name: str, module: str, last: str) -> str:
    """The code of a callable that must run in plain Python; else empty."""
    if module == "os":
        return "FL118" if last in tables.FILE_SYSTEM else tables.CODES.get(name, "")
    if module == "os.path":
        return "FL118" if last in tables.FILE_TESTS else "FL104"
    if name in tables.LOCKS:
        return "FL104"
    if last in tables.DRAWS.get(module, ()):
        return ""
    if module == "pathlib" and last == "Path":
        return "FL118"
    return tables.CODES.get(name) or tables.MODULE_CODES.get(module, "") if last.isidentifier() else ""


def _numpy(name: str, call: Invocation) -> Value:
    if call.takes_tensor:
        if name in tables.ARRAYS:
            return Array()
        call.found("FL102", what=call.callee, why="it is implemented in C")
        return UNKNOWN
    if any(isinstance(a, Array) for a in call.arguments) or name in tables.ARRAYS:
        return UNKNOWN if name in tables.SEVERAL_ARRAYS else Array()
    return PLAIN if call.arguments and all(isinstance(a, Plain) for a in call.arguments) else UNKNOWN


def _math(call: Invocation) -> Value:
    if call.takes_tensor:
        call.found("FL102")
    return PLAIN


def _environment_variable(call: Invocation) -> Value:
    """Switches are off where files are checked."""
    return call.arguments[1] if len(call.arguments) > 1 else Constant(None)


def _deep_copy(call: Invocation) -> Value:
    return call.first


def _copy(call: Invocation) -> Value:
    if isinstance(call.first, Tensor):
        call.found("FL104", what="copy.copy", why="of a Tensor, which is copied in its own way")
    return call.first


def _partial(call: Invocation) -> Value:
    return call.first if len(call.arguments) == 1 else UNKNOWN


_RULES: dict[str, Rule] = {
    "os.environ.get": _environment_variable,
    "os.getenv": _environment_variable,
    "copy.deepcopy": _deep_copy,
    "copy.copy": _copy,
    "functools.partial": _partial,
}
