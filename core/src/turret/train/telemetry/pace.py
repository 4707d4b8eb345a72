"""How fast a run goes and how long it still takes, from its own records."""

from __future__ import annotations

from collections import deque

from turret.train.metrics import StepMetrics


class Pace:
    """Tokens a second and seconds left over the last `window` steps; None until two steps have been seen.

    Only steps seen here count: a resumed run is not averaged with what another machine did.
    """

    def __init__(self, steps: int, *, window: int = 50) -> None:
        self.steps = steps
        self._seen: deque[StepMetrics] = deque(maxlen=window + 1)

    def see(self, event: StepMetrics) -> None:
        self._seen.append(event)

    @property
    def tokens_per_second(self) -> float | None:
        span = self._span()
        return (self._seen[-1].tokens_seen - self._seen[0].tokens_seen) / span if span else None

    @property
    def seconds_left(self) -> float | None:
        span = self._span()
        if not span:
            return None
        last = self._seen[-1].step
        return max(self.steps - last, 0) * span / (last - self._seen[0].step)

    def _span(self) -> float:
        return self._seen[-1].seconds - self._seen[0].seconds if len(self._seen) > 1 else 0.0
