"""The backend under examination, opened once and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from turret.registry import OpenBackend
from turret.registry.guard import Failure, attempt

from .instrument import Counts, instrumented
from .recording import Recorder


class Subject:
    """An opened backend with every slot counted, and what all cases need to know about it.

    writes_in_place: whether a donated array is ever written. Where it never is, sharing memory cannot be seen and is no
    fault.
    """

    def __init__(self, opened: OpenBackend, counts: Counts | None = None) -> None:
        self.counts = counts or Counts()
        self.opened = instrumented(opened, self.counts)
        self.table = opened.backend.capabilities()
        storage = self.table.required.storage
        self.device = storage.device()
        self.native_type: type[Any] = type(storage.full((1,), 0.0, dtype="float32"))
        self.writes_in_place = self._writes_in_place()
        self.recorder: Recorder | None = None

    @contextmanager
    def recorded(self, folder: Path, case: str, seed: int, versions: Mapping[str, object]) -> Iterator[Recorder]:
        """Inside, every outermost call and comparison is written to a script in `folder`."""
        about = {"case": case, "backend": self.opened.spec, "seed": seed}
        recorder = Recorder(folder, self.table.required.storage, self.native_type, about, versions)
        self.recorder = self.counts.observer = recorder
        try:
            yield recorder
        finally:
            self.recorder = self.counts.observer = None
            recorder.close()

    def _writes_in_place(self) -> bool:
        storage, set_rows = self.table.required.storage, self.table.required.indexing.set_rows
        base = storage.from_host(np.zeros((4, 3), np.float32))
        row = storage.from_host(np.ones((1, 3), np.float32))
        kept = base
        set_rows(base, storage.from_host(np.array([2], np.int32)), row, donate=True)
        after = attempt(lambda: storage.to_host(kept))  # a library may forbid to look at what was given away
        return isinstance(after, Failure) or bool(after.any())
