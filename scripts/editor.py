"""The editor that `make run` opens and the end-to-end tests drive: the person's own VS Code, or code-server from npm.

    editor.py install                         code-server into .cache/, once (FUSELENS_EDITOR=oldest: the first release that we support)
    editor.py open FOLDER --vsix FILE         installs the extension and opens FOLDER

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"


@dataclass(frozen=True)
class Edition:
    """A release of code-server. Its Node is fetched from npm where the machine's own has another major version."""

    code_server: str
    node: str


EDITIONS = {
    "oldest": Edition("4.93.1", "20.20.2"),  # VS Code 1.93, the first that the extension's manifest allows
    "current": Edition("4.139.1", "24.9.0"),  # VS Code 1.139
}
EDITION = os.environ.get("FUSELENS_EDITOR", "current")
ARGON2 = "0.44.0"  # carries prebuilt binaries; the version that code-server names compiles or downloads one

NATIVE = {
    "@vscode/spdlog": "output channels stay empty in this editor",
    "node-pty": "there is no terminal in this editor",
}

PYTHON = ROOT / ".venv" / "bin" / "python"


@dataclass(frozen=True)
class CodeServer:
    """An installed code-server."""

    node: str
    entry: Path

    def command(self, *arguments: str) -> list[str]:
        return [self.node, str(self.entry), *arguments]


def installed(home: Path = CACHE, edition: str = EDITION) -> CodeServer | None:
    """The code-server under ``home``, if it was installed completely."""
    place = home / f"code-server-{EDITIONS[edition].code_server}"
    entry = place / "node_modules" / "code-server" / "out" / "node" / "entry.js"
    if not entry.is_file():
        return None
    own = place / "node_modules" / _node_package() / "bin" / "node"
    node = str(own) if own.is_file() else shutil.which("node")
    return CodeServer(node, entry) if node else None


def install(home: Path = CACHE, edition: str = EDITION) -> CodeServer:
    """Installs code-server from npm. Raises subprocess.CalledProcessError with npm's own message shown.

    No package's install script runs: those of code-server build or download native modules that are not needed here,
    and refuse other versions of Node than they know. The two modules that a person would miss are built afterwards.
    """
    if (found := installed(home, edition)) is not None:
        return found
    wanted = EDITIONS[edition]
    print(f"installing code-server {wanted.code_server} into {_shown(home)} (once, 300 to 800 MB)", flush=True)
    place = home / f"code-server-{wanted.code_server}"
    staged = home / f"code-server-{wanted.code_server}.partial"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    dependencies = {"code-server": wanted.code_server}
    if _node_major() != int(wanted.node.partition(".")[0]):
        dependencies[_node_package()] = wanted.node
    (staged / "package.json").write_text(
        json.dumps({"private": True, "dependencies": dependencies, "overrides": {"argon2": ARGON2}})
    )
    started = time.monotonic()
    vscode = staged / "node_modules" / "code-server" / "lib" / "vscode"
    for folder in (staged, vscode, vscode / "extensions"):
        _npm_install(folder)
    (vscode / "node_modules.asar").symlink_to("node_modules")
    _use_system_ripgrep(vscode)
    for package, what in NATIVE.items():
        if not _build_native(vscode, package):
            print(f"  {package} could not be built: {what}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    staged.rename(place)
    print(f"code-server ready in {time.monotonic() - started:.0f} s", flush=True)
    server = installed(home, edition)
    assert server is not None
    return server


def _npm_install(folder: Path) -> None:
    subprocess.run(
        [
            "npm",
            "install",
            "--ignore-scripts",
            "--omit=dev",
            "--legacy-peer-deps",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _build_native(vscode: Path, package: str) -> bool:
    """Compiles a native module against the headers of the Node in use. Nothing that is tested depends on it."""
    prefix = Path(subprocess.check_output(["node", "-p", "process.execPath"], text=True).strip()).parent.parent
    environment = dict(os.environ, JOBS="max")
    if (prefix / "include" / "node" / "node_api.h").is_file():
        environment["npm_config_nodedir"] = str(prefix)
    command = ["npm", "rebuild", package, "--build-from-source", "--loglevel=silent"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=vscode, env=environment, capture_output=True, timeout=300)
    return any((vscode / "node_modules" / package / "build" / "Release").glob("*.node"))


def _use_system_ripgrep(vscode: Path) -> None:
    """Search in the editor needs ripgrep, which its npm package would download from elsewhere."""
    if rg := shutil.which("rg"):
        target = vscode / "node_modules" / "@vscode" / "ripgrep" / "bin" / "rg"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(rg)


def _node_major() -> int:
    return int(subprocess.check_output(["node", "-p", "process.versions.node.split('.')[0]"], text=True))


def _node_package() -> str:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine())
    return f"node-{sys.platform}-{machine.lower()}"


SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "chat.disableAIFeatures": True,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "update.mode": "none",
    "extensions.autoUpdate": False,
    "extensions.ignoreRecommendations": True,
    "extensions.autoCheckUpdates": False,
    "files.autoSave": "off",
    "editor.minimap.enabled": False,
    "git.enabled": False,
}


@contextlib.contextmanager
def serve(
    server: CodeServer, home: Path, vsixes: list[Path], *, port: int, settings: dict[str, object]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs code-server on 127.0.0.1:``port`` with user data under ``home``; stops the whole process group at the end.

    Raises RuntimeError, with the log's tail, when it does not come up within three minutes.
    """
    data, extensions = home / "data", home / "extensions"
    (data / "User").mkdir(parents=True, exist_ok=True)
    (data / "User" / "settings.json").write_text(json.dumps(SETTINGS | settings, indent=2))
    config = home / "config.yaml"
    config.write_text("auth: none\n")
    common = ["--config", str(config), "--user-data-dir", str(data), "--extensions-dir", str(extensions)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VSCODE_", "ELECTRON_"))}
    for vsix in vsixes:
        done = subprocess.run(
            server.command(*common, "--install-extension", str(vsix), "--force"),
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode:
            raise RuntimeError(f"installing {vsix.name} failed:\n{done.stdout}{done.stderr}")
    log_path = home / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            server.command(
                *common,
                "--auth=none",
                f"--bind-addr=127.0.0.1:{port}",
                "--disable-telemetry",
                "--disable-update-check",
                "--disable-workspace-trust",
                "--disable-getting-started-override",
            ),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait_until_healthy(process, port, log_path)
            yield process
        finally:
            stop(process)


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
    raise RuntimeError(f"code-server did not come up on port {port}:\n{tail}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the process group: code-server, its extension hosts, and the language servers that they started."""
    for sent, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
            break
    with contextlib.suppress(ProcessLookupError):  # children that outlived their leader
        os.killpg(process.pid, signal.SIGKILL)


def address(port: int, folder: Path, file: Path | None = None) -> str:
    """Where a browser finds the editor with ``folder``, and ``file`` in front."""
    found = f"http://127.0.0.1:{port}/?folder={quote(str(folder))}"
    if file is None:
        return found
    opened = [["openFile", f"vscode-remote://127.0.0.1:{port}{file}"]]
    return f"{found}&payload={quote(json.dumps(opened, separators=(',', ':')))}"


def free_port(preferred: int = 0) -> int:
    """``preferred`` if nothing listens there, else one of the system's choice."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def desktop() -> str | None:
    """The person's own VS Code, where it has somewhere to show a window."""
    code = shutil.which("code")
    shows = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "VSCODE_IPC_HOOK_CLI", "WSL_DISTRO_NAME")
    )
    return code if code and shows else None


def first_files(folder: Path) -> list[Path]:
    """What to show first, so that there is something to see."""
    return [file for file in (folder / "toy.py",) if file.exists()]


def open_desktop(code: str, folder: Path, vsix: Path) -> None:
    """Opens a workspace file of our own, so that the extension knows this project's interpreter from anywhere."""
    workspace = CACHE / f"{folder.name}.code-workspace"
    CACHE.mkdir(exist_ok=True)
    contents = {"folders": [{"path": str(folder)}], "settings": {"fuselens.interpreter": str(PYTHON)}}
    workspace.write_text(json.dumps(contents, indent=2))
    subprocess.run([code, "--install-extension", str(vsix), "--force"], check=True)
    subprocess.run([code, str(workspace), *map(str, first_files(folder))], check=True)
    print(f"opened {_shown(folder)} in VS Code; save a file there to compile it")


def open_in_browser(folder: Path, vsix: Path, port: int | None, seconds: float | None) -> None:
    server = install()
    chosen = port or free_port(8080)
    with serve(
        server, CACHE / "editor", [vsix], port=chosen, settings={"fuselens.interpreter": str(PYTHON)}
    ) as process:
        print(f"\n  The editor is at   {address(chosen, folder, *first_files(folder))}\n", flush=True)
        if seconds is None:
            print("  Ctrl-C stops it.", flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(timeout=seconds)
            raise SystemExit(f"code-server ended with status {process.returncode}; see {_shown(CACHE / 'editor')}")
    print("  stopped")


def _shown(path: Path) -> str:
    return os.path.relpath(path, Path.cwd())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="install code-server under .cache/")
    opening = commands.add_parser("open", help="install the extension and open a folder")
    opening.add_argument("folder", type=Path)
    opening.add_argument("--vsix", type=Path, required=True)
    opening.add_argument("--port", type=int, help="for code-server; 8080, or a free one, when not given")
    opening.add_argument("--web", action="store_true", help="code-server even where VS Code is installed")
    opening.add_argument("--seconds", type=float, help="stop code-server after this long")
    arguments = parser.parse_args()
    if arguments.command == "install":
        install()
        return
    folder, vsix = arguments.folder.resolve(), arguments.vsix.resolve()
    code = None if arguments.web or arguments.seconds else desktop()
    if code:
        open_desktop(code, folder, vsix)
    else:
        open_in_browser(folder, vsix, arguments.port, arguments.seconds)


if __name__ == "__main__":
    main()
