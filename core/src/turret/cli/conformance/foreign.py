"""Standard output kept for the findings while the code of plugins runs in this process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDOUT, STDERR = 1, 2


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Inside, what is printed goes to stderr, by Python or by a library that knows only the number of the file."""
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError):  # one of them is closed: nothing can be spoilt
            kept = os.dup(STDOUT)
            undo.callback(os.close, kept)
            os.dup2(STDERR, STDOUT)
            undo.callback(os.dup2, kept, STDOUT)
        yield
