"""Safetensors checkpoints, in one file or in shards, as a source of tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from turret.spi import CheckpointError, Host, Unsupported

from .json_object import read_object
from .mapped_file import FLOATS, MappedFile
from .safetensors_header import DTYPES, MOST_HEADER_BYTES, Entry, read_header

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
PICKLE_ENDS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
NO_PICKLE = (
    "pickle files are not opened because they can run code; convert to safetensors (model.save_pretrained in "
    "transformers writes it)"
)


class SafetensorsFiles:
    """The tensors of a checkpoint; see `turret.models.weights.source.TensorSource`.

    path: a safetensors file, or a directory with model.safetensors (taken first) or model.safetensors.index.json and
    its shards. All headers are read and checked here, tensors when they are asked for.
    Raises: CheckpointError naming the file and the tensor; Unsupported for a dtype that turret does not know.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._places: dict[str, tuple[MappedFile, Entry]] = {}
        with contextlib.ExitStack() as stack:
            files, promised = _files(self._path)
            for place in files:
                file = MappedFile(place)
                stack.callback(file.close)
                self._add(file, promised)
            if promised is not None and (missing := promised.keys() - self._places.keys()):
                name = min(missing)
                raise CheckpointError(
                    f"{self._path}: the index promises tensor {name!r:.80} in {promised[name]!r:.80}, which lacks it; "
                    f"fetch the shard again"
                )
            self._open = stack.pop_all()

    @property
    def path(self) -> Path:
        """The file or directory that was opened."""
        return self._path

    def names(self) -> tuple[str, ...]:
        """The names of the tensors, shard after shard."""
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises: CheckpointError for a name that is not there."""
        return self._place(name)[1].shape

    def kind(self, name: str) -> str:
        """The dtype of a tensor as the file spells it ("BF16"). Raises: CheckpointError as `shape`."""
        return self._place(name)[1].kind

    def read(self, name: str) -> Host:
        """A floating-point tensor as float32, C-contiguous, the caller's own.

        Raises: CheckpointError as `shape`, for integers and booleans and for a closed file; Unsupported for 8-bit
        floats, whose scales this format does not say.
        """
        file, entry = self._place(name)
        if entry.kind.startswith("F8"):
            raise Unsupported(f"{file.path}: tensor {name!r:.80} is {entry.kind}; wanted 16 bits or more: convert it")
        if entry.kind not in FLOATS:
            raise CheckpointError(
                f"{file.path}: tensor {name!r:.80} is {entry.kind}; wanted one of {', '.join(FLOATS)} for a weight"
            )
        return file.floats(entry.begin, entry.count, entry.kind).reshape(entry.shape)

    def raw(self, name: str) -> Host:
        """A tensor in its own dtype, the caller's own; bfloat16 and 8-bit floats as unsigned integers of their width.

        Raises: CheckpointError as `shape`, for a boolean that is neither 0 nor 1 and for a closed file.
        """
        file, entry = self._place(name)
        values = file.array(entry.begin, entry.count, DTYPES[entry.kind])
        if entry.kind == "BOOL":
            if entry.count and values.max() > 1:
                raise CheckpointError(
                    f"{file.path}: tensor {name!r:.80} is BOOL with a byte {values.max()}; wanted 0, 1"
                )
            values = values.astype(np.bool_)
        return values.astype(values.dtype.newbyteorder("=")).reshape(entry.shape)

    def arrays(self) -> Mapping[str, Host]:
        """What `raw` gives for every name, read when it is looked up."""
        return _RawArrays(self)

    def close(self) -> None:
        """Lets go of the files; closing twice is fine."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, file: MappedFile, promised: Mapping[str, str] | None) -> None:
        for name, entry in read_header(file).items():
            if name in self._places:
                other = self._places[name][0].path.name
                raise CheckpointError(f"{file.path}: tensor {name!r:.80} is in {other!r:.80} too; wanted it once")
            if promised is not None and promised.get(name) != file.path.name:
                says = f"puts it in {promised[name]!r:.80}" if name in promised else "does not have it"
                raise CheckpointError(
                    f"{file.path}: it holds tensor {name!r:.80}, and the index {says}; fetch both again"
                )
            self._places[name] = (file, entry)

    def _place(self, name: str) -> tuple[MappedFile, Entry]:
        if name not in self._places:
            raise CheckpointError(
                f"{self._path}: there is no tensor {name!r:.80} among its {len(self._places)}; names() lists them"
            )
        return self._places[name]


class _RawArrays(Mapping[str, Host]):
    def __init__(self, files: SafetensorsFiles) -> None:
        self._files, self._names = files, dict.fromkeys(files.names())

    def __getitem__(self, name: str) -> Host:
        if name not in self._names:
            raise KeyError(name)
        return self._files.raw(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _files(path: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The files to open, and which tensor an index promises in which of them; None without an index."""
    if not os.path.isdir(path):
        if path.suffix in PICKLE_ENDS:
            raise CheckpointError(f"{path}: {NO_PICKLE}")
        return _shards(path, _weight_map(path)) if path.name.endswith(".index.json") else ([path], None)
    if os.path.lexists(path / WHOLE):
        return [path / WHOLE], None
    if os.path.lexists(path / INDEX):
        return _shards(path / INDEX, _weight_map(path / INDEX))
    if pickle := next((name for name in PICKLES if os.path.lexists(path / name)), None):
        raise CheckpointError(f"{path}: holds {pickle} and no safetensors; {NO_PICKLE}")
    raise CheckpointError(f"{path}: holds neither {WHOLE} nor {INDEX}; give the directory or file of a checkpoint")


def _weight_map(index: Path) -> dict[str, str]:
    """The file name of the shard of each tensor."""
    weight_map: Any = read_object(index, MOST_HEADER_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: its weight_map is {weight_map!r:.80}; wanted an object with a tensor at least")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise CheckpointError(
                f"{index}: tensor {name!r:.80} is said to be in {shard!r:.80}; wanted the plain name of a file there"
            )
    return weight_map


def _shards(index: Path, weight_map: dict[str, str]) -> tuple[list[Path], dict[str, str]]:
    """The paths of the shards; a link is followed, as caches of downloads keep the files elsewhere."""
    return [index.parent / shard for shard in sorted(set(weight_map.values()))], weight_map


def _is_plain(name: str) -> bool:
    return (
        not (set(name) & set("/\\:\0"))
        and not name.startswith(".")
        and name.isprintable()
        and name.endswith(".safetensors")
    )
