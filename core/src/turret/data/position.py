"""How far a run has read its data, as checkpoints record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from turret.spi.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """Completed steps and tokens seen; construction fails unless tokens_seen is step * accumulate * batch * context.

    The next batch to draw is `WindowSampler.batch(step, micro)` for each micro in range(accumulate).
    """

    step: int
    tokens_seen: int
    accumulate: int
    batch: int
    context: int

    def __post_init__(self) -> None:
        for name, least in (("step", 0), ("tokens_seen", 0), ("accumulate", 1), ("batch", 1), ("context", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise DataError(f"data position has {name} {value!r}, want an integer of at least {least}")
        if self.tokens_seen != self.step * self.tokens_per_step:
            raise DataError(
                f"data position disagrees: tokens_seen is {self.tokens_seen}, but step {self.step} x accumulate "
                f"{self.accumulate} x batch {self.batch} x context {self.context} is "
                f"{self.step * self.tokens_per_step}; resume from another checkpoint"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update trains on."""
        return self.accumulate * self.batch * self.context

    @classmethod
    def at(cls, step: int, *, accumulate: int, batch: int, context: int) -> DataPosition:
        """The position after `step` completed steps."""
        seen = step * accumulate * batch * context
        return cls(step=step, tokens_seen=seen, accumulate=accumulate, batch=batch, context=context)

    def to_dict(self) -> dict[str, int]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> DataPosition:
        """The inverse of `to_dict`. Raises: DataError for missing, unknown, malformed or disagreeing entries."""
        wanted = {field.name for field in fields(cls)}
        if set(raw) != wanted:
            raise DataError(f"data position has the keys {sorted(raw)}, want exactly {sorted(wanted)}")
        return cls(**raw)  # type: ignore[arg-type]  # __post_init__ checks the types
