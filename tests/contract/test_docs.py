"""The documentation's code is run, page by page, as a reader would: `python` and `console` blocks from the top down.

A page is one Python session in an empty folder. A `console` block holds `$ command` lines, each followed by what it
prints, if the page shows it; `...` stands for anything. `text` blocks are not run, `toml` and `json` ones are parsed.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "console", "text", "toml", "json"}
ONCE = re.compile(r"^turret-cpu: compiling kernels .*\n", re.MULTILINE)  # said on a fresh machine, shown by no page
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("core/*.md"), *ROOT.glob("plugins/*/*.md")])
names = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path) -> Iterator[tuple[str, str, int]]:
    """(language, code, line before the code) of every fenced block."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        yield match["language"], match["code"], text.count("\n", 0, match.start("code"))


def commands(code: str) -> Iterator[tuple[str, str]]:
    """(command, shown output) pairs of a console block; a trailing backslash continues a command."""
    for part in re.split(r"(?m)^\$ ", code)[1:]:
        lines = part.splitlines()
        end = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
        yield "\n".join(lines[:end]), "\n".join(lines[end:])


def run_command(command: str, shown: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    if shown.strip():
        printed = ONCE.sub("", done.stdout)
        assert doctest.OutputChecker().check_output(shown, printed, SHOWN), f"$ {command}\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {language for language, _, _ in blocks(page)} <= LANGUAGES
    assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0, "a fence is left open"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURRET_BACKEND", "cpu")
    session: dict[str, object] = {"__name__": "__main__"}
    for language, code, line in blocks(page):
        if language == "python":
            exec(compile("\n" * line + code, str(page), "exec"), session)
        elif language == "console":
            for command, shown in commands(code):
                run_command(command, shown)
        elif language == "toml":
            tomllib.loads(code)
        elif language == "json":
            json.loads(code)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_cases_that_are_named_exist(page: Path) -> None:
    from turret.conformance.profiles import matches
    from turret.conformance.suite import MODULES, all_cases

    text = page.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w/.])(?:{'|'.join(MODULES)})/[a-z0-9*-]+(?:/[\w.*-]*[\w*])?(?![\w/])", text)
    ids = [case.id for case in all_cases()]
    assert [name for name in named if not any(matches(each, name) for each in ids)] == []
