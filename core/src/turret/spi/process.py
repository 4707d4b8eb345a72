"""Noticing that this process is a fork of the one that opened a device."""

from __future__ import annotations

import os

from .errors import BackendUnavailable


class OpenedHere:
    """Remembers the process in which a device was opened, for libraries whose threads do not survive a fork."""

    __slots__ = ("_process", "_spec")

    def __init__(self, spec: str) -> None:
        self._spec, self._process = spec, os.getpid()

    def check(self) -> None:
        """Raises: BackendUnavailable in a forked child, where the device's threads are gone and a call would hang."""
        if os.getpid() != self._process:
            raise BackendUnavailable(
                f"{self._spec} was opened in process {self._process} and this is a fork of it, {os.getpid()}: its "
                f"threads are not here; start children with multiprocessing.get_context('spawn'), or open it in the "
                f"child only"
            )
