"""The header of a safetensors file: everything in it is checked before anything is believed.

The file: 8 bytes with the length of the header, the header (JSON), the bytes of the tensors without a gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turret.spi import CheckpointError, Unsupported

from .json_object import parse_object
from .mapped_file import MappedFile

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "C64": "<c8",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "u1",
}
"""The NumPy dtype of each kind; for a kind that NumPy lacks, unsigned integers of its width."""

ITEM_BYTES = {kind: int(dtype[-1]) for kind, dtype in DTYPES.items()}
MOST_HEADER_BYTES = 100_000_000
MOST_DIMENSIONS = 8
MOST_VALUES = 2**56
"""Above it a shape overflows the sizes NumPy counts in, even where another dimension is 0."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file. begin: its first byte, counted from the start of the file."""

    kind: str
    shape: tuple[int, ...]
    begin: int

    @property
    def count(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)


def read_header(file: MappedFile) -> dict[str, Entry]:
    """The tensors of a safetensors file by name, in the order of the header.

    Raises: CheckpointError naming the file and the tensor; Unsupported for a dtype that is not in `DTYPES`.
    """
    path, data = file.path, file.bytes()
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, file.size - 8):
        raise CheckpointError(
            f"{path}: its first 8 bytes promise a header of {length} bytes; wanted 2 to {MOST_HEADER_BYTES} inside a "
            f"file of {file.size}: this is no safetensors file, or it was cut short"
        )
    if data[8] != ord("{"):
        raise CheckpointError(f"{path}: its header starts with {data[8:9]!r}; wanted '{{': this is no safetensors file")
    start = 8 + length
    header = parse_object(path, data[8:start])
    _check_metadata(path, header.pop("__metadata__", {}))
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    cursor = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != cursor:
            what = "overlaps the tensor before it" if begin < cursor else f"leaves a gap of {begin - cursor} bytes"
            raise CheckpointError(f"{path}: tensor {name!r:.80} {what}; the file is damaged, fetch it again")
        cursor = end
    if cursor != file.size - start:
        raise CheckpointError(
            f"{path}: its tensors take {cursor} bytes and {file.size - start} follow the header; fetch the file again"
        )
    return {name: Entry(kind, shape, start + begin) for name, (kind, shape, begin, _) in spans.items()}


def _span(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Kind, shape, begin and end of a tensor, the last two from the end of the header."""
    where = f"{path}: tensor {name!r:.80}"
    if not isinstance(entry, Mapping) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} is described by {entry!r:.80}; wanted dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str):
        raise CheckpointError(f"{where} has dtype {kind!r:.40}; wanted a word")
    if kind not in DTYPES:
        raise Unsupported(f"{where} has dtype {kind!r:.40}; wanted one of {', '.join(DTYPES)}: convert the file")
    if not _are_counts(shape) or len(shape) > MOST_DIMENSIONS:
        raise CheckpointError(f"{where} has shape {shape!r:.80}; wanted at most {MOST_DIMENSIONS} sizes from 0 up")
    if math.prod(max(1, size) for size in shape) > MOST_VALUES:
        raise CheckpointError(f"{where} has shape {shape!r:.80}, more values than fit in any memory")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where} has data_offsets {offsets!r:.80}; wanted a begin and an end from 0 up")
    begin, end = offsets
    wanted = math.prod(shape) * ITEM_BYTES[kind]
    if end - begin != wanted:
        raise CheckpointError(f"{where} lies at {begin} to {end}; wanted {wanted} bytes for {kind} {shape!r:.80}")
    return kind, tuple(shape), begin, end


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_metadata(path: Path, metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is {metadata!r:.80}; wanted an object of texts")
