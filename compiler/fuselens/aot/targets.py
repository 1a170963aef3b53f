"""Kinds of machines with their systems: those that an artifact has kernels for, and how the wheel ``ziglang`` names them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..runtime import build

GLIBC = "2.28"  # of the oldest Linux that torch's wheels are made for


@dataclass(frozen=True, slots=True)
class Target:
    """``system`` and ``machine`` are what the module ``platform`` says there, ``isas`` its instruction sets, best first.
    ``triple`` is what its libraries are built for; empty where this machine's own compiler builds them."""

    system: str
    machine: str
    isas: tuple[str, ...]
    triple: str = ""

    @property
    def place(self) -> str:
        """What stands in the names of its parts."""
        return f"{self.system}-{self.machine}"

    def as_data(self) -> dict[str, Any]:
        return {"system": self.system, "machine": self.machine, "isas": list(self.isas)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Target:
        return cls(data["system"], data["machine"], tuple(data["isas"]))


OTHERS: dict[str, Target] = {
    "linux-x86_64": Target("Linux", "x86_64", ("avx512", "avx2"), f"x86_64-linux-gnu.{GLIBC}"),
    "linux-aarch64": Target("Linux", "aarch64", ("neon",), f"aarch64-linux-gnu.{GLIBC}"),
    "macos-arm64": Target("Darwin", "arm64", ("neon",), "aarch64-macos"),
}


def here(isas: Iterable[str]) -> Target:
    return Target(platform.system(), platform.machine(), tuple(isas))


def default_isas(config: Config) -> tuple[str, ...]:
    """This processor's instruction set; on x86-64 both that most servers have."""
    host = config.cpu_isa or build.host_isa(config)
    return ("avx512", "avx2") if host in ("avx512", "avx2") and not config.cpu_isa else (host,)


def chosen(names: Iterable[str], isas: Iterable[str]) -> list[Target]:
    """This machine with ``isas``, which proves what was made, and the others with these names. Raises ValueError."""
    own = here(isas)
    found = {own.place: own}
    for name in [names] if isinstance(names, str) else names:
        if name not in OTHERS:
            raise ValueError(f"targets= has {name!r}, which is none of {', '.join(OTHERS)}")
        found.setdefault(OTHERS[name].place, OTHERS[name])
    return list(found.values())
