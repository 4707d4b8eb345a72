"""Sets one version everywhere it is written: distributions, packages, and the pins between them.

    python scripts/bump_version.py            shows every place and fails where two disagree
    python scripts/bump_version.py 0.2.0      writes 0.2.0 to all of them

Standard library only, so that it runs before any environment exists.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.dev[0-9]+)?"
PROJECT = re.compile(rf'(?m)^(?P<before>version = ")(?P<version>{VERSION})(?=")')
PACKAGE = re.compile(rf'(?m)^(?P<before>__version__ = ")(?P<version>{VERSION})(?=")')
PIN = re.compile(rf"(?P<before>\b(?:core|turret-[a-z0-9]+)(?:\[[a-z0-9,]+\])?==)(?P<version>{VERSION})")
QUOTES = ' ="-'
WHEEL = re.compile(rf"(?P<before>\b(?:core|turret_[a-z0-9]+)-)(?P<version>{VERSION})(?=-py3-none-any\.whl)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Where a version stands in one file; `required` rules must find one."""

    path: Path
    pattern: re.Pattern[str]
    required: bool


def rules(root: Path) -> Iterator[Rule]:
    """Every file that states a version, distributions first, then the pages that name one."""
    distributions = [root / "core", *sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))]
    for distribution in distributions:
        yield Rule(path=distribution / "pyproject.toml", pattern=PROJECT, required=True)
        yield Rule(path=distribution / "pyproject.toml", pattern=PIN, required=True)
        for package in sorted(distribution.glob("src/*/__init__.py")):
            yield Rule(path=package, pattern=PACKAGE, required=True)
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("*/README.md")]):
        if page.name != "CHANGELOG.md":
            yield Rule(path=page, pattern=PIN, required=False)
            yield Rule(path=page, pattern=WHEEL, required=False)


def stated(root: Path) -> list[tuple[str, str]]:
    """(place, version) for every version written; the place is "path: what stands before it"."""
    found = []
    for rule in rules(root):
        matches = list(rule.pattern.finditer(rule.path.read_text(encoding="utf-8")))
        if rule.required and not matches:
            raise SystemExit(f"{rule.path.relative_to(root)} states no version: wanted {rule.pattern.pattern}")
        for match in matches:
            found.append((f"{rule.path.relative_to(root)}: {match['before'].rstrip(QUOTES)}", match["version"]))
    return found


def write(root: Path, version: str) -> None:
    """Replaces every stated version by `version`; every file is read and checked before the first is written."""
    stated(root)
    texts: dict[Path, str] = {}
    for rule in rules(root):
        text = texts.get(rule.path) or rule.path.read_text(encoding="utf-8")
        texts[rule.path] = rule.pattern.sub(lambda match: match["before"] + version, text)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all agree, 1 they do not, 2 not a version."""
    parser = argparse.ArgumentParser(description="Set or check the one version of this repository.")
    parser.add_argument("version", nargs="?", help="such as 0.2.0, 1.0.0rc1; left out: only check")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.version is not None:
        if not re.fullmatch(VERSION, options.version):
            parser.error(f"{options.version!r} is not a version; wanted digits and dots, such as 0.2.0 or 1.0.0rc1")
        write(options.root, options.version)
    places = stated(options.root)
    for place, version in places:
        print(f"{version}  {place}")
    versions = {version for _, version in places}
    if len(versions) > 1:
        print(f"versions differ: {', '.join(sorted(versions))}; pass the one you mean", file=sys.stderr)
    return 1 if len(versions) > 1 else 0


if __name__ == "__main__":
    raise SystemExit(main())
