from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def tracked(root: Path) -> list[Path]:
    """Every file that is or could be committed, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({Path(line) for line in listed if (root / line).is_file()})


@pytest.fixture(scope="session")
def shipped(root: Path, tracked: list[Path]) -> list[Path]:
    """The Python modules inside distributions: core/src and plugins/*/src."""
    return [path for path in tracked if path.suffix == ".py" and "src" in path.parts[:3]]
