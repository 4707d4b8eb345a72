"""One version, stated in several files, never apart; and the script that keeps it so."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import turret


def bump(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).resolve().parents[2] / "scripts" / "bump_version.py"
    command = [sys.executable, "-S", str(script), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
    for folder in ("core", "plugins", "docs"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "README.md").write_text('pip install --find-links dist "core[cpu]==0.0.1"\n', encoding="utf-8")
    return tmp_path


def test_every_stated_version_agrees(root: Path) -> None:
    done = bump(root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_installed_metadata_and_the_package_agree() -> None:
    assert importlib.metadata.version("core") == turret.__version__


def test_siblings_are_pinned_exactly(root: Path) -> None:
    for project in [root / "core/pyproject.toml", *root.glob("plugins/*/pyproject.toml")]:
        data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        extras = [need for needs in data.get("optional-dependencies", {}).values() for need in needs]
        for need in (*data["dependencies"], *extras):
            own_extras = re.fullmatch(r"core\[[a-z0-9,]+\]", need) and data["name"] == "core"
            if re.match(r"(core|turret-[a-z0-9]+)\b", need) and not own_extras:
                assert re.search(rf"=={re.escape(data['version'])}$", need), f"{project}: {need} is not pinned"


def test_every_plugin_has_its_extra(root: Path) -> None:
    core = tomllib.loads((root / "core/pyproject.toml").read_text(encoding="utf-8"))["project"]
    for project in root.glob("plugins/*/pyproject.toml"):
        plugin = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        (word,) = plugin["entry-points"]["turret"]
        assert plugin["name"] == f"turret-{word}"
        assert project.parent.name == word
        needs = [re.sub(r"\[.*?\]", "", need) for need in core["optional-dependencies"][word]]
        assert f"{plugin['name']}=={plugin['version']}" in needs


def test_the_changelog_knows_the_version(root: Path) -> None:
    assert f"\n## {turret.__version__}" in (root / "CHANGELOG.md").read_text(encoding="utf-8")


def test_bumping_moves_every_place_at_once(copy: Path) -> None:
    done = bump(copy, "9.8.7rc1")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"9.8.7rc1"}
    assert 'version = "9.8.7rc1"' in (copy / "core/pyproject.toml").read_text(encoding="utf-8")
    assert '"core==9.8.7rc1"' in (copy / "plugins/cpu/pyproject.toml").read_text(encoding="utf-8")
    assert '__version__ = "9.8.7rc1"' in (copy / "plugins/cpu/src/turret_cpu/__init__.py").read_text(encoding="utf-8")
    assert "core[cpu]==9.8.7rc1" in (copy / "README.md").read_text(encoding="utf-8")


def test_bumping_touches_no_other_dependency(copy: Path) -> None:
    before = tomllib.loads((copy / "plugins/cpu/pyproject.toml").read_text(encoding="utf-8"))["project"]
    bump(copy, "9.8.7")
    after = tomllib.loads((copy / "plugins/cpu/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert after["dependencies"][1:] == before["dependencies"][1:]


def test_a_version_that_lags_behind_is_found(copy: Path) -> None:
    done = bump(copy)
    assert done.returncode == 1
    assert "versions differ: 0.0.1," in done.stderr
    assert "0.0.1  README.md: core[cpu]" in done.stdout


@pytest.mark.parametrize("word", ["latest", "1.0.x", "v1", "", "1.0; rm"])
def test_what_is_no_version_is_refused_and_nothing_is_written(copy: Path, word: str) -> None:
    before = (copy / "core/pyproject.toml").read_bytes()
    done = bump(copy, word)
    assert done.returncode == 2
    assert "is not a version" in done.stderr
    assert (copy / "core/pyproject.toml").read_bytes() == before


def test_nothing_is_written_when_one_file_states_no_version(copy: Path) -> None:
    (copy / "plugins/cpu/src/turret_cpu/__init__.py").write_text('"""Nothing."""\n', encoding="utf-8")
    before = (copy / "core/pyproject.toml").read_bytes()
    done = bump(copy, "9.8.7")
    assert done.returncode == 1
    assert "turret_cpu/__init__.py states no version" in done.stderr
    assert (copy / "core/pyproject.toml").read_bytes() == before
