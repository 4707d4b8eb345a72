"""Importing turret costs nothing and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import turret

PURE = """
import json, os, sys
reads = []
class Watched(dict):
    def __getitem__(self, key):
        reads.append(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        reads.append(key)
        return super().get(key, default)
    def __contains__(self, key):
        reads.append(key)
        return super().__contains__(key)
before = dict(os.environ)
real, os.environ = os.environ, Watched(os.environ)
import turret
os.environ = real
print(json.dumps({
    "modules": sorted(name for name in sys.modules if name.split(".")[0] in ("numpy", "pluggy", "rich", "click")),
    "turret": sorted(name for name in sys.modules if name.startswith("turret")),
    "metadata": "importlib.metadata" in sys.modules,
    "reads": [key for key in reads if key.upper().startswith("TURRET")],
    "same": before == dict(os.environ),
}))
"""


def run(code: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **variables},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_turret_loads_reads_and_writes_nothing(tmp_path: Path) -> None:
    found = json.loads(run(PURE, tmp_path, HOME=str(tmp_path)))
    assert found == {"modules": [], "turret": ["turret"], "metadata": False, "reads": [], "same": True}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", " ", "cdua", "CPU", "cpu:7", "\u2716"])
def test_no_value_of_a_variable_breaks_the_import(tmp_path: Path, text: str) -> None:
    variables = dict.fromkeys(("TURRET_BACKEND", "TURRET_PLUGINS", "TURRET_DISABLE_PLUGINS"), text)
    assert run("import turret, turret.registry; print('imported')", tmp_path, **variables) == "imported\n"


@pytest.mark.parametrize("name", turret.__all__)
def test_every_public_name_can_be_fetched(name: str) -> None:
    assert getattr(turret, name) is not None
    assert name in dir(turret)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tensr'"):
        turret.tensr  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "before",
    [
        "import turret",
        "import turret.tensor",
        "import turret.tensor.ops",
        "import turret.tensor.ops as ops",
        "import turret; turret.nn",
        "from turret import tensor",
        "import turret; turret.Tensor",
    ],
)
def test_tensor_is_both_the_function_and_the_package(tmp_path: Path, before: str) -> None:
    code = """
        import turret
        from turret import tensor as made
        assert made is turret.tensor and callable(made)
        assert turret.tensor.Tensor is turret.Tensor
    """
    run(f"{before}\n{textwrap.dedent(code)}", tmp_path)


@pytest.mark.slow
def test_public_names_are_typed(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "import turret\nimport turret.tensor.ops\n"
        "x: turret.Tensor = turret.tensor([1.0])\n"
        "with turret.use_backend('cpu'):\n    reveal_type(turret.tensor([1.0]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "user.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Tensor" in done.stdout
