"""The checkpoints of one run: saving, the `latest` pointer, keeping the last N, finding the last good one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from turret.files import replace_file, sync_folder
from turret.spi import CheckpointError, ConfigError
from turret.train.checkpoint.content import CheckpointContent
from turret.train.checkpoint.names import FOLDER, POINTER, aside, leftover, step_name, step_of
from turret.train.checkpoint.read import finished_steps, pointed, read_checkpoint
from turret.train.checkpoint.write import write_checkpoint


class LatestGood(NamedTuple):
    """The newest checkpoint that verifies, or None, and the newer ones that do not, each with the reason."""

    checkpoint: CheckpointContent | None
    skipped: tuple[tuple[Path, str], ...]


class CheckpointStore:
    """The checkpoints of one run; one process saves, any number may read meanwhile.

    Guarantees: killed at any instant, the newest finished checkpoint is still there; `save` deletes an older one only
    after the new one is on the device; nothing is created before the first save.
    """

    def __init__(self, run: Path, *, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"keep = {keep} checkpoints; keep at least 1")
        self.folder = run / FOLDER
        self.keep = keep

    def save(self, content: CheckpointContent) -> Path:
        """Write a checkpoint, point `latest` at it, then delete all but the newest `keep`.

        Later steps that the run left behind by `rewind` are not counted; they go when the run has passed them.
        Raises: CheckpointError, NonFiniteError, DTypeError; earlier checkpoints stay.
        """
        try:
            self._clean()
        except OSError as error:
            raise CheckpointError(f"{self.folder}: leftovers of a killed writer cannot be removed ({error})") from error
        target = write_checkpoint(self.folder, content)
        try:
            replace_file(self.folder / POINTER, f"{target.name}\n".encode())
            self._delete([step for step in self.steps() if step <= content.step][: -self.keep])
        except OSError as error:
            raise CheckpointError(f"{target}: saved, but {self.folder} could not be tidied ({error})") from error
        return target

    def rewind(self, step: int) -> None:
        """Make an earlier checkpoint the latest, before going on from it: later ones no longer count.

        Raises: CheckpointError.
        """
        if step not in self.steps():
            raise CheckpointError(f"{self.folder}: no checkpoint of step {step}; there are {self.steps()}")
        try:
            replace_file(self.folder / POINTER, f"{step_name(step)}\n".encode())
        except OSError as error:
            raise CheckpointError(f"{self.folder / POINTER}: could not be written ({error})") from error

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        return finished_steps(self.folder)

    def latest_good(self) -> LatestGood:
        """The checkpoint that `latest` names, or the newest before it that verifies, or else the newest after it."""
        skipped: dict[Path, str] = {}
        while (path := next((path for path in self._candidates() if path not in skipped), None)) is not None:
            before = _identity(path)
            try:
                return LatestGood(read_checkpoint(path), tuple(skipped.items()))
            except CheckpointError as error:
                # a writer beside us may have replaced or removed it while we read: then there is something to see anew
                if before is not None and _identity(path) == before:
                    skipped[path] = str(error)
        return LatestGood(None, tuple(skipped.items()))

    def _candidates(self) -> list[Path]:
        """Finished checkpoints, best first, and one that a killed writer had moved aside to replace it."""
        paths = {step: self.folder / step_name(step) for step in self.steps()}
        for path, name, kind in self._leftovers():
            if kind == "old" and (step := step_of(name)) is not None:
                paths.setdefault(step, path)
        latest = step_of(pointed(self.folder) or "")
        newest_first = sorted(paths, reverse=True)
        return [paths[step] for step in sorted(newest_first, key=lambda step: latest is not None and step > latest)]

    def _leftovers(self) -> list[tuple[Path, str, str]]:
        if not self.folder.is_dir():
            return []
        found = ((path, leftover(path)) for path in self.folder.iterdir())
        return [(path, *match) for path, match in found if match is not None]

    def _clean(self) -> None:
        """Remove what killed writers left; a checkpoint they had moved aside and not replaced goes back."""
        for path, name, kind in self._leftovers():
            if kind == "old" and not (self.folder / name).exists():
                path.rename(self.folder / name)
            else:
                _remove(path)

    def _delete(self, steps: list[int]) -> None:
        for step in steps:
            path = self.folder / step_name(step)
            trash = aside(path, "trash")
            path.rename(trash)
            _remove(trash)
        sync_folder(self.folder)


def _identity(path: Path) -> int | None:
    """Tells a folder from one that takes its place; None where there is nothing."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    """Delete a hidden leftover; what cannot go now (a file that a reader holds) is tried again at the next save."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
