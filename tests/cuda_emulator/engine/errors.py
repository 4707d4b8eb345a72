"""What goes wrong between a source text and the end of a launch."""

from __future__ import annotations

from typing import Literal

FaultKind = Literal["launch", "illegal address", "deadlock", "divergent barrier", "bad lane", "trap"]


class CompileError(Exception):
    """A source that the host's compiler refuses; the text is the compiler's, with lines of the source."""


class KernelFault(Exception):
    """A launch that is refused or that a thread ended; `kind` for programs, the text for people."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: FaultKind = kind
        self.message = message
