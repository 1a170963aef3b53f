"""``fuselens run`` and ``fuselens record``: functions and programs run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..record import views, wire
from ..record.report import RunResult
from .compiled import limits, options_of, supervisor
from .progress import progress, say
from .targets import Target, UsageError, functions, targets


def run(arguments: argparse.Namespace) -> int:
    """Status 1 where a function differs from eager, or was not compiled in whole for a reason that is not its own."""
    found = list(targets(arguments.target))
    named = [Target(t.path, name) for t in found for name in ([t.function] if t.function else functions(t.path))]
    if not named:
        raise UsageError(f"{arguments.target} has no annotated functions")
    options = options_of(arguments) | {
        "gradients": not arguments.no_gradients,
        "allow_effects": arguments.allow_effects,
    }
    results: list[RunResult] = []
    with progress(len(named)) as shown, supervisor(arguments, shown) as children:
        for number, target in enumerate(named, start=1):
            path = str(target.path)
            request = wire.Request(number, "run", path, None, (target.function,), options, limits(arguments))
            event = children.call(request, shown.saying(path))
            shown.done()
            if event.run is not None:
                results.append(event.run)
    for result in results:
        say(views.run_text(result))
    return int(not all(r.agrees and r.gradients_agree is not False and not r.uncompiled for r in results))


def record(arguments: argparse.Namespace) -> int:
    from .. import own_run

    if not Path(arguments.program).is_file():
        raise UsageError(f"{arguments.program} is not a file")
    own_run.run(arguments.program, arguments.arguments)
    return 0
