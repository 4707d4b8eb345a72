"""The text of a kernel file, and the options it is compiled with."""

from __future__ import annotations

import re
from importlib.resources import files

OPTIONS = ("--std=c++17",)

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


def names() -> tuple[str, ...]:
    """The kernel files, without their ending."""
    found = (each.name for each in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".cu") for name in found if name.endswith(".cu")))


def text(name: str) -> str:
    """One file with the headers it includes put in, each once: nothing has to be found at compile time."""
    return _inlined(f"{name}.cu", set())


def _inlined(file: str, seen: set[str]) -> str:
    def header(line: re.Match[str]) -> str:
        name = line[1]
        if name in seen:
            return ""
        seen.add(name)
        return _inlined(name, seen)

    return _INCLUDE.sub(header, files(__package__).joinpath(file).read_text(encoding="utf-8"))
