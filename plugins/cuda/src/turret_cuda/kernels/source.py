"""The text of a kernel file, and the options it is compiled with."""

from __future__ import annotations

from importlib.resources import files

HEADER = "turret.cuh"
OPTIONS = ("--std=c++17",)


def names() -> tuple[str, ...]:
    """The kernel files, without their ending."""
    found = (each.name for each in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".cu") for name in found if name.endswith(".cu")))


def text(name: str) -> str:
    """One file as a whole: the common header first, so that nothing has to be found at compile time."""
    folder = files(__package__)
    return "\n".join(folder.joinpath(each).read_text(encoding="utf-8") for each in (HEADER, f"{name}.cu"))
