"""Whole examples side by side in rows of one length, so that little of a row is padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turret.data.supervision import TokenizedExample
from turret.data.tokenizers import Ids
from turret.spi.errors import ConfigError, DataError

Weights = npt.NDArray[np.float32]


class PackedRow(NamedTuple):
    """One row, each array (T,), owned.

    `targets[t]` is the id after `inputs[t]` in the same example, and counts in the loss by `weights[t]`, 1 or 0.
    `positions` begin at 0 in each example. `segments` number the examples of the row from 0: a token must see only
    tokens of its segment. Padding is at the end, as a segment of its own with weight 0.
    """

    inputs: Ids
    targets: Ids
    weights: Weights
    positions: Ids
    segments: Ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """Which examples are in which row; `rows` holds indices into `examples`. Rows are made when asked for."""

    examples: tuple[TokenizedExample, ...]
    context: int
    rows: tuple[tuple[int, ...], ...]
    pad_id: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fill(self) -> float:
        """The share of all positions that is not padding."""
        return sum(len(example.ids) - 1 for example in self.examples) / (len(self.rows) * self.context)

    def row(self, index: int) -> PackedRow:
        """Raises: DataError for an index outside [0, len)."""
        if not 0 <= index < len(self.rows):
            raise DataError(f"got row {index}, want one of {len(self.rows)}, counted from 0")
        row, start = self.blank_row(), 0
        for segment, which in enumerate(self.rows[index]):
            example = self.examples[which]
            size = len(example.ids) - 1
            place = slice(start, start + size)
            row.inputs[place] = example.ids[:-1]
            row.targets[place] = example.ids[1:]
            row.weights[place] = example.learned[1:]
            row.positions[place] = np.arange(size)
            row.segments[place] = segment
            start += size
        row.positions[start:] = np.arange(self.context - start)
        row.segments[start:] = len(self.rows[index])
        return row

    def blank_row(self) -> PackedRow:
        """A row of padding only, to fill a batch up."""
        ids = np.full((2, self.context), self.pad_id, np.int32)
        return PackedRow(
            inputs=ids[0],
            targets=ids[1],
            weights=np.zeros(self.context, np.float32),
            positions=np.arange(self.context, dtype=np.int32),
            segments=np.zeros(self.context, np.int32),
        )


def pack(examples: Sequence[TokenizedExample], context: int, *, pad_id: int = 0) -> Packing:
    """Packs by first fit decreasing: the longest first, each into the first row with room.

    The same input always gives the same rows; n examples take n log n time. An example of n tokens takes n - 1
    positions.

    Raises: DataError for no examples, and for one with fewer than 2 or more than `context + 1` tokens; ConfigError
    for a context below 1 or a negative pad_id.
    """
    if type(context) is not int or context < 1:
        raise ConfigError(f"got context {context!r:.80}, want an integer of at least 1")
    if type(pad_id) is not int or not 0 <= pad_id < 1 << 31:
        raise ConfigError(f"got pad_id {pad_id!r:.80}, want an id of at least 0")
    if not examples:
        raise DataError("got no examples to pack, want at least one")
    for example in examples:
        if not 2 <= len(example.ids) <= context + 1 or len(example.learned) != len(example.ids):
            raise DataError(
                f"the example of line {example.line} has {len(example.ids)} tokens and {len(example.learned)} marks, "
                f"want as many of both, from 2 to {context + 1}; use tokenize_examples with context {context}"
            )
    rows = _first_fit_decreasing([len(example.ids) - 1 for example in examples], context)
    return Packing(examples=tuple(examples), context=context, rows=rows, pad_id=pad_id)


def _first_fit_decreasing(sizes: list[int], capacity: int) -> tuple[tuple[int, ...], ...]:
    """A tree over the rows holds in each node the most room below it: the first row with room is found going down."""
    leaves = 1 << (len(sizes) - 1).bit_length()
    room = [capacity] * (2 * leaves)
    rows: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < sizes[index])
        if node - leaves == len(rows):
            rows.append([])
        rows[node - leaves].append(index)
        room[node] -= sizes[index]
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return tuple(map(tuple, rows))
