"""Where any exception may be caught: four boundaries, one file each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

BOUNDARIES = {
    "core/src/turret/registry": "the loader of plugins",
    "core/src/turret/conformance": "the suite's case runner",
    "core/src/turret/cli": "the outermost frame",
    "core/src/turret/serve": "the request loop",
}
TRANSLATED = {
    "core/src/turret/data/subword.py": "the tokenizers library raises Exception itself, and nothing narrower",
}
"""Where one call into a library is caught broadly and every exception becomes one of ours."""
CHECKED = {"core", "plugins", "scripts", "benchmarks", "examples", "labs"}


def broad_handlers(path: Path) -> Iterator[ast.ExceptHandler]:
    """Handlers of everything that do not raise again as their last act."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            caught = (
                {"BaseException"}
                if node.type is None
                else {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
            )
            last = node.body[-1]
            passes_on = isinstance(last, ast.Raise) and last.exc is None
            if caught & {"Exception", "BaseException"} and not passes_on:
                yield node


def test_everything_is_caught_at_the_four_boundaries_only(root: Path, tracked: list[Path]) -> None:
    found: dict[str, set[str]] = {}
    for path in (path for path in tracked if path.suffix == ".py" and path.parts[0] in CHECKED):
        if any(broad_handlers(root / path)) and "tests" not in path.parts:
            home = next((home for home in BOUNDARIES if str(path).startswith(home + "/")), "elsewhere")
            if str(path) not in TRANSLATED:
                found.setdefault(home, set()).add(str(path))
    assert found.pop("elsewhere", set()) == set()
    assert {home: sorted(files) for home, files in found.items() if len(files) > 1} == {}


def test_each_broad_handler_says_why(root: Path, tracked: list[Path]) -> None:
    silent = []
    for path in (path for path in tracked if path.suffix == ".py" and path.parts[0] in CHECKED):
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        for handler in broad_handlers(root / path):
            above, (_, _, beside) = lines[handler.lineno - 2].strip(), lines[handler.lineno - 1].partition("BLE001")
            if not above.startswith("#") and len(beside.strip(" -:,.")) < 10:
                silent.append(f"{path}:{handler.lineno}")
    assert silent == []
