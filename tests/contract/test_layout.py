"""What the files look like from outside: sizes, places, licences, nothing that belongs to one machine."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

SOURCE = {".py", ".pyi", ".cu", ".cuh", ".cpp", ".h", ".metal", ".js", ".css", ".html", ".sh", ".toml"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
NAMED_AFTER_A_CONTRACT = {Path("core/src/turret/models/base.py")}
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|tmp|Users)/")
REGISTRY = re.compile("|".join(("py" r"pi\.org", "python" r"hosted\.org", "npm" r"js\.org", "deb\\.debian" r"\.org")))


def test_no_source_file_is_longer_than_400_lines(root: Path, tracked: list[Path]) -> None:
    lengths = {path: (root / path).read_bytes().count(b"\n") for path in tracked if path.suffix in SOURCE}
    assert {str(path): lines for path, lines in lengths.items() if lines > 400} == {}


def test_no_module_is_named_after_nothing(tracked: list[Path]) -> None:
    modules = [path for path in tracked if path.suffix == ".py" and path not in NAMED_AFTER_A_CONTRACT]
    assert [str(path) for path in modules if VAGUE & {path.stem, *path.parent.parts}] == []


def test_every_package_folder_is_a_package_that_the_wheel_will_hold(root: Path, shipped: list[Path]) -> None:
    folders = {path.parent for path in shipped}
    assert [str(folder) for folder in sorted(folders) if not (root / folder / "__init__.py").is_file()] == []


def test_every_module_says_what_it_owns(root: Path, shipped: list[Path]) -> None:
    silent = [path for path in shipped if not ast.get_docstring(ast.parse((root / path).read_text(encoding="utf-8")))]
    assert [str(path) for path in silent] == []


def test_annotations_are_never_evaluated_at_import(root: Path, tracked: list[Path]) -> None:
    offenders = []
    for path in tracked:
        if path.suffix != ".py":
            continue
        body = ast.parse((root / path).read_text(encoding="utf-8")).body
        defines = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in body)
        postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in body)
        if defines and not postponed:
            offenders.append(str(path))
    assert offenders == []


def test_every_distribution_ships_its_types(root: Path) -> None:
    for project in [root / "core/pyproject.toml", *root.glob("plugins/*/pyproject.toml")]:
        data = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
        for package in (path.parent.name for path in project.parent.glob("src/*/__init__.py")):
            assert "py.typed" in data.get(package, []), f"{project}: package-data of {package} lacks py.typed"
            assert (project.parent / "src" / package / "py.typed").is_file()


def test_every_distribution_carries_the_same_licence(root: Path) -> None:
    text = (root / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    for project in [root / "core/pyproject.toml", *root.glob("plugins/*/pyproject.toml")]:
        assert (project.parent / "LICENSE").read_text(encoding="utf-8") == text
        assert tomllib.loads(project.read_text(encoding="utf-8"))["project"]["license"] == "Apache-2.0"


def test_plugins_keep_the_same_things_in_files_of_the_same_name(root: Path) -> None:
    for package in (path.parent for path in root.glob("plugins/*/src/*/__init__.py")):
        missing = {"plugin.py", "probe.py", "backend.py"} - {path.name for path in package.iterdir()}
        assert not missing, f"{package.name} lacks {sorted(missing)}"


def test_nothing_tracked_knows_a_machine_or_a_registry(root: Path, tracked: list[Path]) -> None:
    offenders = []
    for path in tracked:
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE.search(line) or REGISTRY.search(line):
                offenders.append(f"{path}:{number}: {line.strip()}")
    assert offenders == []


def test_constraints_are_plain_pins(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9A-Za-z.]+", line)] == []
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in pins}
    for name in ("requirements-dev.txt", "requirements-bench.txt"):
        wanted = [line for line in (root / name).read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
        assert [line for line in wanted if line.lower() not in pinned] == []


def test_everything_a_distribution_needs_is_pinned(root: Path) -> None:
    text = (root / "constraints.txt").read_text(encoding="utf-8").lower()
    for project in [root / "core/pyproject.toml", *root.glob("plugins/*/pyproject.toml")]:
        data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        extras = [need for needs in data.get("optional-dependencies", {}).values() for need in needs]
        for need in (*data["dependencies"], *extras):
            name = re.split(r"[\[<>=~!; ]", need)[0].lower()
            if name != "core" and not name.startswith("turret-"):
                assert f"\n{name}==" in text, f"{project.parent.name} needs {name}, which constraints.txt does not pin"
