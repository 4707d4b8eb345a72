"""GGUF files (versions 2 and 3, little-endian) as a source of metadata and tensors.

The file: magic and version, the two counts, the metadata, the description of each tensor, padding, the tensors. The
header is read here; the package gguf knows the block formats and decodes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from turret.spi import CheckpointError, Host, MissingExtra, Unsupported

from .gguf_values import HeaderReader
from .mapped_file import FLOATS, MappedFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
INTEGERS = ("I8", "I16", "I32", "I64")
ALIGNMENT = 32
"""What tensors start at multiples of where the metadata does not say."""

LEAST_PAIR, LEAST_TENSOR = 14, 25
"""Bytes that a key with its value, and the description of a tensor, take at least."""

MOST_DIMENSIONS = 4
MOST_VALUES = 2**56
CHUNK = 1 << 18
"""Values decoded at once: what decoding needs beside the result stays small."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: str
    shape: tuple[int, ...]
    block: int
    block_bytes: int
    begin: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.count // self.block * self.block_bytes


class GgufFile:
    """The metadata and tensors of a GGUF file; see `turret.models.weights.source.TensorSource`.

    Shapes are as in NumPy, the reverse of how the file has them.
    Raises: CheckpointError naming the file and what is wrong in it; Unsupported for another version or byte order, an
    unknown kind of tensor and one file of many; MissingExtra without the package gguf.
    """

    def __init__(self, path: Path | str) -> None:
        self._gguf = _package()
        self._path = Path(path)
        self._file = MappedFile(self._path)
        reader = HeaderReader(self._file)
        _check_version(reader, self._path)
        tensors = reader.count(LEAST_TENSOR, "the number of tensors")
        pairs = reader.count(LEAST_PAIR, "the number of metadata keys")
        self._metadata = _read_metadata(reader, pairs)
        self._require_whole()
        self._tensors = self._place_all(self._describe(reader, tensors), reader.place)

    @property
    def path(self) -> Path:
        """The file that was opened."""
        return self._path

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata by key: str, int, float, bool, or lists of them."""
        return MappingProxyType(self._metadata)

    def names(self) -> tuple[str, ...]:
        """The names of the tensors in the order of the header."""
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, rows first. Raises: CheckpointError for a name that is not there."""
        return self._tensor(name).shape

    def kind(self, name: str) -> str:
        """The kind of a tensor ("Q4_1"). Raises: CheckpointError as `shape`."""
        return self._tensor(name).kind

    def read(self, name: str) -> Host:
        """A tensor as float32, C-contiguous, the caller's own.

        Raises: CheckpointError as `shape`, for integers and for a closed file; Unsupported for a kind that the package
        gguf cannot decode.
        """
        tensor = self._tensor(name)
        if tensor.kind in INTEGERS:
            raise CheckpointError(
                f"{self._path}: tensor {name!r:.80} is {tensor.kind}; wanted real numbers for a weight"
            )
        if tensor.kind in FLOATS:
            return self._file.floats(tensor.begin, tensor.count, tensor.kind).reshape(tensor.shape)
        kind = self._gguf.GGMLQuantizationType[tensor.kind]
        stored = self._file.array(tensor.begin, tensor.size, np.uint8).reshape(-1, tensor.block_bytes)
        values = np.empty((len(stored), tensor.block), np.float32)
        step = CHUNK // tensor.block
        for at in range(0, len(stored), step):
            part = stored[at : at + step].reshape(1, -1)
            try:
                with np.errstate(all="ignore"):
                    values[at : at + step] = self._gguf.quants.dequantize(part, kind).reshape(-1, tensor.block)
            except NotImplementedError as error:
                raise Unsupported(
                    f"{self._path}: tensor {name!r:.80} is {tensor.kind}, which the package gguf cannot decode; give a "
                    f"file with another quantization, such as Q8_0"
                ) from error
        return values.reshape(tensor.shape)

    def close(self) -> None:
        """Lets go of the file; closing twice is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tensor(self, name: str) -> _Tensor:
        if name not in self._tensors:
            raise CheckpointError(
                f"{self._path}: there is no tensor {name!r:.80} among its {len(self._tensors)}; names() lists them"
            )
        return self._tensors[name]

    def _require_whole(self) -> None:
        count = self._metadata.get("split.count", 1)
        if type(count) is not int:
            raise CheckpointError(f"{self._path}: split.count is {count!r:.40}; wanted a number")
        if count > 1:
            raise Unsupported(
                f"{self._path}: is one of {count} files; merge them with llama-gguf-split --merge and give the result"
            )

    def _describe(self, reader: HeaderReader, count: int) -> dict[str, _Tensor]:
        """The tensors by name; where they begin is still counted from the first of them."""
        described: dict[str, _Tensor] = {}
        for number in range(count):
            name = reader.name(f"the name of tensor {number}")
            what = f"tensor {name!r:.80}"
            if name in described:
                reader.refuse(f"{what} is there twice")
            dimensions = reader.unsigned(4, f"the number of dimensions of {what}")
            if dimensions > MOST_DIMENSIONS:
                reader.refuse(f"{what} has {dimensions} dimensions; wanted at most {MOST_DIMENSIONS}")
            sizes = [reader.unsigned(8, f"a size of {what}") for _ in range(dimensions)]
            if math.prod(max(1, size) for size in sizes) > MOST_VALUES:
                reader.refuse(f"{what} has sizes {sizes}, more values than fit in any memory")
            kind, block, block_bytes = self._format(reader.unsigned(4, f"the kind of {what}"), what)
            if (sizes[0] if sizes else 1) % block:
                reader.refuse(f"{what} is {kind} with rows of {sizes[:1]}; wanted a multiple of {block}")
            begin = reader.unsigned(8, f"the place of {what}")
            described[name] = _Tensor(kind, tuple(reversed(sizes)), block, block_bytes, begin)
        return described

    def _format(self, number: int, what: str) -> tuple[str, int, int]:
        """The name of a tensor kind, the values of a block and the bytes of one."""
        try:
            kind = self._gguf.GGMLQuantizationType(number)
            return kind.name, *self._gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise Unsupported(
                f"{self._path}: {what} is of kind {number}, which the package gguf does not know; install a newer gguf "
                f"or give a file with another quantization"
            ) from error

    def _place_all(self, described: Mapping[str, _Tensor], header_end: int) -> dict[str, _Tensor]:
        """The tensors with their places in the file, which do not overlap."""
        alignment = self._metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(f"{self._path}: general.alignment is {alignment!r:.40}; wanted a power of two")
        start, cursor = -(-header_end // alignment) * alignment, 0
        for name, tensor in sorted(described.items(), key=lambda item: (item[1].begin, item[1].size)):
            what = f"{self._path}: tensor {name!r:.80} of {tensor.size} bytes"
            if tensor.begin % alignment:
                raise CheckpointError(f"{what} begins at {tensor.begin}; wanted a multiple of {alignment}")
            if tensor.begin < cursor:
                raise CheckpointError(f"{what} overlaps the tensor before it; the file is damaged, fetch it again")
            cursor = tensor.begin + tensor.size
            if start + cursor > self._file.size:
                raise CheckpointError(
                    f"{what} ends at byte {start + cursor} of {self._file.size}; the file was cut short, fetch it again"
                )
        return {
            name: _Tensor(tensor.kind, tensor.shape, tensor.block, tensor.block_bytes, start + tensor.begin)
            for name, tensor in described.items()
        }


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra('a GGUF file needs gguf; install it with: pip install "core[hub]"') from error
    return gguf


def _check_version(reader: HeaderReader, path: Path) -> None:
    magic = reader.take(4, "the magic number")
    if magic != MAGIC:
        raise CheckpointError(f"{path}: starts with {magic!r}; wanted {MAGIC!r}: this is no GGUF file")
    raw = reader.take(4, "the version")
    version = int.from_bytes(raw, "little")
    if int.from_bytes(raw, "big") in (1, *VERSIONS):
        raise Unsupported(f"{path}: is a big-endian GGUF file; wanted a little-endian one: convert it")
    if version not in VERSIONS:
        raise Unsupported(f"{path}: is GGUF version {version}; wanted {' or '.join(map(str, VERSIONS))}: convert it")


def _read_metadata(reader: HeaderReader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        key = reader.name(f"metadata key {number}")
        if key in metadata:
            reader.refuse(f"metadata key {key!r:.80} is there twice")
        kind = reader.unsigned(4, f"the type of {key!r:.80}")
        metadata[key] = reader.value(kind, repr(key)[:80])
    return metadata
