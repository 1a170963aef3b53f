"""Operators of torch's own database under the default backend: does each sample agree with eager, and how did it run?

``python -m tests.integration.operator_database --out FILE`` writes one JSON line for each operator and dtype, each case
in a process of its own (on a GPU, whose processes start slowly: in one that has not failed yet); ``--table FILE`` prints
what share of the samples runs as loops, and which operators fall back.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import queue
import random
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import fuselens
from fuselens.inputs import compared, comparison
from tests.capture.operator_samples import NOT_SHARED, OPERATORS, RESHAPING, UNDEFINED, UNINITIALISED, observe, tensors

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64,
    )
}  # fmt: skip
NOT_WANTED = {"cpu": {"float16"}, "cuda": {"float64", "complex64"}}  # unless asked for
MOST_SAMPLES = 40
# how a sample ran, best first; a case is as good as its worst sample
WAYS = ("loops", "vendor", "fallback", "eager", "break")
DIVIDE_BY_INPUT = ("__rmod__",)  # a GPU may give any number for an integer divided by zero
PRIVATE = ("jiterator",)  # not meant for the CPU


@dataclass
class Outcome:
    """What the samples of one operator and dtype came to."""

    name: str
    dtype: str
    samples: int = 0  # those for which eager raises nothing
    ways: dict[str, int] = field(default_factory=dict)  # how many samples ran in which way
    reasons: dict[str, int] = field(
        default_factory=dict
    )  # "operator: why" of what was no loop, and in how many samples
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def cases(device: str = "cpu", dtypes: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Operator and dtype, where the operator takes the dtype on the device."""
    chosen = list(dtypes) or [d for d in DTYPES if d not in NOT_WANTED[device]]
    return [
        (name, dtype)
        for name, op in sorted(OPERATORS.items())
        if not name.startswith(PRIVATE)
        for dtype in chosen
        if DTYPES[dtype] in op.supported_dtypes(device)
    ]


def verify(name: str, dtype: str, most: int = MOST_SAMPLES, device: str = "cpu") -> Outcome:
    """Every sample, forward and backward; those of equal shapes and arguments by the code of the first."""
    op, wanted = OPERATORS[name], DTYPES[dtype]
    outcome = Outcome(name, dtype)
    start = time.perf_counter()
    torch.manual_seed(0)
    random.seed(0)
    grad = (
        op.supports_autograd
        and wanted in op.supported_backward_dtypes(device)
        and (wanted.is_floating_point or wanted.is_complex)
    )
    groups: dict[Any, list[Any]] = {}
    for sample in op.sample_inputs(device, wanted, requires_grad=grad):
        if device != "cpu" and name in DIVIDE_BY_INPUT and not wanted.is_floating_point:
            sample.input = sample.input.where(sample.input != 0, torch.ones_like(sample.input))
        groups.setdefault(signature(sample), []).append(sample)
    chosen = list(groups.values())
    if len(chosen) > most:
        chosen = [chosen[k * (len(chosen) - 1) // max(most - 1, 1)] for k in range(most)]
    for k, samples in enumerate(chosen):
        _compare(op.op, samples[:4], f"{name} ({dtype}, signature {k})", outcome, in_place=False)
    if op.inplace_variant is not None:
        for k, samples in enumerate(chosen[:2]):
            _compare(op.inplace_variant, samples[:1], f"{name} ({dtype}, {k} in place)", outcome, in_place=True)
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def signature(sample: Any) -> Any:
    """What a sample's compiled code depends on."""

    def key(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        strides = (leaf.stride(), leaf.storage_offset()) if leaf.layout is torch.strided else leaf.layout
        return (leaf.dtype, leaf.shape, strides, leaf.requires_grad, leaf.is_conj(), leaf.is_neg())

    leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    return (tuple(key(leaf) for leaf in leaves), str(structure))


def _compare(fn: Callable[..., Any], samples: list[Any], where: str, outcome: Outcome, *, in_place: bool) -> None:
    fuselens.reset()
    reshapes = getattr(fn, "__name__", "") in RESHAPING

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(first.clone() if reshapes else first, *args, **kwargs)

    compiled = fuselens.compile(call, options={"fallback_random": True})
    ran = 0
    for sample in samples:
        expected, actual = observe(call, sample, in_place), observe(compiled, sample, in_place)
        ran += "exception" not in expected
        if outcome.name in UNINITIALISED:
            expected, actual = ({"layout": seen.get("layout")} for seen in (expected, actual))
        if outcome.name in UNDEFINED:
            expected, actual = (_without(seen, UNDEFINED[outcome.name]) for seen in (expected, actual))
        if outcome.name in NOT_SHARED:
            expected, actual = ({**seen, "layout": None} for seen in (expected, actual))
        found = comparison.differ(expected, actual, where)
        if found is not None and not _closer(call, sample, in_place, expected, actual):
            outcome.differences.append(found)
    if not ran:
        return
    outcome.samples += ran
    way, reasons = _how(compiled.__fuselens__.recorder.report)
    outcome.ways[way] = outcome.ways.get(way, 0) + ran
    for reason in reasons:
        outcome.reasons[reason] = outcome.reasons.get(reason, 0) + ran


def _without(seen: dict[str, Any], undefined: tuple[int, ...]) -> dict[str, Any]:
    """What is defined of a call with several results."""
    if "result" not in seen:
        return seen
    return {**seen, "result": tuple(None if k in undefined else r for k, r in enumerate(seen["result"]))}


def _how(report: Any) -> tuple[str, set[str]]:
    """The worst way in which a part of a report's graphs ran, and what was no loop for which reason."""
    ways, reasons = {"loops"}, set()
    for diagnostic in report.breaks:
        ways.add("break")
        reasons.add(f"{diagnostic.code}: {diagnostic.message}")
    for diagnostic in report.diagnostics:
        if diagnostic.code in ("FL301", "FL302", "FL303", "FL402", "FL404"):
            ways.add("eager")
            reasons.add(f"{diagnostic.code}: {diagnostic.message}")
    for graph in report.graphs:
        for decision in graph.decisions:
            if decision.code == "FL401":
                ways.add("vendor" if decision.verdict == "extern" else "fallback")
                if decision.verdict != "extern":
                    reasons.add(f"{decision.subject}: {decision.reason}")
    return max(ways, key=WAYS.index), reasons


def _closer(fn: Callable[..., Any], sample: Any, in_place: bool, expected: Any, actual: Any) -> bool:
    """Whether what differs is no further than eager's result from the same computation in double precision."""
    wide = pytree.tree_map(_double, (sample.input, sample.args, sample.kwargs))
    if not any(t.dtype in compared.TOLERANCE for t in tensors((expected.get("result"), expected.get("gradients")))):
        return False
    double = type(sample)(wide[0], args=wide[1], kwargs=wide[2])
    exact = observe(fn, double, in_place)
    if set(exact) != set(expected) or set(actual) != set(expected):
        return False
    if comparison.differ(expected["layout"], actual["layout"], "layout") is not None:
        return False
    varies = not _equal(observe(fn, sample, in_place), expected)
    for part in ("result", "arguments", "gradients"):
        trees = [pytree.tree_leaves(seen.get(part)) for seen in (exact, expected, actual)]
        if len({len(leaves) for leaves in trees}) > 1:
            return False
        if not all(_no_further(*leaves, varies=varies) for leaves in zip(*trees, strict=True)):
            return False
    return True


def _double(leaf: Any) -> Any:
    narrow = (torch.float32, torch.bfloat16, torch.float16)
    if isinstance(leaf, torch.Tensor) and leaf.dtype in narrow:
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in narrow else leaf


def _equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    pairs = zip(tensors(list(a.values())), tensors(list(b.values())), strict=True)
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in pairs)


def _no_further(exact: Any, eager: Any, compiled: Any, *, varies: bool = False) -> bool:
    """With ``varies``, where eager adds in an order of its own each time, its largest error counts for every element."""
    if not isinstance(eager, torch.Tensor) or not isinstance(compiled, torch.Tensor):
        return comparison.differ(eager, compiled, "") is None
    if (eager.dtype, eager.shape) != (compiled.dtype, compiled.shape) or eager.requires_grad != compiled.requires_grad:
        return False
    if eager.dtype not in compared.TOLERANCE or exact.shape != eager.shape:
        return comparison.differ(eager, compiled, "") is None
    exact = exact.detach().to(torch.complex128 if eager.is_complex() else torch.float64)
    relative, absolute = compared.TOLERANCE[eager.dtype]
    e, c = (t.detach().to(exact.dtype) for t in (eager, compiled))
    near = torch.isclose(c, e, rtol=relative, atol=absolute, equal_nan=True)
    error = (e - exact).abs()
    better = (c - exact).abs() <= (2 * error.nan_to_num(0, 0, 0).amax() if varies and error.numel() else error)
    right = torch.isclose(c, exact, rtol=relative, atol=absolute, equal_nan=True)
    return bool((near | better | right).all())


# --- the whole database, a process for each case


Case = tuple[str, str, int, str]  # operator, dtype, signatures at most, device


def _in_child(pipe: Any) -> None:
    """Answers cases until there are no more."""
    sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - lives as long as the process
    with contextlib.suppress(EOFError):
        while True:
            case: Case = pipe.recv()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = verify(*case)
            except BaseException:  # noqa: BLE001 - reported
                found = Outcome(*case[:2], differences=[traceback.format_exc(limit=-4)])
            pipe.send(asdict(found))


class _Child:
    """A process that may crash or hang: then the next case gets another."""

    def __init__(self, device: str) -> None:
        # what forks must not have touched the GPU, and asking for the dtypes that it takes may have
        self.context: Any = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
        self.apart = device == "cpu"
        self.process: Any = None

    def outcome(self, case: Case, limit: float) -> dict[str, Any]:
        if self.process is None:
            self.pipe, theirs = self.context.Pipe()
            self.process = self.context.Process(target=_in_child, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        found = None
        try:
            self.pipe.send(case)
            if self.pipe.poll(limit):
                found = self.pipe.recv()
            why = f"no result in {limit:.0f} s"
        except (EOFError, OSError):
            self.process.join()
            why = f"the process ended with {self.process.exitcode}"
        if self.apart or found is None or found["differences"]:
            self.close()
        return found or asdict(Outcome(*case[:2], differences=[why]))

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def sweep(
    wanted: list[tuple[str, str]], most: int, jobs: int, limit: float, device: str = "cpu"
) -> Iterator[dict[str, Any]]:
    """Outcomes as they come."""
    from fuselens import pipeline

    pipeline.warm()
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for case in wanted:
        waiting.put(case)
    outcomes: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def work() -> None:
        child = _Child(device)
        with contextlib.suppress(queue.Empty):
            while True:
                outcomes.put(child.outcome((*waiting.get_nowait(), most, device), limit))
        child.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for _ in wanted:
        yield outcomes.get()


def print_table(outcomes: list[dict[str, Any]], top: int) -> None:
    """Coverage by dtype, and the operators that fall back in most samples."""
    print(f"{'dtype':10} {'ops':>5} {'agree':>6} {'differ':>6} | cases whose worst sample: " + " ".join(f"{w:>8}" for w in WAYS)
          + " | samples " + " ".join(f"{w:>8}" for w in WAYS))  # fmt: skip
    for dtype in DTYPES:
        mine = [o for o in outcomes if o["dtype"] == dtype]
        if not mine:
            continue
        worst = Counter(max(o["ways"], key=WAYS.index) for o in mine if o["ways"])
        ways: Counter[str] = Counter()
        for o in mine:
            ways.update(o["ways"])
        total = max(ways.total(), 1)
        differ = sum(bool(o["differences"]) for o in mine)
        print(f"{dtype:10} {len(mine):5} {len(mine) - differ:6} {differ:6} | {'':25} " + " ".join(f"{worst[w]:8}" for w in WAYS)
              + f" | {total:7} " + " ".join(f"{100 * ways[w] / total:7.1f}%" for w in WAYS))  # fmt: skip
    cases: dict[str, set[str]] = {}
    samples: Counter[str] = Counter()
    for o in outcomes:
        for reason, count in o["reasons"].items():
            cases.setdefault(reason, set()).add(o["name"])
            samples[reason] += count
    print(f"\n{'samples':>7} {'ops':>4} what is no loop, and why")
    for reason, count in samples.most_common(top):
        print(f"{count:7} {len(cases[reason]):4} {reason[:150]}   [{', '.join(sorted(cases[reason])[:3])}]")
    print()
    for o in outcomes:
        for difference in o["differences"]:
            print(f"DIFFERS {o['name']} {o['dtype']}: {difference[-400:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for one JSON line per operator and dtype")
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    parser.add_argument("--only", help="operators whose name contains this")
    parser.add_argument("--dtypes", nargs="*", default=[], choices=list(DTYPES))
    parser.add_argument("--device", default="cpu", choices=list(NOT_WANTED))
    parser.add_argument("--most", type=int, default=MOST_SAMPLES, help="signatures compiled per operator and dtype")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300, help="limit of one case")
    parser.add_argument("--top", type=int, default=40, help="fallbacks listed")
    given = parser.parse_args()
    if given.table is not None:
        print_table([json.loads(line) for line in given.table.read_text().splitlines()], given.top)
        return
    known = set()
    if given.out is not None and given.out.exists():
        known = {(o["name"], o["dtype"]) for o in map(json.loads, given.out.read_text().splitlines())}
    wanted = [c for c in cases(given.device, given.dtypes) if (given.only or "") in c[0] and c not in known]
    outcomes = []
    for outcome in sweep(wanted, given.most, given.jobs, given.seconds, given.device):
        outcomes.append(outcome)
        if given.out is not None:
            with given.out.open("a") as out:
                out.write(json.dumps(outcome) + "\n")
    print_table(outcomes, given.top)


if __name__ == "__main__":
    main()
