"""Finds the one library that the emulator has, as NVIDIA's module of this name finds its own."""

from __future__ import annotations

from dataclasses import dataclass

from cupy_backends.emulated.cublas import library as _library


class DynamicLibNotFoundError(RuntimeError):
    """There is no library of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDL:
    """A library that is loaded, by its path."""

    abs_path: str | None


def load_nvidia_dynamic_lib(libname: str) -> LoadedDL:
    """Raises: DynamicLibNotFoundError for anything but "cublas"."""
    if libname != "cublas":
        raise DynamicLibNotFoundError(f"the emulator has cublas and no {libname!r}")
    return LoadedDL(abs_path=str(_library()))
