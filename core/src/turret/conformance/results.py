"""What one case came to."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a case ended. Only `passed` says that the backend did the work and did it right."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    EXPECTED_FAILURE = "expected failure"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"

    @property
    def ran(self) -> bool:
        """Whether the backend was exercised at all."""
        return self not in (Status.UNSUPPORTED, Status.SKIPPED)

    @property
    def bad(self) -> bool:
        return self in (Status.FAILED, Status.CRASHED, Status.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case of one run.

    message: why it failed, is unsupported or was skipped. budget_used: the largest error over what was allowed, None
    where nothing was compared within a tolerance and, in JSON, where it is infinite. comparisons: how many results were
    looked at. native: whether the slot is the backend's own. calls: how many calls reached the plugin. host_transfers:
    arrays that went through the host inside a call. derived: slots that composed the result although, or because, no
    native one did. advisory: newer than the interface version the plugin was written for, so that a failure does not
    fail the run.
    """

    case: str
    capability: str
    status: Status
    seconds: float = 0.0
    message: str = ""
    budget_used: float | None = None
    comparisons: int = 0
    native: bool = False
    calls: int = 0
    host_transfers: int = 0
    derived: tuple[str, ...] = ()
    advisory: bool = False

    def as_json(self) -> dict[str, Any]:
        used = self.budget_used
        finite = used if used is not None and math.isfinite(used) else None  # JSON has no infinity
        return {**asdict(self), "budget_used": finite, "status": self.status.value, "derived": list(self.derived)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        return cls(**{**data, "status": Status(data["status"]), "derived": tuple(data["derived"])})
