"""The build hook: compiles the C extension with setuptools' ``build_ext``.

An editable install puts the shared object beside its source, where both import packages are found in-tree; a wheel
carries it under the same import name and is tagged for this interpreter and platform. torch plays no part.
"""

from __future__ import annotations

import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EXTENSIONS = {
    "fuselens.capture.hook._hook": "compiler/fuselens/capture/hook/_hook.c",
    "fuselens.runtime._launch": "compiler/fuselens/runtime/_launch.c",
    "fuselens.runtime._program": "compiler/fuselens/runtime/_program.c",
    "fuselens.sandbox._wall": "compiler/fuselens/sandbox/_wall.c",
}
FLAGS = ["-O2", "-std=c11", "-fvisibility=hidden", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter"]


class BuildExtensions(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        require_headers()
        root = Path(self.root)
        self.work = Path(tempfile.mkdtemp(prefix="fuselens-build-"))
        for name, built in compile_extensions(root, self.work).items():
            source = root / EXTENSIONS[name]
            if version == "editable":
                # Replace, never overwrite: a running process may have the old file mapped.
                staged = source.with_name(f".{built.name}.new")
                shutil.copy2(built, staged)
                staged.replace(source.with_name(built.name))
            else:
                build_data["force_include"][str(built)] = "/".join(name.split(".")[:-1] + [built.name])
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


def require_headers() -> None:
    """Raises SystemExit with the package to install where CPython's headers are missing."""
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        raise SystemExit(
            f"fuselens: {header} is missing, and the frame evaluation hook is written in C.\n"
            f"Install the headers of this Python (Debian: apt-get install python3-dev) and a C compiler (gcc)."
        )


def compile_extensions(root: Path, work: Path) -> dict[str, Path]:
    """Builds every extension under ``work``; maps import names to shared objects."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    modules = [Extension(n, [str(root / s)], extra_compile_args=FLAGS) for n, s in EXTENSIONS.items()]
    command = build_ext(Distribution({"name": "fuselens", "ext_modules": modules}))
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "temp")
    command.ensure_finalized()
    command.run()
    return {name: Path(command.get_ext_fullpath(name)) for name in EXTENSIONS}
