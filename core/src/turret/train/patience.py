"""When validation has got no better for long enough."""

from __future__ import annotations

import math
from collections.abc import Mapping

from turret.spi import CheckpointError, ConfigError

from .values import shown


class Patience:
    """The best validation loss so far, the step it was measured at, and how many were measured since.

    limit: measurements without a better one after which it is exhausted; None: never.
    Raises: ConfigError for a limit below 1.
    """

    def __init__(self, limit: int | None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(f"patience {shown(limit)}; wanted a whole number of at least 1, or none")
        self.limit = limit
        self.best, self.best_step, self.since = math.inf, 0, 0

    @property
    def exhausted(self) -> bool:
        return self.limit is not None and self.since >= self.limit

    def seen(self, step: int, loss: float) -> bool:
        """Takes a measurement; whether it is the best so far."""
        if loss < self.best:
            self.best, self.best_step, self.since = loss, step, 0
            return True
        self.since += 1
        return False

    def state(self) -> dict[str, float | int]:
        """Plain values for a checkpoint; empty before the first measurement."""
        return {"best": self.best, "best_step": self.best_step, "since": self.since} if self.best_step else {}

    def forget(self) -> None:
        """As before the first measurement."""
        self.best, self.best_step, self.since = math.inf, 0, 0

    def load(self, state: object, *, step: int) -> None:
        """Takes what `state` gave at `step`. Raises: CheckpointError; nothing is changed then."""
        if not isinstance(state, Mapping):
            raise CheckpointError(f"patience {shown(state)} at step {step}; wanted an object; use another checkpoint")
        if not state:
            self.forget()
            return
        best, best_step, since = (state.get(name) for name in ("best", "best_step", "since"))
        if (
            not isinstance(best, float)
            or not math.isfinite(best)
            or type(best_step) is not int
            or type(since) is not int
            or not (1 <= best_step <= step and 0 <= since <= step - best_step)
        ):
            raise CheckpointError(
                f"patience {shown(dict(state))} at step {step}; wanted best (a loss), best_step (1 to {step}) and "
                f"since (the measurements after it); use another checkpoint"
            )
        self.best, self.best_step, self.since = best, best_step, since
