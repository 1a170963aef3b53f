"""Artifacts: a file that another process loads without tracing and without a compiler, which serves what it was made for and
refuses what it was not."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens import api, config
from fuselens.aot import loading, proof, targets
from fuselens.aot.container import ArtifactError
from fuselens.runtime import build


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(build, "_carried", {})
    torch.manual_seed(0)
    with config.patch(cache_dir=tmp_path / "cache"):
        yield tmp_path


def made(place: Path, fn: Any, *calls: Any, **how: Any) -> fuselens.Artifact:
    """The artifact as another process has it: read from the file, with libraries that came with it."""
    fuselens.aot_compile(fn, *calls, to=place / "made.fla", **how)
    return fuselens.load(place / "made.fla")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.register_buffer("offset", torch.ones(8), persistent=False)
        self.scale = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.b(F.gelu(self.a(x))) * self.scale + self.offset)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


TABLE = torch.arange(8.0)


def of_everything(x: Tensor, /, y: Tensor, flag: bool = True, *rest: Tensor, k: float = 3, **named: Tensor) -> Any:
    z = x @ y.t() * k + sum(rest) + sum(named.values())
    return {"z": z.relu() if flag else z, "n": x.shape[0], "x": x}


def of_a_global(x: Tensor) -> Tensor:
    return x * TABLE


def in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def of_a_closure() -> Callable[[Tensor], Tensor]:
    weight, factor = torch.randn(8, 8), 3

    def inner(x: Tensor) -> Tensor:
        return x @ weight * factor

    return inner


torch.manual_seed(0)
x = torch.randn(4, 8)
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "everything": (
        of_everything,
        ((x, x), (x, x, False), (x, x, True, x[:, :4]), ((x, x), {"k": 4.0, "more": x[:, :4]})),
        {},
    ),
    "a global": (of_a_global, ((x,),), {}),
    "a closure": (of_a_closure(), ((x,),), {}),
    "a write": (in_place, ((x,),), {}),
    "a module": (Block().eval(), ((x,),), {}),
    "sizes": (Block().eval(), ((x,),), {"dynamic": True}),
    "training": (Block(), ((x,), (x.clone().requires_grad_(),)), {"training": True}),
    "tied": (Tied(), ((torch.arange(5),),), {"training": True}),
    "running": (Normed(), ((torch.randn(2, 3, 8, 8),),), {"training": True}),
    "a method": (Block().eval().forward, ((x,),), {}),
    "baseline": (Block().eval(), ((x,),), {"isas": ["sse2"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_gives_what_eager_gives(case: str, place: Path) -> None:
    """``check`` compares it with eager; here it is compared once more, as it was read from the file."""
    fn, calls, how = CASES[case]
    artifact = made(place, fn, *calls, **how)
    assert all(not call["dropped"] for call in artifact.calls)
    proof.prove(fn, [api._call_of(call) for call in calls], artifact)
    assert all(not graph.fallback for graph in artifact.report.graphs)


def test_a_module_is_trained_on_from_a_file(place: Path) -> None:
    model, target = Block(), torch.randn(4, 8)
    artifact = made(place, model, (x,), training=True)

    def trained(call: Callable[[Tensor], Tensor], parameters: list[Any]) -> list[Tensor]:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(call(x), target).backward()
            optimizer.step()
        return [p.detach() for p in parameters]

    names = [name for name, _ in model.named_parameters()]
    ours = trained(artifact, [artifact.weights[name] for name in names])
    torch.testing.assert_close(ours, trained(model, list(model.parameters())), rtol=1e-3, atol=1e-4)


class Wrong:
    """An artifact's function that gives too much."""

    def __init__(self, artifact: fuselens.Artifact, by: float) -> None:
        self.weights, self.training, self.name = artifact.weights, artifact.training, "wrong"
        self._artifact, self._by = artifact, by

    def __call__(self, x: Tensor) -> Tensor:
        return self._artifact(x) * self._by


@pytest.mark.parametrize(("by", "refused"), [(1 + 1e-6, False), (1 + 1e-3, True), (float("nan"), True)])
def test_the_proof_sees_what_is_no_rounding(by: float, refused: bool, place: Path) -> None:
    model: Any = Block()
    wrong: Any = Wrong(made(place, model, (x,), training=True), by)
    if refused:
        with pytest.raises(ArtifactError, match="it gives another result than eager in call 0"):
            proof.prove(model, [api._call_of((x,))], wrong)
    else:
        proof.prove(model, [api._call_of((x,))], wrong)


@pytest.mark.parametrize("seed", [4, 27])
def test_rounding_that_a_norm_amplifies_is_no_difference(seed: int, place: Path) -> None:
    torch.manual_seed(seed)
    given = torch.randn(4, 8)
    made(place, Block(), (given,), training=True)


def test_weights_by_reference(place: Path) -> None:
    model = Block().eval()
    fuselens.aot_compile(model, (x,), to=place / "made.fla", weights=False)
    with zipfile.ZipFile(place / "made.fla") as archive:
        held = torch.load(archive.open("weights.pt"))  # what no state_dict has
    assert list(held) == ["offset"]
    other = Block().eval()
    artifact = fuselens.load(place / "made.fla", weights=other.state_dict())
    torch.testing.assert_close(artifact(x), other(x).detach())
    with torch.no_grad():
        other.norm.bias.add_(1)
    torch.testing.assert_close(artifact(x), other(x).detach())  # the same memory
    with pytest.raises(ArtifactError, match=r"FL928: .* lacks a.weight"):
        fuselens.load(place / "made.fla")
    wrong = {**other.state_dict(), "b.bias": torch.ones(3)}
    with pytest.raises(
        ArtifactError, match=r"b.bias is a torch.float32 of \[3\], and it was made for a torch.float32 of \[8\]"
    ):
        fuselens.load(place / "made.fla", weights=wrong)


def test_sizes_that_vary(place: Path) -> None:
    model = Block().eval()
    artifact = made(place, model, (x,), dynamic=True)
    for rows in (2, 3, 7, 64):
        given = torch.randn(rows, 8)
        torch.testing.assert_close(artifact(given), model(given).detach())
    with pytest.raises(ArtifactError, match="FL929"):
        artifact(torch.randn(3, 9))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((x[:2],), r"x: expected f32\[4, 8\], found f32\[2, 8\]"),
        ((x.double(),), r"x: expected f32\[4, 8\], found f64\[4, 8\]"),
        ((x.t().contiguous().t(),), "stride"),
        ((3,), "x: expected"),
    ],
)
def test_a_call_that_it_was_not_made_for(given: Any, why: str, place: Path) -> None:
    artifact = made(place, Block().eval(), (x,))
    with pytest.raises(ArtifactError, match=why) as raised:
        artifact(*given)
    assert raised.value.diagnostic.code == "FL929"


def test_the_state_of_torch_is_guarded(place: Path) -> None:
    artifact = made(place, of_a_global, (x,))
    torch.testing.assert_close(artifact(x), x * TABLE)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ArtifactError, match="get_default_dtype"):
            artifact(x)
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(ArtifactError, match="autocast"), torch.autocast("cpu"):
        artifact(x)


def test_what_is_settled_is_told(place: Path) -> None:
    told = made(place, Block().eval(), (x,)).calls[0]
    assert told["inputs"] == {"x": "float32[4, 8] on cpu"}
    assert any("self.scale == 0.5" in text for text in told["settled"])
    assert any("x: float32[4, 8]" in text for text in told["guards"])
    assert not any("self.scale" in text for text in told["guards"])


def test_a_weight_that_is_replaced_is_noticed(place: Path) -> None:
    artifact = made(place, Block().eval(), (x,))
    artifact.weights["norm.bias"].data = torch.ones(8, dtype=torch.float64)
    with pytest.raises(ArtifactError, match=r"self.norm.bias: expected f32\[8\], found f64\[8\]"):
        artifact(x)


class Counter(nn.Module):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


def prints(x: Tensor) -> Tensor:
    print(x)
    return x + 1


def calls_back(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    return f(x) * 2


@pytest.mark.parametrize(
    ("fn", "call", "error", "why"),
    [
        (Counter(), (x,), ArtifactError, "FL927: no artifact is made of Counter: it needs self"),
        (prints, (x,), fuselens.GraphBreakError, "FL103"),
        (calls_back, (x, torch.sin), ArtifactError, None),
        (calls_back, (x, lambda y: y + 1), ArtifactError, "a function as an argument"),
        (len, ((1,),), ArtifactError, "it is no function and no module"),
        (of_a_global, (x, x), ArtifactError, "it cannot be called with these inputs"),
        (of_a_global, x, TypeError, "takes tuples of arguments"),
    ],
)  # fmt: skip
def test_what_no_file_is_made_of(fn: Any, call: Any, error: Any, why: str | None, place: Path) -> None:
    if why is None:
        torch.testing.assert_close(made(place, fn, call)(*call), fn(*call))
        return
    with pytest.raises(error, match=why):
        made(place, fn, call)
    assert not (place / "made.fla").exists()


def damaged(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def told(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def change(parts: dict[str, bytes]) -> None:
        parts["fuselens.json"] = json.dumps({**json.loads(parts["fuselens.json"]), **changes}).encode()

    return change


def on(system: str, machine: str, *isas: str) -> Callable[[dict[str, bytes]], None]:
    return told(targets=[{"system": system, "machine": machine, "isas": list(isas)}])


def flipped(prefix: str, suffix: str = "") -> Callable[[dict[str, bytes]], None]:
    def change(parts: dict[str, bytes]) -> None:
        for name in parts:  # of several instruction sets one is read
            if name.startswith(prefix) and name.endswith(suffix):
                parts[name] = parts[name][:-20] + bytes([parts[name][-20] ^ 1]) + parts[name][-19:]

    return change


DAMAGE = {
    "another Python": (told(python=[3, 8]), r"made with python 3.8, and this is 3\."),
    "another torch": (told(torch="1.0"), "made with torch 1.0"),
    "another machine": (on("Linux", "riscv64", "scalar"), "made for Linux-riscv64, and this is "),
    "another format": (told(format=99), "has format 99"),
    "an instruction set": (on(platform.system(), platform.machine(), "neon"), "has code for neon"),
    "a module": (told(imports=["no_such_module"]), "needs the module no_such_module"),
    "a library": (flipped("graphs/", ".library"), r"its part graphs/.*\.library is not the one that was put in"),
    "a program": (flipped("graphs/", ".forward"), r"its part graphs/.*\.forward is not the one"),
    "weights": (flipped("weights.pt"), "its part weights.pt is not the one"),
    "a part is gone": (lambda parts: parts.pop("frames"), "its part frames is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_does_not_fit(damage: str, place: Path) -> None:
    if damage == "an instruction set" and build._machine_isa() == "neon":
        pytest.skip("this processor has it")
    fuselens.aot_compile(Block().eval(), (x,), to=place / "made.fla")
    change, why = DAMAGE[damage]
    damaged(place / "made.fla", change)
    with pytest.raises(ArtifactError, match=why) as raised:
        fuselens.load(place / "made.fla")
    assert raised.value.diagnostic.code == "FL928"


def test_a_digest(place: Path) -> None:
    digest = made(place, of_a_global, (x,)).digest
    assert fuselens.load(place / "made.fla", sha256=digest).digest == digest
    with pytest.raises(ArtifactError, match="and 00 is expected"):
        fuselens.load(place / "made.fla", sha256="00")
    (place / "made.fla").write_bytes((place / "made.fla").read_bytes()[:200])
    with pytest.raises(ArtifactError, match="no artifact, or damaged"):
        fuselens.load(place / "made.fla")
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        fuselens.load(place / "none.fla")


@pytest.mark.parametrize(("host", "chosen"), [("avx512", "avx512"), ("avx2", "avx2"), ("sse2", None)])
def test_the_best_instruction_set_is_taken(host: str, chosen: str | None, place: Path) -> None:
    own = targets.here(["avx512", "avx2"])
    about = {"python": list(sys.version_info[:2]), "torch": torch.__version__, "targets": [own.as_data()]}
    given = config.Config(cpu_isa=host)
    if chosen is None:
        with pytest.raises(ArtifactError, match="this processor has sse2"):
            loading._programs_here(place, about, given)
    else:
        assert loading._programs_here(place, about, given) == f"{own.place}.{chosen}"


# --- other systems ------------------------------------------------------------------------------------------------------

needs_ziglang = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")


def parts_of(path: Path, suffix: str) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(suffix)}


@needs_ziglang
def test_libraries_for_other_systems(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they are, by their first bytes: an ELF file says for which machine it is, and so does a Mach-O file. Nothing else is
    left."""
    monkeypatch.chdir(place)
    fuselens.aot_compile(
        Block().eval(),
        (x,),
        to=place / "made.fla",
        isas=["scalar"],
        targets=["linux-aarch64", "linux-x86_64", "macos-arm64"],
    )
    expected = {
        "Linux-aarch64.neon": (b"\x7fELF", 18, b"\xb7\x00"),
        "Darwin-arm64.neon": (b"\xcf\xfa\xed\xfe", 4, b"\x0c\0\0\1"),
    }
    own = targets.here(["scalar"])
    if own.place != "Linux-x86_64":  # this machine has what was asked of it, not what others have
        expected |= {f"Linux-x86_64.{isa}": (b"\x7fELF", 18, b"\x3e\x00") for isa in ("avx512", "avx2")}
    assert sorted(p.name for p in place.iterdir()) == ["cache", "made.fla"]
    libraries = parts_of(place / "made.fla", ".library")
    assert {name.split("/0.")[1] for name in libraries} == {
        f"{kind}.forward.library" for kind in (*expected, f"{own.place}.scalar")
    }
    for kind, (magic, offset, machine) in expected.items():
        content = libraries[f"graphs/0.{kind}.forward.library"]
        assert content.startswith(magic), kind
        assert content[offset : offset + len(machine)] == machine, kind


@needs_ziglang
def test_a_library_that_another_compiler_built_is_loaded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another system, whose processor is like this one: its kernels are those of the artifact, and no others."""
    triple = f"{platform.machine()}-linux-gnu.{targets.GLIBC}"
    monkeypatch.setitem(
        targets.OTHERS, "other", targets.Target("Other", platform.machine(), ("neon", "scalar"), triple)
    )
    model = Block().eval()
    fuselens.aot_compile(model, (x,), to=place / "made.fla", dynamic=True, targets="other")
    monkeypatch.setattr(platform, "system", lambda: "Other")
    monkeypatch.setenv("PATH", str(place))  # no compiler
    monkeypatch.setenv("FUSELENS_CPU_ISA", "neon")
    artifact = fuselens.load(place / "made.fla")
    torch.testing.assert_close(artifact(x[:3]), model(x[:3]).detach())
    assert not artifact.report.diagnostics
    assert all(graph.kernels and graph.cached for graph in artifact.report.graphs)


def test_targets_that_cannot_be_had(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'plan9', which is none of linux-x86_64, linux-aarch64, macos-arm64"):
        made(place, of_a_global, (x,), targets=["plan9"])
    monkeypatch.setattr(build, "_wheel", lambda: ())
    with pytest.raises(
        ArtifactError, match=r"libraries for Linux-aarch64 need a compiler: .*ziglang .*fuselens\[compiler\]"
    ):
        made(place, of_a_global, (x,), isas=["scalar"], targets=["linux-aarch64"])
    assert not (place / "made.fla").exists()


@pytest.mark.parametrize(
    ("made_with", "fits"), [("+cpu", True), ("+cu130", True), ("+git1234", False), (".post1", False)]
)
def test_wheels_of_one_torch_for_other_devices_are_one_torch(made_with: str, fits: bool, place: Path) -> None:
    fuselens.aot_compile(of_a_global, (x,), to=place / "made.fla")
    damaged(place / "made.fla", told(torch=torch.__version__.partition("+")[0] + made_with))
    if fits:
        fuselens.load(place / "made.fla")
    else:
        with pytest.raises(ArtifactError, match="it was made with torch"):
            fuselens.load(place / "made.fla")


FRESH = """
import sys
import torch, fuselens
artifact = fuselens.load(sys.argv[1])
x = torch.load(sys.argv[2])
torch.save([artifact(x), artifact(x[:3])], sys.argv[2])
loaded = [m for m in ("sympy", "fuselens.autograd.joint", "fuselens.lowering", "fuselens.codegen") if m in sys.modules]
print(*loaded, sep=",")
"""


def test_a_process_without_a_compiler(place: Path) -> None:
    """Nor does it have the program that the function was in, a cache, or a place to write one."""
    model = Block().eval()
    fuselens.aot_compile(model, (x,), dynamic=True, to=place / "made.fla")
    (place / "program.py").write_text(FRESH)
    (place / "empty").mkdir()
    torch.save(x, place / "x.pt")
    environment = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HOME")}
    environment |= {"PATH": str(place / "empty"), "FUSELENS_CACHE_DIR": str(place / "fresh")}
    done = subprocess.run(
        [sys.executable, "program.py", "made.fla", "x.pt"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""  # no stage of the compiler was even imported
    torch.testing.assert_close(torch.load(place / "x.pt"), [model(x).detach(), model(x[:3]).detach()])
