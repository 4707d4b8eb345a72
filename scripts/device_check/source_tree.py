"""What of the checkout is taken as it lies there: turret's distributions that are not installed, and the emulator."""

from __future__ import annotations

import os
import tomllib
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from .request import ROOT

FOLDERS = ("core", "plugins/cpu", "plugins/cuda")
EMULATOR = ROOT / "tests" / "cuda_emulator"


def emulator_is_here() -> bool:
    """Whether `import cupy` would give the emulator; imports nothing."""
    found = PathFinder.find_spec("cupy")
    return found is not None and found.origin is not None and Path(found.origin).is_relative_to(EMULATOR)


def environment(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Variables for processes that have to find turret, and the distributions that only the checkout has.

    For each of those its metadata is written to `folder`, as an installer would: plugins are found by it.
    """
    paths, missing = [str(ROOT / "scripts"), str(ROOT / "benchmarks"), str(folder)], []
    for project in FOLDERS:
        stated = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        try:
            distribution(stated["name"])
        except PackageNotFoundError:
            _write_metadata(folder, stated)
            paths.append(str(ROOT / project / "src"))
            missing.append(stated["name"])
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each not in paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *given])}, missing


def _write_metadata(folder: Path, project: dict[str, Any]) -> None:
    name, version = project["name"], project["version"]
    own = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    own.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {need}\n" for need in project.get("dependencies", ()))
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    groups = project.get("entry-points", {})
    lines = [line for group, points in groups.items() for line in (f"[{group}]", *map(" = ".join, points.items()))]
    (own / "entry_points.txt").write_text("\n".join(lines) + "\n")
