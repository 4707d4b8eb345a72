"""Makes shared libraries with the host's C++ compiler, once for each source, in a folder of this user."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import CompileError
from .source import translate

HERE = Path(__file__).parent
_BASIC = ("-O2", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-U_FORTIFY_SOURCE")
# What a host compiler would take as leave to drop code, and a device does as written.
_LENIENT = (
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-aggressive-loop-optimizations",
    "-fno-delete-null-pointer-checks",
)
# A device stops at an address that is no multiple of the size of what is loaded; most hosts do not.
_STRICT = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")


def program_library(code: str, defines: Mapping[str, str]) -> Path:
    """The library of a CUDA source.

    Raises:
        CompileError: with what the compiler printed.
    """
    names = [f"-D{name}={value}" for name, value in sorted({**defines, "TURRET_EMULATED": "1"}.items())]
    flags = (*_BASIC, *_LENIENT, *_STRICT, *_contraction(), f"-I{HERE}")
    library = folder() / f"program-{_key(code, *names, *flags)}.so"
    if not library.exists():
        expanded = _compile(["-std=c++17", "-E", "-nostdinc", *names], f'#line 1 "kernel.cu"\n{code}')
        _build(library, flags, translate(expanded))
    return library


def runtime_library() -> Path:
    """The library that runs the kernels of all programs."""
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    switch = ("-DPORTABLE_SWITCH",) if os.environ.get("TURRET_EMULATOR_SWITCH") == "portable" else ()
    # Vectors of two pointers that were stored one by one stall the processor at every change of threads.
    flags = (*_BASIC, "-fno-tree-vectorize", *switch)
    library = folder() / f"runtime-{_key(*flags)}.so"
    if not library.exists():
        _build(library, flags, "".join(f'#include "{source}"\n' for source in sources))
    return library


@functools.cache
def folder() -> Path:
    """Where the libraries are kept: this user's own, or, if others can write there, one for this process."""
    path = Path(tempfile.gettempdir()) / f"turret-cuda-emulator-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid == os.getuid() and not path.is_symlink() and not status.st_mode & 0o022:
        return path
    return Path(tempfile.mkdtemp(prefix="turret-cuda-emulator-"))


def _build(library: Path, flags: Sequence[str], source: str) -> None:
    handle, name = tempfile.mkstemp(dir=library.parent, prefix="building-", suffix=".so")
    os.close(handle)
    try:
        _compile([*flags, "-o", name], source)
        if _read_own_files() != _own_files():
            raise CompileError("the emulator's own files have changed since this process began: start it again")
        os.replace(name, library)
    finally:
        Path(name).unlink(missing_ok=True)


def _compile(arguments: Sequence[str], source: str) -> str:
    command = [_compiler()[0], *arguments, "-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(done.stderr)
    return done.stdout


@functools.cache
def _compiler() -> tuple[str, str]:
    """The compiler's path, and what tells it from another version without running it."""
    found = shutil.which("g++")
    if found is None:
        raise CompileError("the emulator compiles kernels with g++, and there is none on PATH: install it")
    status = os.stat(found)
    return found, f"{os.path.realpath(found)} {status.st_size} {status.st_mtime_ns}"


@functools.cache
def _contraction() -> tuple[str, ...]:
    """Flags with which a * b + c is rounded once, as on a device, where the host can."""
    if platform.machine() != "x86_64":
        return ("-ffp-contract=fast",)
    info = Path("/proc/cpuinfo")
    has_fma = info.exists() and " fma " in info.read_text(encoding="ascii", errors="replace")
    return ("-mfma", "-ffp-contract=fast") if has_fma else ("-ffp-contract=off",)


@functools.cache
def _own_files() -> bytes:
    return _read_own_files()


def _read_own_files() -> bytes:
    paths = [*HERE.rglob("*.h"), *HERE.rglob("*.cpp"), HERE / "source.py", HERE / "compiler.py"]
    return b"\0".join(path.read_bytes() for path in sorted(paths))


def _key(*parts: str) -> str:
    digest = hashlib.sha256(_own_files())
    for part in (_compiler()[1], *parts):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]
