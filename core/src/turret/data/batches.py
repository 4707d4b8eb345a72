"""Which windows of a corpus a step trains on: the split by position and batches that can restart at any step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    def cut(cls, length: int, *, val_fraction: float, context: int, unit: str = "bytes") -> Split:
        """The last `val_fraction` of `length` positions is for validation; both parts hold at least one window.

        unit: what errors call a position.

        Raises: ConfigError for a fraction outside [0, 1); DataError for parts shorter than context + 1.
        """
        if not (isinstance(val_fraction, (int, float)) and 0 <= val_fraction < 1):
            raise ConfigError(f"got val_fraction {val_fraction!r}, want at least 0 and below 1")
        border = math.floor(length * (1 - val_fraction))
        split = cls(train=(0, border), val=(border, length))
        _require_window("training", split.train, context, unit)
        if val_fraction > 0:
            _require_window("validation", split.val, context, unit)
        return split


class TokenSource(Protocol):
    """A long row of token ids that windows are cut from; `len` is how many there are."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def unit(self) -> str:
        """What messages call a position: bytes or tokens."""
        ...

    def __len__(self) -> int: ...

    def windows(self, starts: Sequence[int], width: int) -> Ids:
        """Ids (len(starts), width) int32, owned; row i begins at position starts[i].

        Raises: DataError for a window that is not inside, and when a file changed since it was opened.
        """
        ...


class ByteTokens:
    """A corpus as a `TokenSource` with one id a byte."""

    unit: str = "bytes"

    def __init__(self, corpus: Corpus, tokenizer: ByteLevelTokenizer) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer

    @property
    def name(self) -> str:
        return self.corpus.name

    def __len__(self) -> int:
        return len(self.corpus)

    def windows(self, starts: Sequence[int], width: int) -> Ids:
        raw = np.empty((len(starts), width), np.uint8)
        for row, start in zip(raw, starts, strict=True):
            self.corpus.copy_into(row, start, start + width)
        return self.tokenizer.ids_of(raw)


class WindowSampler:
    """Draws windows of `context + 1` tokens uniformly from a span of a source.

    A batch is a pure function of (seed, step, micro): nothing is remembered between calls, so a run restarts anywhere.
    Different steps and micro-batches are independent draws, with replacement.
    """

    def __init__(self, source: TokenSource, span: Span, context: int, batch: int, seed: int) -> None:
        for name, value in (("context", context), ("batch", batch)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"got {name} {value!r}, want an integer of at least 1")
        start, stop = span
        if not 0 <= start <= stop <= len(source):
            raise DataError(f"span [{start}, {stop}) is not inside the {len(source)} {source.unit} of {source.name}")
        _require_window("sampled", span, context, source.unit)
        self.source = source
        self.span = span
        self.context = context
        self.batch_size = batch
        self.seed = checked_seed(seed)

    @property
    def starts(self) -> int:
        """How many windows there are to choose from."""
        return self.span[1] - self.span[0] - self.context

    def offsets(self, step: int, micro: int = 0) -> list[int]:
        """Where in the source the windows of `batch(step, micro)` begin."""
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
        ids = self.source.windows(offsets, self.context + 1)  # (B, T + 1)
        return Batch(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))


class BatchSampler(WindowSampler):
    """A `WindowSampler` over the bytes of a corpus."""

    def __init__(
        self, corpus: Corpus, tokenizer: ByteLevelTokenizer, span: Span, context: int, batch: int, seed: int
    ) -> None:
        super().__init__(ByteTokens(corpus, tokenizer), span, context, batch, seed)


def _require_window(part: str, span: Span, context: int, unit: str) -> None:
    got, needed = span[1] - span[0], context + 1
    if got < needed:
        raise DataError(
            f"the {part} part of the corpus has {got} {unit}, context {context} needs at least {needed}; "
            "use more text, a smaller context or another val_fraction"
        )
