"""One process per run folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turret.spi import ConfigError

LOCK = ".lock"


@contextmanager
def hold(run: Path) -> Iterator[None]:
    """Keeps other processes from training into `run`; the system gives the lock back however this process ends.

    Raises: ConfigError where another process holds it. On Windows nothing is locked.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    if (run / LOCK).exists() and not (run / LOCK).is_file():  # opening a pipe would block for ever
        raise ConfigError(f"{run / LOCK}: not a regular file; remove it, or choose another --out")
    with (run / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{run}: another process is training there; wait for it, or choose another --out"
            ) from error
        yield
