from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import turret

EMULATOR = Path(__file__).resolve().parents[1] / "cuda_emulator"
if str(EMULATOR) not in sys.path:
    sys.path.insert(0, str(EMULATOR))  # `import cupy` is the emulator's in this process; others do not inherit it

PLUGIN = """
from turret.spi import BackendInfo, hookimpl

@hookimpl
def turret_backends():
    return [BackendInfo(
        name="{name}", distribution="turret-{name}", spi="{spi}", target="turret_{name}.backend:open_device",
        probe="turret_{name}.probe:why_not", devices="{devices}", score={score}, install_hint="pip install lib{name}",
    )]
"""
BACKEND = """
import numpy
from turret.spi import Capabilities
from turret.spi.array_api import required_from

class Opened:
    def __init__(self):
        self.table = Capabilities(required=required_from(numpy))

    def capabilities(self):
        return self.table

    def close(self):
        pass

def open_device(device):
    return Opened()
"""
PROBE = """
def why_not(device):
    return None
"""


class Site:
    """A folder of tiny distributions, laid out as pip leaves them, and processes that see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = [folder]
        self.flags: tuple[str, ...] = ()

    def without(self, distribution: str) -> None:
        """From now on processes see the environment as if `distribution` was not installed in it."""
        beside = self.folder.with_name(f"{self.folder.name}-without")
        beside.mkdir()
        for each in Path(sysconfig.get_path("purelib")).iterdir():
            if not each.name.startswith(f"{distribution.replace('-', '_')}-"):
                (beside / each.name).symlink_to(each)
        # -S leaves the environment's own folder out, and with it the .pth files of editable installs.
        self.flags = ("-S",)
        self.path += [beside, Path(turret.__file__).resolve().parents[1]]

    def add(
        self,
        name: str,
        *,
        distribution: str = "",
        package: str = "",
        plugin: str = PLUGIN,
        backend: str = BACKEND,
        probe: str = PROBE,
        spi: str = ">=1.0,<2",
        devices: str = "",
        score: int = 1,
        entry_points: str = "[turret]\n{name} = {package}.plugin\n",
        metadata: str = "Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n",
    ) -> None:
        """Installs backend `name`; the sources may use {name}, {spi}, {devices} and {score}."""
        package = package or f"turret_{name}"
        distribution = distribution or f"turret-{name}"
        home = self.folder / package
        home.mkdir()
        (home / "__init__.py").write_text("")
        facts = {"name": name, "spi": spi, "devices": devices, "score": str(score), "package": package}
        for file, source in (("plugin.py", plugin), ("backend.py", backend), ("probe.py", probe)):
            text = textwrap.dedent(source)
            for key, value in facts.items():
                text = text.replace(f"{{{key}}}", value)
            (home / file).write_text(text)
        info = self.folder / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata.format(distribution=distribution))
        (info / "entry_points.txt").write_text(entry_points.format(name=name, package=package))

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `python *command` with this folder on its path and no other TURRET variable than the given ones."""
        clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("TURRET")}
        environ = {**clean, "PYTHONPATH": os.pathsep.join(map(str, self.path)), **variables}
        return subprocess.run(
            [sys.executable, *self.flags, *command],
            capture_output=True,
            text=True,
            env=environ,
            timeout=120,
            check=False,
        )

    def python(self, code: str, **variables: str) -> str:
        """What `code` prints; it must succeed."""
        done = self.run("-c", textwrap.dedent(code), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Site]:
    return lambda: Site(tmp_path_factory.mktemp("site"))
