"""Writes the reference pages from the code and the stored reports, or checks that they are fresh.

python scripts/generate_reference.py            writes the pages of docs/reference that are named in PAGES
python scripts/generate_reference.py --check    writes nothing; fails and names the pages that are out of date
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
MAKERS = {"md": "page", "html": "scoreboard"}
PAGES = {
    "spi": ("md",),
    "cli": ("md",),
    "api": ("md",),
    "backends": ("md", "html"),
    "faults": ("md",),
    "cuda_kernels": ("md",),
    "device_check": ("md",),
}


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where `--check` finds an old page."""
    parser = argparse.ArgumentParser(description="Write or check the generated reference pages.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page is out of date")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"which of {', '.join(PAGES)}; left out: all")
    options = parser.parse_args(arguments)
    if unknown := set(options.pages) - set(PAGES):
        parser.error(f"no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    old = []
    for name, suffix in [(page, suffix) for page in options.pages or PAGES for suffix in PAGES[page]]:
        path = REFERENCE / f"{name}.{suffix}"
        text: str = getattr(import_module(f"reference.{name}"), MAKERS[suffix])()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        old.append(path.name)
        if not options.check:
            path.write_text(text, encoding="utf-8")
    if options.check and old:
        print(f"out of date: {', '.join(old)}; run python scripts/generate_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
