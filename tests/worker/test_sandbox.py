"""What a program that is only looked at may not do: nothing changes outside, and one finding says what was refused, and where.

Every effect is tried in Python and in C, while the file is imported and while a function of it is called.
"""

from __future__ import annotations

import http.server
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fuselens.checking import isolation
from fuselens.record import wire

if TYPE_CHECKING:
    from fuselens.record.report import Diagnostic
    from tests.support.workers import Client

HEAD = """import ctypes, fuselens, os, shutil, signal, socket, sqlite3, subprocess, sys, threading
import numpy, torch
from jaxtyping import Float32
from pathlib import Path
from torch import Tensor
libc = ctypes.CDLL(None, use_errno=True)
here = os.path.dirname(os.path.abspath(__file__))
victim = os.path.join(here, "victim.txt")
new = os.path.join(here, "new")
LONG = numpy.random.rand(1 << 22)

@fuselens.compile
def above(x: Float32[Tensor, "n"]):
    return x * 2

"""
BELOW = """
@fuselens.compile
def below(x: Float32[Tensor, "n"]):
    return x * 3
"""
PYTHON = {
    "write": "open(victim, 'w')",
    "append": "open(victim, 'a')",
    "change in place": "open(victim, 'r+b')",
    "os.open": "os.open(new, os.O_WRONLY | os.O_CREAT)",
    "relative": "os.chdir(here) or Path('new').write_text('x')",
    "through a link": "os.symlink(here, tmp := os.environ['TMPDIR'] + '/out') or open(tmp + '/new', 'w')",
    "mkdir": "os.makedirs(new + '/deep')",
    "unlink": "os.unlink(victim)",
    "rmdir": "os.rmdir(os.path.join(here, 'empty'))",
    "rmtree": "shutil.rmtree(os.path.join(here, 'full'))",
    "rename": "os.rename(victim, new)",
    "replace": "Path(victim).replace(new)",
    "move out": "shutil.move(victim, os.environ['TMPDIR'])",
    "copy": "shutil.copy(victim, new)",
    "chmod": "os.chmod(victim, 0o777)",
    "fchmod": "os.fchmod(os.open(victim, os.O_RDONLY), 0o777)",
    "utime": "os.utime(victim, (1, 1))",
    "chown": "os.chown(victim, 1, 1)",
    "truncate": "os.truncate(victim, 1)",
    "link": "os.link(victim, new)",
    "link from the private folder": "os.link(victim, os.environ['TMPDIR'] + '/same')",
    "symlink": "os.symlink(victim, new)",
    "fifo": "os.mkfifo(new)",
    "torch.save": "torch.save({'x': torch.ones(2)}, new)",
    "numpy.save": "numpy.save(new + '.npy', numpy.ones(2))",
    "memmap": "numpy.memmap(victim, mode='r+', shape=(1,), dtype='u1')",
    "sqlite3": "sqlite3.connect(new).execute('create table t (x)')",
    "logging": "__import__('logging').basicConfig(filename=new)",
    "subprocess": "subprocess.run(['touch', new])",
    "system": "os.system('touch ' + new)",
    "fork": "os.fork()",
    "exec": "os.execvp('touch', ['touch', new])",
    "posix_spawn": "os.posix_spawnp('touch', ['touch', new], os.environ)",
    "multiprocessing": "__import__('multiprocessing').get_context('spawn').Process(target=print).start()",
    "DataLoader": "next(iter(torch.utils.data.DataLoader([1, 2], num_workers=1)))",
    "kill": "os.kill(os.getppid(), signal.SIGTERM)",
    "killpg": "os.killpg(os.getpgrp(), signal.SIGKILL)",
    "connect": "socket.create_connection(('127.0.0.1', PORT))",
    "urlopen": "__import__('urllib.request').request.urlopen('http://127.0.0.1:PORT/').read()",
    "getaddrinfo": "socket.getaddrinfo('example.org', 80)",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "unix": "socket.socket(socket.AF_UNIX).bind(new)",
    "abstract": "socket.socket(socket.AF_UNIX).bind('\\0fuselens')",
}
C = {
    "write": "libc.open(victim.encode(), os.O_WRONLY | os.O_TRUNC)",
    "create": "libc.creat(new.encode(), 0o600)",
    "fopen": "libc.fopen(new.encode(), b'w')",
    "unlink": "libc.unlink(victim.encode())",
    "remove": "libc.remove(victim.encode())",
    "rename": "libc.rename(victim.encode(), new.encode())",
    "mkdir": "libc.mkdir(new.encode(), 0o700)",
    "rmdir": "libc.rmdir(os.path.join(here, 'empty').encode())",
    "symlink": "libc.symlink(b'/', new.encode())",
    "link": "libc.link(victim.encode(), new.encode())",
    "truncate": "libc.truncate(victim.encode(), 1)",
    "chmod": "libc.chmod(victim.encode(), 0o777)",
    "fchmod": "libc.fchmod(os.open(victim, os.O_RDONLY), 0o777)",
    "utimes": "libc.utimes(victim.encode(), None)",
    "setxattr": "libc.setxattr(victim.encode(), b'user.x', b'1', 1, 0)",
    "system": "libc.system(b'touch ' + new.encode())",
    "fork": "libc.fork()",
    "execv": "libc.execv(b'/bin/true', None)",
    "kill": "libc.kill(os.getppid(), 15)",
    "socket": "libc.socket(2, 1, 0)",
    "in a thread that has ended": "threading.Thread(target=lambda: libc.unlink(victim.encode())).start() or numpy.sort(LONG)",
    "in a thread": "(t := threading.Thread(target=lambda: libc.unlink(victim.encode()))).start() or t.join()",
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
EFFECTS = [
    *(pytest.param(line, id=f"python {name}") for name, line in PYTHON.items()),
    *(pytest.param(line, id=f"C {name}", marks=linux) for name, line in C.items()),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a server that must not hear anything."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "victim.txt").write_text("precious")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").write_text("x")
    return tmp_path


def state(folder: Path) -> dict[str, object]:
    """All that can be told of a folder's entries."""
    found: dict[str, object] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        s = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = s.st_mode, s.st_uid, s.st_mtime_ns, s.st_nlink, content, tuple(os.listxattr(path))
    return found


def text(path: Path, found: Diagnostic) -> str:
    """The source that a finding is at."""
    assert found.span is not None
    assert found.span.line == found.span.end_line
    return path.read_text().splitlines()[found.span.line - 1][found.span.column : found.span.end_column]


@pytest.mark.parametrize("line", EFFECTS)
def test_at_import(shared: Client, folder: Path, port: int, line: str) -> None:
    path = folder / "script.py"
    source = HEAD + line.replace("PORT", str(port)) + "\n" + BELOW
    path.write_text(source)
    before = state(folder)
    report = shared.check(path)
    assert state(folder) == before
    assert [d.code for d in report.diagnostics] == ["FL915"], report.diagnostics
    assert report.diagnostics[0].span is not None
    assert report.diagnostics[0].span.line == HEAD.count("\n") + 1
    assert report.functions[0].function == "above"
    assert len(report.functions[0].graphs) == 1, report.functions[0]


EVALUATED = """
from subprocess import Popen
class Loads:
    def __reduce__(self):
        return os.system, ("echo RAN >&2; touch " + new,)
Popen(["sh", "-c", "echo RAN >&2; touch " + new])
saved = os.path.join(os.environ["TMPDIR"], "saved")
torch.save(Loads(), saved)
torch.load(saved, weights_only=False)
{lines}
net = torch.compile(torch.nn.Linear(2, 2))
net(torch.ones(3, 2))
"""


def test_in_an_evaluation(shared: Client, folder: Path, port: int) -> None:
    """A program is evaluated by code of ours, which calls what the program calls: that makes no effect ours."""
    path = folder / "program.py"
    names = (
        "write mkdir unlink rename torch.save fifo logging subprocess system fork exec posix_spawn kill connect".split()
    )
    path.write_text(HEAD + EVALUATED.format(lines="\n".join(PYTHON[n] for n in names).replace("PORT", str(port))))
    before = state(folder)
    report = shared.check(path, options={"execution": "slice"})
    assert state(folder) == before
    assert {d.code for d in report.diagnostics} <= {"FL922", "FL924"}
    refused = [text(path, d) for d in report.diagnostics if "does not start the process" in d.message]
    assert refused[0].startswith("Popen(") and refused[1].startswith("torch.load(")
    assert [(r.function, len(r.graphs)) for r in report.functions] == [("above", 1), ("net", 1)]
    assert b"RAN" not in shared.errors


def test_in_calls(
    own: Callable[..., Client], folder: Path, port: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each in a function of its own: what is refused to one does not stop the others. That compilers were started before
    lets nothing of the program start."""
    client = own(environment={"FUSELENS_CACHE_DIR": str(tmp_path_factory.mktemp("cold"))})
    client.event()
    path = folder / "script.py"
    lines = [
        line.replace("PORT", str(port)) for line in (*PYTHON.values(), *(C.values() if sys.platform == "linux" else ()))
    ]
    function = """
@fuselens.compile
def acts{n}(x: Float32[Tensor, "n"]):
    y = x + 1
    {line}
    return y * 2
"""
    path.write_text(HEAD + "".join(function.format(n=n, line=line) for n, line in enumerate(lines)) + BELOW)
    before = state(folder)
    report = client.check(path)
    assert state(folder) == before
    assert not report.diagnostics
    above, *acting, below = report.functions
    assert (len(above.graphs), len(below.graphs), len(acting)) == (1, 1, len(lines))
    for line, of in zip(lines, acting, strict=True):
        (found,) = [d for d in of.diagnostics if d.severity == "error"]
        assert found.code == "FL915"
        assert found.span is not None
        assert path.read_text().splitlines()[found.span.line - 1].strip() == line


# --- programs that do not take no for an answer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "    try: open(new, 'w')\n    except BaseException: pass\n",
        "    try: torch.save({}, new)\n    except BaseException: pass\n",
        "    try: torch.save({}, new + '\xe4')\n    except Exception as error: print(error)\n",
        "    threading.Thread(target=lambda: open(new, 'w')).start()\n",
        pytest.param("    try: libc.unlink(victim.encode())\n    except BaseException: pass\n", marks=linux),
    ],
)
def test_tries_again_for_ever(shared: Client, folder: Path, body: str) -> None:
    path = folder / "script.py"
    path.write_text(HEAD + "while True:\n" + body)
    before = state(folder)
    report = shared.check(path)  # without an end it would be FL905
    assert state(folder) == before
    (found,) = report.diagnostics
    assert (found.code, found.span and found.span.line) == ("FL915", HEAD.count("\n") + 2)


def test_caught_once(shared: Client, folder: Path) -> None:
    """The rest of the file is evaluated then, and the finding is kept, also where that does not end."""
    path = folder / "script.py"
    source = HEAD + "try: open(new, 'w')\nexcept BaseException: pass\n"
    path.write_text(source + BELOW)
    report = shared.check(path)
    assert [r.function for r in report.functions] == ["above", "below"]
    assert [d.code for d in report.diagnostics] == ["FL915"]
    path.write_text(source + BELOW + "while True: pass\n")
    report = shared.check(path, limits=wire.Limits(seconds=3))
    assert [d.code for d in report.diagnostics] == ["FL915", "FL905"]


def test_in_another_file_of_the_program(shared: Client, folder: Path) -> None:
    (folder / "logs_to_a_file.py").write_text("def begin():\n    open('log.txt', 'w')\n")
    path = folder / "script.py"
    path.write_text(HEAD + "import logs_to_a_file\nlogs_to_a_file.begin()\n")
    before = state(folder)
    report = shared.check(path)
    assert state(folder) == before
    (found,) = report.diagnostics
    assert (found.code, text(path, found)) == ("FL915", "logs_to_a_file.begin()")


def test_in_what_makes_inputs(shared: Client, folder: Path) -> None:
    path = folder / "script.py"
    inputs = "def inputs():\n    open(new, 'w')\n    return (torch.ones(2),)\n"
    made = "@fuselens.compile(example_inputs=inputs)\ndef made(x):\n    return x + 1\n"
    path.write_text(HEAD + inputs + made + BELOW)
    report = shared.check(path)
    assert [[d.code for d in r.diagnostics] for r in report.functions] == [[], ["FL915"], []]


def test_runs(shared: Client, folder: Path) -> None:
    """Running a function refuses what a check does, unless it is told otherwise."""
    path = folder / "script.py"
    path.write_text(
        HEAD + "@fuselens.compile\ndef saves(x: Float32[Tensor, 'n']):\n    torch.save(x, new)\n    return x + 1\n"
    )
    before = state(folder)
    run = shared.result(shared.send("run", path, functions=("saves",))).run
    assert state(folder) == before
    assert run is not None and run.error is not None
    assert (run.agrees, run.error.code, text(path, run.error)) == (False, "FL915", "torch.save(x, new)")
    run = shared.result(shared.send("run", path, functions=("saves",), options={"allow_effects": True})).run
    assert run is not None and run.agrees, run
    assert (folder / "new").exists()


# --- what is nobody's business --------------------------------------------------------------------------------------

HARMLESS = {
    "temporary files": """with tempfile.TemporaryDirectory() as d:
    Path(d, "x").write_text("x"); os.chmod(d + "/x", 0o600); shutil.copy(d + "/x", d + "/y"); os.rename(d + "/y", d + "/z")
    os.symlink(d + "/x", d + "/s"); os.link(d + "/x", d + "/l"); os.utime(d + "/x"); os.truncate(d + "/x", 0)
    torch.save({"x": torch.ones(1)}, d + "/ck.pt"); torch.load(d + "/ck.pt")
    db = sqlite3.connect(d + "/db"); db.execute("create table t (x)"); db.commit(); db.close()
    m = numpy.memmap(d + "/m", mode="w+", shape=(10,), dtype="u1"); m[0] = 1; m.flush()
    libc.mkdir(os.path.join(d, "c").encode(), 0o700); assert os.path.isdir(os.path.join(d, "c"))
""",
    "reading": """sqlite3.connect(here + "/readable.db").execute("select * from t").fetchall()
numpy.memmap(victim, mode="r", dtype="u1")[0]
open(victim).read(), os.listdir(here), torch.from_file(victim, size=2, dtype=torch.uint8)
""",
    "folders that are there": "os.makedirs(here, exist_ok=True); Path(here).mkdir(exist_ok=True)",
    "nothing that is there": "import contextlib\nwith contextlib.suppress(FileNotFoundError): os.remove(new)",
    "streams": """print("x", file=open(os.devnull, "w")); open("/dev/stdout", "w").write("x"); os.write(1, b"x")
import logging; logging.basicConfig(); logging.warning("x")""",
    "own modules": "import a_module_beside_it",
    "threads": """threading.Thread(target=print).start(); torch.set_num_threads(2); torch.ones(1 << 20).sum()
from concurrent.futures import ThreadPoolExecutor; ThreadPoolExecutor(2).submit(print).result()""",
    "shared memory": """import multiprocessing; multiprocessing.Lock(); multiprocessing.Value("i", 0); torch.ones(3).share_memory_()
m = os.memfd_create("x"); os.write(m, b"x"); os.ftruncate(m, 10)""",
    "signals to itself": """signal.signal(signal.SIGUSR1, lambda *_: None); os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1); libc.raise_(10) if hasattr(libc, "raise_") else libc.kill(os.getpid(), 10)""",
    "event loops": "import asyncio; asyncio.run(asyncio.sleep(0)); a, b = socket.socketpair(); a.send(b'x'); b.recv(1)",
    "questions about the system": """import ctypes.util, getpass, platform, uuid
platform.platform(), platform.processor(), uuid.uuid1(), getpass.getuser(), os.path.expanduser("~"), socket.gethostname()
assert ctypes.util.find_library("c") is not None""",
    "data loaders": "next(iter(torch.utils.data.DataLoader([torch.ones(1)] * 4)))",
}


@pytest.mark.skipif(sys.platform != "linux", reason="of systems others than Linux little is known")
@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in HARMLESS.items()])
def test_harmless(shared: Client, folder: Path, body: str) -> None:
    (folder / "a_module_beside_it.py").write_text("X = 1\n")
    with sqlite3.connect(folder / "readable.db") as database:
        database.execute("create table t (x)")
    database.close()
    path = folder / "script.py"
    path.write_text(HEAD + "import tempfile\n" + body + "\n" + BELOW)
    before = state(folder)
    report = shared.check(path)
    assert state(folder) == before
    assert report.diagnostics == []
    assert [len(r.graphs) for r in report.functions] == [1, 1]


LIBRARY = """import os
cache = os.path.expanduser("~/.cache/of_a_library")
try:
    os.makedirs(cache)
    found = "made"
except OSError as error:
    found = f"{type(error).__name__} {error.errno}"

def tries():
    try:
        open(cache, "w")
    except PermissionError:
        return "without"

def needs():
    open(os.path.join(os.path.dirname(cache), "needed"), "w")

def wraps():
    try:
        needs()
    except OSError as error:
        raise RuntimeError("no cache") from error
"""


def test_what_libraries_can_do_without(own: Callable[..., Client], folder: Path) -> None:
    """A library gets an ordinary error. It is a finding where the program gets it."""
    base, home = folder / "base", folder / "home"
    packages = base / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    home.mkdir()
    (packages / "of_a_library.py").write_text(LIBRARY)
    client = own(environment={
        "PYTHONUSERBASE": str(base), "PYTHONPATH": os.pathsep.join([str(packages), *sys.path]), "HOME": str(home),
        "FUSELENS_CACHE_DIR": str(folder / "cache"),
    })  # fmt: skip
    client.event()
    path = folder / "script.py"
    head = HEAD + "import of_a_library\n"
    path.write_text(
        head + "assert of_a_library.found == 'PermissionError 13' and of_a_library.tries() == 'without'" + BELOW
    )
    report = client.check(path)
    assert (report.diagnostics, len(report.functions)) == ([], 2)
    for call in ("of_a_library.needs()", "of_a_library.wraps()"):
        path.write_text(head + call + BELOW)
        (found,) = client.check(path).diagnostics
        assert (found.code, text(path, found)) == ("FL915", call)
    path.write_text(head + "while True: of_a_library.tries()\n")
    (found,) = client.check(path).diagnostics
    assert (found.code, text(path, found)) == ("FL915", "of_a_library.tries()")


# --- what is ours ---------------------------------------------------------------------------------------------------


def test_caches_builds_and_dumps_of_ours(own: Callable[..., Client], folder: Path) -> None:
    cache, dump = folder / "not" / "yet" / "cache", folder / "dump"
    client = own(environment={"FUSELENS_CACHE_DIR": str(cache), "FUSELENS_DUMP": str(dump)})
    client.event()
    path = folder / "script.py"
    path.write_text(HEAD + BELOW)
    for cached in (False, True):
        report = client.check(path)
        assert report.diagnostics == []
        assert [r.diagnostics for r in report.functions] == [[], []]
        assert {g.cached for r in report.functions for g in r.graphs} == {cached}
    assert list(cache.rglob("*.so"))
    assert (dump / "above" / "explain.txt").exists()
    path.write_text(HEAD + f"open({str(cache / 'mine')!r}, 'w')\n")
    assert [d.code for d in client.check(path).diagnostics] == ["FL915"], "the cache is not the program's"


def test_the_private_folder_goes(shared: Client, folder: Path, eventually: Callable[..., None]) -> None:
    path = folder / "script.py"
    path.write_text(HEAD + "open(os.environ['TMPDIR'] + '/kept', 'w'); raise ValueError(os.environ['TMPDIR'])\n")
    (found,) = shared.check(path).diagnostics
    private = Path(found.message.rpartition(" ")[2])
    assert private.name.startswith("fuselens-check-")
    eventually(lambda: not private.exists())  # the answer did not wait for it


# --- where the kernel has no part -----------------------------------------------------------------------------------

ALONE = """
import os, subprocess, sys
from pathlib import Path
{without}
from fuselens import sandbox
def give_up(found): os._exit(3)
sandbox.enter(__file__, Path(sys.argv[1]), [], lambda found: None, give_up)
before = set(os.listdir("."))
for effect in (
    lambda: open("new", "w"), lambda: os.mkdir("new"), lambda: os.unlink(__file__), lambda: os.rename(__file__, "new"),
    lambda: os.chmod(__file__, 0o777), lambda: os.system("touch new"), lambda: subprocess.run(["touch", "new"]),
):
    try: effect()
    except sandbox.Refused as refused: print(refused.finding.code, refused.finding.span.line)
    (found,) = sandbox.take()
assert set(os.listdir(".")) == before
Path(sys.argv[1], "mine").write_text("x")
open(os.devnull, "w").write("x")
"""
WITHOUT = {
    "the extension": "sys.modules['fuselens.sandbox._wall'] = None",
    "Landlock": "from fuselens.sandbox import _wall; _wall.enclose = lambda _: 0",
    "seccomp": "from fuselens.sandbox import _wall; _wall.watch = lambda _: False",
    "nothing": "",
}


@pytest.mark.parametrize("without", [pytest.param(line, id=f"without {name}") for name, line in WITHOUT.items()])
def test_each_part_alone(tmp_path: Path, without: str) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "private").mkdir()
    script = tmp_path / "here" / "script.py"
    script.write_text(ALONE.format(without=without))
    command = [sys.executable, str(script), str(tmp_path / "private")]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["FL915 10"] * 4 + ["FL915 11"] * 3


def test_in_a_new_interpreter(folder: Path) -> None:
    supervisor = isolation.Supervisor(spawn=True)
    path = folder / "script.py"
    path.write_text(HEAD + "torch.save({}, new)\n" + BELOW)
    before = state(folder)
    try:
        request = wire.Request(1, "check", str(path), options={"execution": "import"})
        report = supervisor.call(request).file
    finally:
        supervisor.close()
    assert state(folder) == before
    assert report is not None
    assert [d.code for d in report.diagnostics] == ["FL915"]
    assert [len(r.graphs) for r in report.functions] == [1]
