"""Which examples a step trains on: the split by text, and batches of packed rows that can restart at any step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turret.data.counter import WORD, Stream, checked_seed, permutation
from turret.data.instructions import Example
from turret.data.packing import PackedRow, Packing, Weights
from turret.data.tokenizers import Ids
from turret.spi.errors import ConfigError, DataError


class ExampleBatch(NamedTuple):
    """Rows of `PackedRow` one below the other: each array (B, T), owned."""

    inputs: Ids
    targets: Ids
    weights: Weights
    positions: Ids
    segments: Ids


class ExampleSplit(NamedTuple):
    """Examples for training and for validation, each in the order of the file; no text is in both."""

    train: tuple[Example, ...]
    val: tuple[Example, ...]


def split_examples(examples: Sequence[Example], *, val_fraction: float, seed: int) -> ExampleSplit:
    """Of the different texts the share `val_fraction`, rounded down, is for validation.

    At least one text is on each side unless the fraction is 0. Texts are drawn by the seed. Equal texts stay together,
    whether written as prompt and response or as messages.

    Raises: ConfigError for a fraction outside [0, 1) or a malformed seed; DataError for no examples, and for fewer
    than two different texts when some are wanted for validation.
    """
    if not (isinstance(val_fraction, (int, float)) and 0 <= val_fraction < 1):
        raise ConfigError(f"got val_fraction {val_fraction!r:.80}, want at least 0 and below 1")
    seed = checked_seed(seed)
    if not examples:
        raise DataError("got no examples to split, want at least one")
    if val_fraction == 0:
        return ExampleSplit(tuple(examples), ())
    texts = list(dict.fromkeys(example.messages for example in examples))
    if len(texts) < 2:
        raise DataError(
            f"{len(examples)} examples have 1 text, validation needs at least 2 different ones; "
            "use more examples or val_fraction 0"
        )
    count = min(max(1, int(val_fraction * len(texts))), len(texts) - 1)
    drawn = {texts[index] for index in permutation(seed, Stream.EXAMPLE_SPLIT, (0, 0), len(texts))[:count]}
    return ExampleSplit(
        train=tuple(example for example in examples if example.messages not in drawn),
        val=tuple(example for example in examples if example.messages in drawn),
    )


class ExampleSampler:
    """Goes through the rows of a packing in epochs, each of which has every row, so every example, exactly once.

    A batch is a pure function of (seed, step, micro): nothing is remembered between calls, so a run restarts anywhere.
    The rows are always the same, their order is drawn for each epoch; a batch may end one epoch and begin the next.
    """

    def __init__(self, packing: Packing, batch: int, seed: int, *, accumulate: int = 1) -> None:
        for name, value in (("batch", batch), ("accumulate", accumulate)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"got {name} {value!r:.80}, want an integer of at least 1")
        self.packing = packing
        self.batch_size = batch
        self.accumulate = accumulate
        self.seed = checked_seed(seed)

    @property
    def context(self) -> int:
        """Tokens in a row."""
        return self.packing.context

    def place(self, step: int, micro: int = 0) -> tuple[int, int]:
        """Epoch and row in it, both counted from 0, where `batch(step, micro)` begins.

        Raises: as `batch`.
        """
        if not (0 <= step < WORD and 0 <= micro < self.accumulate):
            raise DataError(
                f"got step {step} and micro-batch {micro}, want at least 0, below 2**64 and {self.accumulate}"
            )
        epoch, row = divmod((step * self.accumulate + micro) * self.batch_size, len(self.packing))
        if epoch + self.batch_size >= WORD:
            raise DataError(f"step {step} is in epoch {epoch}, want one below 2**64")
        return epoch, row

    def rows(self, step: int, micro: int = 0) -> list[int]:
        """Which rows of the packing `batch(step, micro)` has.

        Raises: as `batch`.
        """
        epoch, row = self.place(step, micro)
        places = (divmod(row + offset, len(self.packing)) for offset in range(self.batch_size))
        return [int(_epoch_order(self.seed, epoch + more, len(self.packing))[at]) for more, at in places]

    def batch(self, step: int, micro: int = 0) -> ExampleBatch:
        """The rows of micro-batch `micro` of step `step`, both counted from 0.

        Raises: DataError for a step or micro below 0, and for a micro that is not below `accumulate`.
        """
        return _stacked([self.packing.row(index) for index in self.rows(step, micro)])

    def fixed_batches(self, count: int | None = None) -> tuple[ExampleBatch, ...]:
        """The first `count` batches, or all, of one order that depends on no seed, so that losses compare.

        No row is there twice: rows of padding fill the last batch up, and there are fewer batches when rows run out.

        Raises: ConfigError for a count below 1.
        """
        if count is not None and (type(count) is not int or count < 1):
            raise ConfigError(f"got {count!r:.80} fixed batches, want an integer of at least 1")
        size = self.batch_size
        order = permutation(0, Stream.VALIDATION, (0, 0), len(self.packing)).tolist()
        wanted = order if count is None else order[: count * size]
        groups = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        return tuple(
            _stacked([self.packing.row(index) for index in group] + [self.packing.blank_row()] * (size - len(group)))
            for group in groups
        )


@functools.lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    return permutation(seed, Stream.EXAMPLE_ORDER, (0, epoch), rows)


def _stacked(rows: list[PackedRow]) -> ExampleBatch:
    return ExampleBatch(*(np.stack(parts) for parts in zip(*rows, strict=True)))
