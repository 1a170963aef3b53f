"""The command line in processes of its own: what it prints, and its exit status, for good and bad files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuselens import cli
from fuselens.record import diagnostics

GOOD = """import fuselens
from jaxtyping import Float32
from torch import Tensor

@fuselens.compile
def double(x: Float32[Tensor, "n"]):
    return x * 2
"""
PRINTS = GOOD.replace("    return x * 2", "    y = x + 1\n    print('here')\n    return y * 2")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    return path


def fuselens(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "fuselens.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=cwd,
        env=os.environ | environment,
        check=False,
    )


# --- check ----------------------------------------------------------------------------------------------------------


def test_check(good: Path) -> None:
    done = fuselens("check", good)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r".*/good.py\n  double  1 graph    1 kernel  [\d.]+ m?s *\n1 function: 1 whole. Details: fuselens explain FILE\n",
        done.stdout,
    ), done.stdout
    done = fuselens("check", "-v", "good.py", cwd=good.parent)
    assert "good.py:6:5: double: 1 graph · 0 breaks · " in done.stdout
    assert "forward kernel " in done.stdout


def test_check_shows_breaks_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "prints.py"
    path.write_text(PRINTS)
    done = fuselens("check", "prints.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("prints.py\n  double  2 graphs  1 break  2 kernels")
    assert "\n    8:5  FL103  `print` prints\n                Remove the call, or guard it" in done.stdout
    assert "\n1 function: 1 with breaks. " in done.stdout
    verbose = fuselens("check", "-v", path).stdout
    assert "warning FL103" in verbose and "^^^" in verbose
    done = fuselens("check", path, "--fail-on-break", "--format", "sarif")
    assert done.returncode == 1
    assert "FL103" in [result["ruleId"] for result in json.loads(done.stdout)["runs"][0]["results"]]


def test_check_directory_with_every_kind_of_bad_file(good: Path) -> None:
    """One file per bad input: each costs its own diagnostic and none the others."""
    bad = {
        "aborts": ("import os; os.abort()\n", "FL906"),
        "exits": ("class C: import sys; sys.exit()\n", "FL904"),
        "loops": ("while True: pass\n", "FL905"),
        "prints": ("print('x' * 3_000_000)\n", ""),
        "raises": ("raise ValueError('bad')\n", "FL903"),
        "syntax": ("def f(:\n", "FL902"),
    }
    for name, (body, _) in bad.items():
        (good.parent / f"{name}.py").write_text(GOOD + body)
    (good.parent / "lonely.py").write_text("import fuselens\n@fuselens.compile\ndef lonely(x): ...\n")
    (good.parent / "unrelated.py").write_text("raise SystemExit\n")
    (good.parent / ".hidden").mkdir()
    (good.parent / ".hidden" / "h.py").write_text(GOOD)
    done = fuselens("check", good.parent, "--timeout", 1, "-j", 2)
    assert done.returncode == 1
    assert len(done.stderr) < 200_000
    for name, (_, code) in bad.items():
        _, _, said = done.stdout.partition(f"{good.parent / name}.py\n")
        assert re.match(rf"  8:\d+  {code}  " if code else "  double  1 graph ", said), (name, done.stdout)
    assert "good.py\n  double  1 graph " in done.stdout
    assert re.search(r"lonely  not compiled\n    3:5  FL901  `lonely` has no example inputs", done.stdout), done.stdout
    assert "unrelated" not in done.stdout
    assert "hidden" not in done.stdout


def test_json_is_not_mixed_with_the_files_output(good: Path) -> None:
    good.write_text(GOOD + "class C:\n    print('noise')\n")
    done = fuselens("check", "--format", "json", good)
    (file,) = json.loads(done.stdout)
    assert file["functions"][0]["function"] == "double"
    assert "noise" in done.stderr


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_floods_of_output_do_not_reach_the_report(good: Path, form: str) -> None:
    flood = "import os, sys\nfor i in range(20000): print(i); os.write(2, b'{'); os.write(1, b'no end of the line')\n"
    good.write_text(GOOD.replace("    return x", "    print('{')\n    return x") + flood)
    (good.parent / "other.py").write_text(good.read_text())
    done = fuselens("check", "--format", form, "-j", 2, good, good.parent / "other.py")
    assert json.loads(done.stdout)
    heads = [line for line in done.stderr.splitlines() if "printed:" in line]
    assert sorted(heads) == [f"--- {good} printed:", f"--- {good.parent / 'other.py'} printed:"]


TRAINING = """import os, numpy as np, torch, torch.nn as nn
import fuselens
out_dir = "out"
device = "cuda"
exec(open("configurator.py").read())  # as nanoGPT has it
data = np.memmap("train.bin", dtype=np.uint16, mode="r")

def batch():
    at = torch.randint(len(data) - 8, (4,))
    return torch.stack([torch.from_numpy(data[i : i + 8].astype(np.int64)) for i in at])

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
    def forward(self, x):
        return self.head(self.embed(x))

model = Model().to(device)
model = fuselens.compile(model, example_inputs=(batch(),))
os.makedirs(out_dir, exist_ok=True)
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss = nn.functional.cross_entropy(model(batch()).flatten(0, 1), batch().flatten())
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), os.path.join(out_dir, "ckpt.pt"))
"""


def test_a_training_script_leaves_its_folder_as_it_is(tmp_path: Path) -> None:
    """With its output folder already there, or not: a checkpoint of an earlier run stays."""
    (tmp_path / "configurator.py").write_text("device = 'cpu'\n")
    (tmp_path / "train.bin").write_bytes(b"\1\0" * 1000)
    (tmp_path / "train.py").write_text(TRAINING)
    for there in (False, True):
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}, set(tmp_path.rglob("*"))
        done = fuselens("check", "train.py", cwd=tmp_path)
        assert before == ({p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}, set(tmp_path.rglob("*")))
        assert (done.returncode, done.stderr) == (0, "")
        assert "  model  1 graph " in done.stdout
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "ckpt.pt").write_bytes(b"of an earlier run")


def test_two_files_one_importing_from_the_working_directory(good: Path) -> None:
    (good.parent / "deep").mkdir()
    (good.parent / "at_the_root.py").write_text("X = 1\n")
    (good.parent / "deep" / "f.py").write_text("import at_the_root\n" + GOOD)
    (good.parent / "plain.py").write_text("x = 1\n")
    done = fuselens("check", "deep/f.py", "plain.py", cwd=good.parent)
    assert done.returncode == 0, done.stdout
    assert "plain.py\n  no function of it is compiled: decorate one with @fuselens.compile\n" in done.stdout


# --- explain and run ------------------------------------------------------------------------------------------------


def test_explain(good: Path, tmp_path: Path) -> None:
    dumped = tmp_path / "dumped"
    done = fuselens("explain", f"{good}::double", "--print-after=capture", "--dump", dumped)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"double  {good}:6:5\n1 graph")
    assert "--- double · graph 0" in done.stdout
    assert (dumped / "double" / "graph0" / "00_capture.py").exists()
    assert (dumped / "double" / "report.json").exists()


def test_run(good: Path) -> None:
    done = fuselens("run", good)
    assert done.returncode == 0, done.stderr
    assert "double: agrees with eager" in done.stdout
    assert "compiled" in done.stdout


def test_run_that_fails(good: Path) -> None:
    good.write_text(GOOD + "raise ValueError\n")
    done = fuselens("run", f"{good}::double")
    assert done.returncode == 1
    assert "FL903" in done.stdout


@pytest.mark.parametrize("arguments", [["."], ["none.py"], ["-v", "none.py"], [".", "none.py"]])
def test_what_compiles_nothing_says_what_to_add(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "none.py").write_text("import torch\nclass M(torch.nn.Module):\n    def forward(self, x): return x\n")
    done = fuselens("check", *arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert "decorate one with @fuselens.compile" in done.stdout and "--preview" in done.stdout


# --- usage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["check", "{dir}/nothing.py"], "no such file or directory"),
        (["check", "{dir}/two.py", "--update-baseline"], "--update-baseline needs --baseline FILE"),
        (["check", "{dir}/two.py", "--baseline", "{dir}/no.json"], "there is no baseline"),
        (["check", "{dir}/two.py", "--baseline", "{dir}/notes.txt"], "notes.txt is no baseline: it is no JSON"),
        (["cache", "prune"], "prune needs --to SIZE, --older-than DAYS, or both"),
        (["check", "{dir}/notes.txt"], "is not a Python file"),
        (["check", "{dir}::f"], "is a directory"),
        (["check", "{dir}/two.py::third"], "no annotated function 'third'; it has first, second"),
        (
            ["check", "{dir}/two.py", "--print-after", "capture,nonsense"],
            "unknown stage 'nonsense'; stages are capture",
        ),
        (["check", "{dir}/two.py", "--target", "gpu"], "target is 'gpu': give auto, cpu, cuda or a GPU's architecture"),
        (["explain", "{dir}/nothing.py::f"], "no such file"),
        (["run", "{dir}/none.py"], "has no annotated functions"),
        (["codes", "FL999"], "unknown code"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if arguments[1] != "{dir}":
        (tmp_path / "two.py").write_text(
            "import torch\n@torch.compile\ndef first(): ...\n@torch.compile\ndef second(): ...\n"
        )
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "notes.txt").write_text("")
    assert cli.main([a.format(dir=tmp_path) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fuselens: ")
    assert message in err


def test_no_command() -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("fuselens ")


def test_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["codes"]) == 0
    listed = capsys.readouterr().out
    assert all(code in listed for code in diagnostics.TABLE)
    assert cli.main(["codes", "fl101"]) == 0
    assert "torch.where" in capsys.readouterr().out


def test_light_commands_do_not_import_torch() -> None:
    code = "import sys; from fuselens import cli; cli.main(['codes']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False).returncode == 0


def test_serve_without_pygls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["serve"]) == 2
    assert "fuselens[server]" in capsys.readouterr().err


def test_without_torch(good: Path, tmp_path: Path) -> None:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = fuselens("check", good, PYTHONPATH=os.pathsep.join([str(tmp_path / "shadow"), *sys.path]))
    assert done.returncode == 2
    assert "FL907" in done.stderr
    assert "no torch here" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_pipe(good: Path) -> None:
    command = f"{sys.executable} -P -m fuselens.cli codes | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_run_refuses_effects_unless_they_are_allowed(good: Path) -> None:
    good.write_text(GOOD.replace("    return x", "    open('log.txt', 'a').write('x')\n    return x"))
    done = fuselens("run", f"{good}::double", cwd=good.parent)
    assert done.returncode == 1
    assert "double: not run" in done.stdout and "FL915" in done.stdout and "--allow-effects" in done.stdout
    assert not (good.parent / "log.txt").exists()
    done = fuselens("run", "--allow-effects", f"{good}::double", cwd=good.parent)
    assert done.returncode == 0, done.stdout
    assert "agrees with eager" in done.stdout
    assert (good.parent / "log.txt").exists()


RECORDED = """
import sys
import torch

net = torch.compile(torch.nn.Linear(4, 4), mode="default")
wide = torch.compile(torch.nn.Linear(2, 8))  # of the same class
other = torch.nn.Sequential(torch.nn.Linear(4, 2))
other.compile()


@torch.compile(fullgraph=True)
def double(x):
    return x * 2


plain = torch.compile(lambda x: x, backend="eager")
x = plain(double(other(net(torch.ones(int(sys.argv[1]), 4)))))
print(x.shape, wide(x).shape)
"""


def test_inputs_of_an_own_run_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that names torch's compiler only: of several modules of one class of a library, the last one's."""
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(RECORDED)
    done = fuselens("record", "train.py", "7", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch.Size([7, 2]) torch.Size([7, 8])\n", "")
    (file,) = json.loads(fuselens("check", "--format", "json", "train.py", cwd=tmp_path).stdout)
    types = {
        r["function"]: r["inputs"]["values"][0]["type"]
        for r in file["functions"]
        if r["inputs"]["origin"] == "recorded"
    }
    assert types == {"wide": "f32[7, 2]", "other": "f32[7, 4]", "double": "f32[7, 2]"}
    assert fuselens("record", "absent.py", cwd=tmp_path).returncode == 2


def test_an_own_run_is_as_pythons(tmp_path: Path) -> None:
    """And what it compiles is found by Python's: names of files are the same."""
    (tmp_path / "sub").mkdir()
    program = tmp_path / "sub" / "program.py"
    program.write_text("""
import os, sys, torch
import fuselens
os.chdir("/")
class Net(torch.nn.Module):
    def forward(self, x):
        return x.max(0).values + 1
print(__name__, __file__, sys.argv, sys.path[0], sys.modules["__main__"].Net is Net, os.path.exists(__file__))
net = torch.compile(Net())
net = net if hasattr(net, "__fuselens__") else fuselens.compile(Net())
net(torch.ones(3, 4))
print([graph.cache for graph in net.__fuselens__.recorder.report.graphs])
""")
    environment = {"FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    recorded = fuselens("record", "sub/program.py", "-x", "7", cwd=tmp_path, **environment)
    assert recorded.returncode == 0, recorded.stderr
    own = subprocess.run(
        [sys.executable, "sub/program.py", "-x", "7"], capture_output=True, text=True, timeout=170, cwd=tmp_path,
        env=os.environ | environment, check=False,
    )  # fmt: skip
    (first, before), (second, after) = recorded.stdout.splitlines(), own.stdout.splitlines()
    assert first == second and str(program) in first and first.endswith("True True"), (recorded, own)
    assert (before, after) == ("['it was not compiled before']", "['found']"), (before, after)


def test_where_eager_ends_the_process(tmp_path: Path) -> None:
    """There is nothing to compare with: the other kinds of calls are proved, and nobody is blamed."""
    path = tmp_path / "crashes.py"
    path.write_text("""import os, signal
import fuselens, torch

@fuselens.compile(example_inputs=lambda: (torch.randn(3, 4),))
def crashing(x):
    if bool(torch.isnan(x).any()) or x.shape[0] == 4:
        os.kill(os.getpid(), signal.SIGSEGV)
    return x * 2
""")
    done = fuselens("verify", "crashes.py", "--format", "json", cwd=tmp_path)
    (proof,) = json.loads(done.stdout)
    assert done.returncode == 0 and proof.get("fault") is None, done
    said = {tried["inputs"]: tried.get("detail", "") for tried in proof["tried"]}
    for name in ("a NaN", "4 in place of 3 rows"):
        assert said[name].startswith("nothing to compare with, as eager ends the process: ") and "SIGSEGV" in said[name]
    assert said["zeros"] == "" and all(tried["agrees"] for tried in proof["tried"])


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("fuselens do", ["doctor"]), ("fuselens cache ve", ["verify"]), ("fuselens check --form", ["--format"]),
     ("fuselens check --format g", ["github"])],
)  # fmt: skip
def test_completion(tmp_path: Path, typed: str, offered: list[str]) -> None:
    out = tmp_path / "out"
    shell = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "COMP_LINE": typed,
    }
    done = fuselens(COMP_POINT=str(len(typed)), COMP_TYPE="9", **shell)
    assert (done.returncode, [word.strip() for word in out.read_text().splitlines()]) == (0, offered)


# --- ranks ------------------------------------------------------------------------------------------------------------

REDUCES = GOOD.replace("    return x * 2", "    y = x * 2\n    torch.distributed.all_reduce(y)\n    return y").replace(
    "import fuselens\n", "import fuselens\nimport torch\n"
)


def test_collectives_are_findings_of_sarif(tmp_path: Path) -> None:
    path = tmp_path / "reduces.py"
    path.write_text(REDUCES)
    done = fuselens("check", path, "--mesh", "data=4", "--ranks-per-host", 2, "--format", "sarif")
    assert done.returncode == 0, done.stderr
    found = {r["ruleId"]: r for r in json.loads(done.stdout)["runs"][0]["results"]}
    assert found["FL931"]["level"] == "note"
    said = "all_reduce of float32 [16] over data (4 ranks): each rank sends and receives 96 B, predicted 34.8 µs"
    assert found["FL931"]["message"]["text"].startswith(said)
    assert found["FL931"]["locations"][0]["physicalLocation"]["region"]["startLine"] == 9


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--mesh", "data"], "mesh is 'data': give names and sizes, such as data=8,tensor=8"),
        (["--mesh", "data=8", "--ranks", "9"], "ranks is 9: give as many as the mesh data=8 has"),
        (["--ranks", "8", "--host-link", "fast"], "a link is 'fast': give bandwidth and latency"),
    ],
)
def test_ranks_that_there_cannot_be(options: list[str], why: str, good: Path) -> None:
    done = fuselens("check", good, *options)
    assert done.returncode == 2 and why in done.stderr
