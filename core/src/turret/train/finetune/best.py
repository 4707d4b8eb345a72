"""What was learned at the steps with the best validation loss, kept for as long as a run may want it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from turret.quant.array_files import open_arrays, write_arrays
from turret.spi import CheckpointError

from ..checkpoint import CheckpointStore
from ..checkpoint.names import FOLDER
from .tuned_base import Base

BEST = "best"
STEP = "step"
_FILE = re.compile(r"step-(\d{8,19})\.safetensors")


class BestWeights:
    """One file a step, in the folder `best` beside the checkpoints of a run.

    Every checkpoint of the run may be gone on from, so the best step before each of them stays.
    """

    def __init__(self, out: Path, base: Base) -> None:
        self.out, self.base = out, base
        self.folder = out / FOLDER / BEST

    def keep(self, step: int) -> None:
        """Keeps what is learned now, at `step`, and deletes what no checkpoint leads back to. Raises: CheckpointError.

        Steps are kept in the order of time, each better than those before it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_arrays(self._path(step), self.base.state(), {STEP: str(step)})
            oldest = min(CheckpointStore(self.out).steps(), default=0)
            for passed in [each for each in self._steps() if each <= oldest][:-1]:
                self._path(passed).unlink()
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written ({error}); mend that, then resume") from error

    def take(self, step: int) -> None:
        """Goes back to what was learned at `step`. Raises: CheckpointError where that is not kept."""
        path = self._path(step)
        with open_arrays(path) as arrays:
            if arrays.metadata.get(STEP) != str(step):
                raise CheckpointError(f"{path}: is of step {arrays.metadata.get(STEP)!r:.20}; wanted step {step}")
            self.base.load(dict(arrays))

    def rewind(self, step: int) -> None:
        """Deletes what is of later steps: a run that goes on from `step` has not seen them. Raises: CheckpointError."""
        try:
            for later in [each for each in self._steps() if each > step]:
                self._path(later).unlink()
            for unfinished in self.folder.glob(".saving-*"):  # of a writer that was killed
                shutil.rmtree(unfinished, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be tidied ({error}); mend that, then resume") from error

    def fetch(self, step: int, home: Path) -> bool:
        """Whether `step` is kept here, or was in the run folder `home`, from where it is copied then."""
        source, path = BestWeights(home, self.base)._path(step), self._path(step)
        try:
            if not path.is_file() and source.is_file():
                with open_arrays(source) as arrays:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_arrays(path, dict(arrays), arrays.metadata)
        except OSError as error:
            raise CheckpointError(f"{source}: cannot be copied to {path} ({error}); mend that") from error
        return path.is_file()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def _steps(self) -> list[int]:
        found = (_FILE.fullmatch(each.name) for each in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)
