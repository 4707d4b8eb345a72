"""A small instruction set from text that every Python has: questions about the standard library and its own answers.

    python examples/python_instructions.py python.jsonl

Each line is {"prompt": ..., "response": ...}; the answer is the first paragraph of an object's documentation. The same
Python gives the same file.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    *("builtins", "math", "os.path", "itertools", "functools", "collections", "string", "random", "statistics", "re"),
    *("json", "textwrap", "shutil", "heapq", "bisect", "datetime", "operator", "pathlib", "tempfile", "time", "glob"),
    *("hashlib", "base64", "csv", "copy", "fractions", "inspect", "types", "contextlib", "difflib", "calendar"),
)
LEAST, MOST = 24, 400
"""Characters of an answer."""


def examples() -> Iterator[dict[str, str]]:
    """Prompt and response for each documented public function and class, sorted by name within its module."""
    seen = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for member, thing in sorted(inspect.getmembers(module)):
            if member.startswith("_") or not (inspect.isroutine(thing) or inspect.isclass(thing)):
                continue
            answer = first_paragraph(thing)
            if not LEAST <= len(answer) <= MOST or answer in seen:
                continue
            seen.add(answer)
            kind = "class" if inspect.isclass(thing) else "function"
            full = member if name == "builtins" else f"{name}.{member}"
            yield {"prompt": f"What does the Python {kind} {full} do?", "response": answer}


def first_paragraph(thing: object) -> str:
    """The first paragraph of the documentation on one line; empty where there is none, or none in sentences."""
    text = inspect.getdoc(thing) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    found = next((part for part in paragraphs if part.endswith(".") and "->" not in part), "")
    return found if found[:1].isupper() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the file to write; must be new")
    out = parser.parse_args().out
    lines = [json.dumps(example, ensure_ascii=False) + "\n" for example in examples()]
    with out.open("x", encoding="utf-8") as file:
        file.writelines(lines)
    print(f"{len(lines)} examples in {out}")


if __name__ == "__main__":
    main()
