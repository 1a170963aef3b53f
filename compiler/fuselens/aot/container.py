"""The file: a zip archive of plain data, libraries and weights, each named by the digest of its content.

``fuselens.json`` says what the artifact is, what it was made with, and the digest of every other part. The digest of that text is
the artifact's own. A part that is damaged is an error before anything of it is used. Who can write the file can run code with it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..capture.breaks import CodedError
from ..record.diagnostics import make

FORMAT = 2  # raise it when the meaning of a part changes
_ABOUT = "fuselens.json"
WEIGHTS = "weights.pt"


class ArtifactError(CodedError):
    """An artifact cannot be made (FL927), cannot be loaded here (FL928), or serves no such call (FL929)."""


def refuse(code: str, **fields: Any) -> ArtifactError:
    return ArtifactError(make(code, None, **fields))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, about: Mapping[str, Any], parts: Mapping[str, bytes]) -> str:
    """Writes the file, whole or not at all. Returns the artifact's digest. Raises ArtifactError (FL927)."""
    told = json.dumps(
        {"format": FORMAT, **about, "parts": {name: digest(c) for name, c in sorted(parts.items())}}, indent=1
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(_ABOUT, told)
                for name, content in sorted(parts.items()):
                    stored = zipfile.ZIP_STORED if name == WEIGHTS else zipfile.ZIP_DEFLATED
                    archive.writestr(name, content, stored)
            os.chmod(made, 0o644)
            os.replace(made, path)
        except BaseException:
            os.unlink(made)
            raise
    except OSError as error:
        raise refuse("FL927", what=str(path), why=f"it cannot be written: {error.strerror or error}") from error
    return digest(told.encode())


class Container:
    """An artifact that was opened. Raises ArtifactError (FL928) for what is none, or is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            told = self._archive.read(_ABOUT)
            self.about: dict[str, Any] = json.loads(told)
            form, self._digests = self.about["format"], dict(self.about["parts"])
        except OSError as error:
            raise refuse("FL928", what=str(path), why=f"it cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, KeyError, ValueError, TypeError, NotImplementedError) as error:
            raise refuse("FL928", what=str(path), why=f"it is no artifact, or damaged: {error}") from None
        if form != FORMAT:
            raise refuse("FL928", what=str(path), why=f"it has format {form}, and this fuselens reads format {FORMAT}")
        self.digest = digest(told)

    def part(self, name: str) -> bytes:
        try:
            content = self._archive.read(name)
        except (KeyError, zipfile.BadZipFile, EOFError, OSError, NotImplementedError, ValueError) as error:
            raise refuse("FL928", what=str(self.path), why=f"its part {name} is damaged: {error}") from None
        if digest(content) != self._digests.get(name):
            raise refuse("FL928", what=str(self.path), why=f"its part {name} is not the one that was put in")
        return content

    def has(self, name: str) -> bool:
        return name in self._digests

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._digests if name.startswith(prefix)]


def saved_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as bytes; those that share memory share it then, too."""
    out = io.BytesIO()
    torch.save(dict(tensors), out)
    return out.getvalue()


def loaded_tensors(content: bytes) -> dict[str, torch.Tensor]:
    """Raises whatever torch does where it is not what :func:`saved_tensors` made, or has no such device."""
    return torch.load(io.BytesIO(content), weights_only=True)
