"""Who may import what, read from the source, and what listing backends really loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

ARRAY_LIBRARIES = {"cupy", "jax", "jaxlib", "mlx", "numba", "llvmlite", "torch", "scipy"}
LIST_BACKENDS = """
import json, sys
from importlib.metadata import entry_points
import pluggy
from turret.spi import BackendInfo, hooks
manager = pluggy.PluginManager(hooks.PROJECT)
manager.add_hookspecs(hooks)
for point in entry_points(group=hooks.PROJECT):
    manager.register(point.load(), point.name)
manager.check_pending()
infos = [info for infos in manager.hook.turret_backends() for info in infos]
assert all(isinstance(info, BackendInfo) for info in infos)
print(json.dumps({"names": [[i.name, i.distribution] for i in infos], "modules": sorted(sys.modules)}))
"""


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every absolute import, at any depth; `from a import b` counts as a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_imports_no_array_library_and_no_plugin_anywhere(root: Path, shipped: list[Path]) -> None:
    offenders = []
    for path in (path for path in shipped if path.parts[0] == "core"):
        for line, module in imported(root / path):
            top = module.split(".")[0]
            if top in ARRAY_LIBRARIES or top.startswith("turret_"):
                offenders.append(f"{path}:{line}: {module}")
    assert offenders == []


def test_plugins_import_only_spi_and_derived_of_turret_and_no_other_plugin(root: Path, shipped: list[Path]) -> None:
    offenders = []
    for path in (path for path in shipped if path.parts[0] == "plugins"):
        for line, module in imported(root / path):
            parts = module.split(".")
            foreign = parts[0].startswith("turret_") and parts[0] != path.parts[3]
            deep = parts[0] == "turret" and parts[1:2] not in (["spi"], ["derived"])
            if foreign or deep:
                offenders.append(f"{path}:{line}: {module}")
    assert offenders == []


def test_importing_turret_loads_neither_numpy_nor_pluggy() -> None:
    loaded = set(json.loads(run("import turret, sys, json; print(json.dumps(sorted(sys.modules)))")))
    assert loaded & ({"numpy", "pluggy", "click", "rich"} | ARRAY_LIBRARIES) == set()


def test_listing_backends_imports_no_array_library_but_numpy() -> None:
    listed = json.loads(run(LIST_BACKENDS))
    assert listed["names"], "no plugin is installed: the check would be empty"
    assert set(listed["modules"]) & ARRAY_LIBRARIES == set()


def test_entry_point_backend_and_distribution_share_one_word() -> None:
    names = dict(json.loads(run(LIST_BACKENDS))["names"])
    points = {point.name: point for point in entry_points(group="turret")}
    assert set(names) == set(points)
    for name, point in points.items():
        assert point.value == f"turret_{name}.plugin"
        assert names[name] == f"turret-{name}"
