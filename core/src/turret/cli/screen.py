"""Text of a model or a file on a terminal: what a terminal would obey is shown instead."""

from __future__ import annotations

import sys

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_SHOWN = {code: f"\\x{code:02x}" for code in _CONTROLS if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """The text with every control character but line feed and tab written out, by its number."""
    return text.translate(_SHOWN)


def for_stdout(text: str) -> str:
    """`visible` where stdout is a terminal; files and other programs get the text as it is."""
    return visible(text) if sys.stdout.isatty() else text
