"""The metrics log: one record a step, appended so that a killed run loses at most a torn last line."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from turret.files import replace_file
from turret.spi import DataError, NonFiniteError

_WHOLE = frozenset(("step", "tokens_seen"))
_OPTIONAL = frozenset(("val_loss", "loss_scale"))
_OF_UPDATE = frozenset(("gradient_norm", "clip_scale"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """What one optimizer step measured.

    loss, val_loss: nats per token; gradient_norm: before clipping, clip_scale: what it was multiplied by, both None for
    a step that was skipped because its float16 gradients overflowed; tokens_seen, seconds: since the first step of the
    run, over all its resumptions; val_loss: where it was measured; loss_scale: of a float16 step.
    """

    step: int
    loss: float
    gradient_norm: float | None
    clip_scale: float | None
    learning_rate: float
    tokens_seen: int
    seconds: float
    val_loss: float | None = None
    loss_scale: float | None = None

    def to_json(self) -> str:
        """One line of JSON without its newline. Raises: NonFiniteError naming step and field."""
        record = {name: getattr(self, name) for name in _FIELDS}
        for name, value in record.items():
            if value is not None and not math.isfinite(value):
                raise NonFiniteError(f"step {self.step}: {name} is {value}; a metrics record holds finite numbers")
        return json.dumps({name: value for name, value in record.items() if value is not None})

    @classmethod
    def from_json(cls, line: bytes) -> StepMetrics:
        """The record of one line. Raises: ValueError saying what is wrong with it."""
        try:
            raw = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(raw, dict):
            raise ValueError(f"{type(raw).__name__} instead of an object")
        if unknown := sorted(raw.keys() - set(_FIELDS)):
            raise ValueError(f"unknown key {unknown[0]!r:.80}")
        skipped = _OF_UPDATE.isdisjoint(raw) and "loss_scale" in raw
        if missing := sorted(set(_FIELDS) - raw.keys() - _OPTIONAL - (_OF_UPDATE if skipped else frozenset())):
            raise ValueError(f"no {missing[0]!r}")
        values = dict.fromkeys(_OPTIONAL | _OF_UPDATE) | {name: _number(name, value) for name, value in raw.items()}
        return cls(**values)


_FIELDS = tuple(field.name for field in fields(StepMetrics))


class MetricsLog:
    """`metrics.jsonl` of a run, open for appending; steps in it only ever grow.

    Every record is handed to the system whole and at once, so a killed process loses none that `append` returned
    from; `sync` makes them survive a power cut too.
    """

    def __init__(self, path: Path, *, last: StepMetrics | None = None) -> None:
        """Start a new log, or go on behind `last`, the file's last record; `resume` finds that out.

        Raises: DataError if a new log would land in a file that has records, or cannot be made.
        """
        self.path = path
        self.last = last
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise DataError(f"{path}: cannot be opened for writing ({error})") from error
        if last is None and self._file.tell() > 0:
            self._file.close()
            raise DataError(f"{path}: has records already; resume that run, or choose another folder")

    @classmethod
    def resume(cls, path: Path, step: int) -> MetricsLog:
        """Go on after `step`: a torn last line and the records of later steps are dropped.

        Raises: DataError for a malformed line before the last, or if the file cannot be rewritten.
        """
        kept = [record for record in read_metrics(path) if record.step <= step] if path.exists() else []
        data = b"".join(record.to_json().encode() + b"\n" for record in kept)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)
        except OSError as error:
            raise DataError(f"{path}: cannot be repaired ({error}); the old file is as it was") from error
        return cls(path, last=kept[-1] if kept else None)

    @property
    def seconds(self) -> float:
        """Seconds of training logged so far: what a resumed run counts on from."""
        return self.last.seconds if self.last else 0.0

    def append(self, record: StepMetrics) -> None:
        """Add one record. Raises: DataError if its step is not new or the disk is full; NonFiniteError."""
        if self.last is not None and record.step <= self.last.step:
            raise DataError(f"{self.path}: step {record.step} after step {self.last.step}; every step is logged once")
        line = record.to_json().encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk is full: it took a part of the record")
        except OSError as error:
            self._file.truncate(end)
            raise DataError(f"{self.path}: step {record.step} not logged ({error}); free space, then resume") from error
        self.last = record

    def sync(self) -> None:
        """Wait until every record is on the device: before a checkpoint, so that it never is ahead of its log.

        Raises: DataError.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise DataError(f"{self.path}: could not be flushed ({error}); free space, then resume") from error

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[StepMetrics]:
    """Every whole record, in order; a last line that is torn, or being written at this moment, is left out.

    Raises: DataError naming the line that is malformed or whose step does not grow.
    """
    if path.exists() and not path.is_file():  # opening a pipe would block for ever
        raise DataError(f"{path}: not a regular file; move it away, and a resumed run begins a new one")
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    records: list[StepMetrics] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = StepMetrics.from_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number}: {error}; delete that line, or restore the file") from error
        if records and record.step <= records[-1].step:
            raise DataError(f"{path}, line {number}: step {record.step} follows step {records[-1].step}; delete one")
        records.append(record)
    return records


def _number(name: str, value: Any) -> Any:
    if name in _WHOLE:
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r:.80}, not a whole number")
        return value
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} is {value!r:.80}, not a finite number")
    if name == "loss_scale" and value <= 0:
        raise ValueError(f"{name} is {value!r:.80}, not a number above 0")
    return float(value)
