"""Makes extension/dist/fuselens.vsix: npm packages when the lock file changed, bundle and package when a source did.

    extension.py                      the extension
    extension.py --repository URL     the same to be published: its page, its issues and the pictures of its README are at URL
    extension.py --packages FOLDER    only the npm packages of another folder

Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "extension"
VSIX = EXTENSION / "dist" / "fuselens.vsix"
SHARED = ("LICENSE",)  # what the package carries from the project's root


def npm_install(folder: Path) -> None:
    """``npm ci`` in ``folder`` unless it was done for this very lock file."""
    stamp = folder / "node_modules" / ".fuselens-lock"
    wanted = _digest([folder / "package-lock.json"])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"installing the npm packages of {folder.relative_to(ROOT)}/", flush=True)
    subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder, check=True
    )
    stamp.write_text(wanted)


def package(repository: str = "") -> None:
    """Bundles the extension and packs the ``.vsix`` unless nothing that goes in has changed."""
    names = "package.json package-lock.json esbuild.mjs tsconfig.json .vscodeignore README.md CHANGELOG.md".split()
    folders = ("src", "webviews", "media", "syntaxes", "python")
    inside = [f for name in folders for f in (EXTENSION / name).rglob("*") if f.is_file()]
    wanted = (
        _digest([EXTENSION / name for name in names] + sorted(inside) + [ROOT / name for name in SHARED]) + repository
    )
    stamp = EXTENSION / "dist" / ".inputs"
    if VSIX.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return
    print("building the editor extension", flush=True)
    VSIX.parent.mkdir(exist_ok=True)
    subprocess.run(["node", "esbuild.mjs"], cwd=EXTENSION, check=True)
    for name in SHARED:
        shutil.copyfile(ROOT / name, EXTENSION / name)
    vsce = [EXTENSION / "node_modules" / ".bin" / "vsce", "package", "--no-dependencies", "--out", VSIX]
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary, "extension")
        shutil.copytree(EXTENSION, stage, ignore=shutil.ignore_patterns("node_modules", "out", "*.vsix"))
        if repository:
            _tell_where(stage / "package.json", repository)
            vsce += [
                f"--baseContentUrl={repository}/blob/HEAD/extension",
                f"--baseImagesUrl={repository}/raw/HEAD/extension",
            ]
        else:  # a clone does not know where it will be published
            vsce += ["--no-rewrite-relative-links", "--allow-missing-repository"]
        done = subprocess.run(vsce, cwd=stage, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"packaging failed:\n{done.stdout}{done.stderr}")
    stamp.write_text(wanted)


def _tell_where(manifest: Path, repository: str) -> None:
    about = json.loads(manifest.read_text(encoding="utf-8"))
    where = {"type": "git", "url": repository, "directory": "extension"}
    about |= {"repository": where, "homepage": f"{repository}#readme", "bugs": {"url": f"{repository}/issues"}}
    manifest.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes extension/dist/fuselens.vsix.")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="install only the npm packages of FOLDER")
    parser.add_argument("--repository", default="", metavar="URL", help="where the project is, for one to be published")
    arguments = parser.parse_args()
    if arguments.packages is not None:
        npm_install(arguments.packages.resolve())
        return
    npm_install(EXTENSION)
    package(arguments.repository.removesuffix("/"))


if __name__ == "__main__":
    main()
