"""The words users type for a backend: their grammar, what is close to them, and how to install them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from turret.spi import BackendNotFound, ConfigError

AUTO = "auto"
KNOWN = ("cpu", "cuda", "metal", "tpu")
NAME = re.compile(r"[a-z][a-z0-9_]*")
_SPEC = re.compile(rf"(?P<name>{NAME.pattern})(:(?P<device>[a-z0-9][a-z0-9_.-]*))?")


def pip_command(word: str) -> str:
    """The command that installs a backend known to core, or "" for a stranger's."""
    return f'pip install "core[{word}]"' if word in KNOWN else ""


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed `<backend>[:<device>]`; the device is "" where the backend's default is meant."""

    name: str
    device: str = ""

    @classmethod
    def parse(cls, text: object, *, source: str = "backend") -> Spec:
        """Strict: lower case, no spaces, nothing empty. `source` names where the text came from.

        Raises: ConfigError.
        """
        match = _SPEC.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match["name"] == AUTO and match["device"]):
            raise ConfigError(f"{source}={text!r} is not a backend; {_wanted(text, source)}")
        return cls(match["name"], match["device"] or "")

    def __str__(self) -> str:
        return f"{self.name}:{self.device}" if self.device else self.name


def _wanted(text: object, source: str) -> str:
    grammar = 'wanted <name> or <name>:<device>, such as "cpu" or "cuda:1", or "auto"'
    if not isinstance(text, str):
        return grammar
    if not text.strip():
        return f"{grammar}; leave {source} unset to let turret choose"
    tidy = re.sub(r"\s", "", text).lower().strip(":")
    if tidy.partition(":")[0] == AUTO:
        tidy = AUTO
    return f'{grammar}; did you mean "{tidy}"?' if _SPEC.fullmatch(tidy) else grammar


def not_found(spec: Spec, installed: Iterable[str], *, source: str = "backend") -> BackendNotFound:
    """The error for a name that no installed plugin has: what is there, what is close, what to install."""
    here = sorted(installed)
    found = ", ".join(here) or "none"
    parts = [f"{source}={str(spec)!r}: no installed plugin is named {spec.name!r}; installed: {found}"]
    if spec.name in KNOWN:
        parts.append(f"install it with: {pip_command(spec.name)}")
    elif close := difflib.get_close_matches(spec.name, [*here, *KNOWN], n=1):
        command = "" if close[0] in here else f" Install it with: {pip_command(close[0])}"
        parts.append(f"did you mean {close[0]!r}?{command}")
    elif not here:
        parts.append(f"install one, for example with: {pip_command('cpu')}")
    return BackendNotFound("; ".join(parts))
