"""Which windows of a corpus a step trains on: the split by position and batches that can restart at any step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turret.data.corpora import Corpus
from turret.data.counter import WORD, Stream, checked_seed, integers
from turret.data.tokenizers import ByteLevelTokenizer, Ids
from turret.spi.errors import ConfigError, DataError

Span = tuple[int, int]


class Batch(NamedTuple):
    """Inputs and targets (B, T) int32, owned; `targets[:, t]` is the token after `inputs[:, t]`."""

    inputs: Ids
    targets: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The spans [start, stop) of a corpus for training and for validation; `val` is empty when it is not wanted."""

    train: Span
    val: Span

    @classmethod
    def cut(cls, length: int, *, val_fraction: float, context: int) -> Split:
        """The last `val_fraction` of `length` bytes is for validation; both parts hold at least one window.

        Raises: ConfigError for a fraction outside [0, 1); DataError for parts shorter than context + 1.
        """
        if not (isinstance(val_fraction, (int, float)) and 0 <= val_fraction < 1):
            raise ConfigError(f"got val_fraction {val_fraction!r}, want at least 0 and below 1")
        border = math.floor(length * (1 - val_fraction))
        split = cls(train=(0, border), val=(border, length))
        _require_window("training", split.train, context)
        if val_fraction > 0:
            _require_window("validation", split.val, context)
        return split


class BatchSampler:
    """Draws windows of `context + 1` bytes uniformly from a span.

    A batch is a pure function of (seed, step, micro): nothing is remembered between calls, so a run restarts anywhere.
    Different steps and micro-batches are independent draws, with replacement.
    """

    def __init__(
        self, corpus: Corpus, tokenizer: ByteLevelTokenizer, span: Span, context: int, batch: int, seed: int
    ) -> None:
        for name, value in (("context", context), ("batch", batch)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"got {name} {value!r}, want an integer of at least 1")
        start, stop = span
        if not 0 <= start <= stop <= len(corpus):
            raise DataError(f"span [{start}, {stop}) is not inside the {len(corpus)} bytes of {corpus.name}")
        _require_window("sampled", span, context)
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.span = span
        self.context = context
        self.batch_size = batch
        self.seed = checked_seed(seed)

    @property
    def starts(self) -> int:
        """How many windows there are to choose from."""
        return self.span[1] - self.span[0] - self.context

    def offsets(self, step: int, micro: int = 0) -> list[int]:
        """Where in the corpus the windows of `batch(step, micro)` begin."""
        return self._offsets(self.seed, Stream.TRAINING, step, micro)

    def batch(self, step: int, micro: int = 0) -> Batch:
        """The windows of micro-batch `micro` of step `step`, both counted from 0.

        Raises: DataError for a negative step or micro, and when a file changed since it was opened.
        """
        return self._cut(self.offsets(step, micro))

    def fixed_batches(self, count: int) -> tuple[Batch, ...]:
        """The same `count` batches whenever asked and whatever the seed, so that losses of different runs compare.

        Raises: ConfigError for a count below 1.
        """
        if type(count) is not int or count < 1:
            raise ConfigError(f"got {count!r} fixed batches, want an integer of at least 1")
        return tuple(self._cut(self._offsets(0, Stream.VALIDATION, index, 0)) for index in range(count))

    def _offsets(self, seed: int, stream: Stream, step: int, micro: int) -> list[int]:
        if not (0 <= step < WORD and 0 <= micro < WORD):
            raise DataError(f"got step {step} and micro-batch {micro}, want both at least 0 and below 2**64")
        drawn = integers(seed, stream, (micro, step), self.batch_size, self.starts)
        return [self.span[0] + offset for offset in drawn.tolist()]

    def _cut(self, offsets: list[int]) -> Batch:
        width = self.context + 1
        raw = np.empty((len(offsets), width), np.uint8)
        for row, offset in zip(raw, offsets, strict=True):
            self.corpus.copy_into(row, offset, offset + width)
        ids = self.tokenizer.ids_of(raw)  # (B, T + 1)
        return Batch(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))


def _require_window(part: str, span: Span, context: int) -> None:
    got, needed = span[1] - span[0], context + 1
    if got < needed:
        raise DataError(
            f"the {part} part of the corpus has {got} bytes, context {context} needs at least {needed}; "
            "use more text, a smaller context or another val_fraction"
        )
