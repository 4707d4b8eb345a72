"""The ledger of a plugin, `conformance.toml`: what it claims, and which failures are expected, why and until when."""

from __future__ import annotations

import datetime
import importlib.resources
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turret.registry.guard import Failure, attempt
from turret.spi import BackendInfo, ConfigError

from .profiles import PROFILES, matches
from .results import Result, Status

FILE = "conformance.toml"
ENTRY_KEYS = ("case", "reason", "link", "expires")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One expected failure. case: an id or a pattern with `*`. expires: the last day on which it is accepted."""

    case: str
    reason: str
    link: str
    expires: datetime.date


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """profiles: what the plugin claims. source: where it was read, for messages."""

    source: str = ""
    profiles: tuple[str, ...] = ()
    expected: tuple[Entry, ...] = ()


def read(path: Path) -> Ledger:
    """The ledger in a file. Raises: ConfigError for anything that is not exactly one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"ledger {path}: {error.strerror}; give a readable {FILE}") from error
    return parse(data, str(path))


def of_plugin(info: BackendInfo) -> Ledger:
    """The ledger that lies beside the plugin's target as package data; an empty one where there is none.

    A package that cannot be imported has none: that it cannot be opened either is for the run to say.
    """
    package = info.target.partition(":")[0].rpartition(".")[0]
    if not package:
        return Ledger()
    file = attempt(lambda: importlib.resources.files(package).joinpath(FILE))
    if isinstance(file, Failure) or not file.is_file():
        return Ledger()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{FILE} of {info.distribution}: {error.strerror}; make it readable") from error
    return parse(data, f"{FILE} of {info.distribution}")


def parse(data: bytes, source: str) -> Ledger:
    """Strict: unknown keys, missing keys and wrong types are errors that name the entry."""
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, 5000 open brackets
        raise ConfigError(f"{source} is not TOML: {error}") from error
    if unknown := set(table) - {"profiles", "expected"}:
        raise ConfigError(f"{source}: unknown key {sorted(unknown)[0]!r}; there are: profiles, expected")
    profiles = table.get("profiles", [])
    if not isinstance(profiles, list) or not all(isinstance(each, str) and each in PROFILES for each in profiles):
        raise ConfigError(f"{source}: profiles = {profiles!r}; wanted a list of {', '.join(PROFILES)}")
    entries = table.get("expected", [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ConfigError(f"{source}: `expected` has to be a list of [[expected]] tables")
    return Ledger(
        source=source,
        profiles=tuple(profiles),
        expected=tuple(_entry(each, f"{source}, expected entry {n}") for n, each in enumerate(entries, 1)),
    )


def _entry(table: dict[str, Any], where: str) -> Entry:
    if (got := set(table)) != set(ENTRY_KEYS):
        wrong = [f"lacks {key!r}" for key in ENTRY_KEYS if key not in got]
        wrong += [f"has the unknown key {key!r}" for key in sorted(got - set(ENTRY_KEYS))]
        raise ConfigError(f"{where} {', '.join(wrong)}; wanted exactly {', '.join(ENTRY_KEYS)}")
    for key in ("case", "reason", "link"):
        if not isinstance(table[key], str) or not table[key].strip():
            raise ConfigError(f"{where}: {key} = {table[key]!r}; wanted a text")
    if type(table["expires"]) is not datetime.date:
        raise ConfigError(f"{where}: expires = {table['expires']!r}; wanted a date such as 2027-01-31, without quotes")
    return Entry(**table)


def apply(
    ledger: Ledger, results: list[Result], *, known: frozenset[str], today: datetime.date | None = None
) -> tuple[list[Result], list[str]]:
    """The results with expected failures named as such, and what is wrong with the ledger itself.

    An entry is wrong when it has expired or matches no case of `known` (all ids there are). A case that an entry
    expects to fail and that passes is a failure: the entry has to go.
    """
    today = today or datetime.date.today()
    problems: list[str] = []
    live: list[Entry] = []
    for entry in ledger.expected:
        if not any(matches(case, entry.case) for case in known):
            problems.append(f"{ledger.source}: {entry.case!r} matches no case; remove it or correct the pattern")
        elif entry.expires < today:
            problems.append(f"{ledger.source}: {entry.case!r} expired on {entry.expires}; mend it, or say until when")
        else:
            live.append(entry)
    return [_judged(result, live) for result in results], problems


def _judged(result: Result, live: list[Entry]) -> Result:
    entry = next((each for each in live if matches(result.case, each.case)), None)
    if entry is None:
        return result
    if result.status is Status.PASSED:
        return replace(
            result,
            status=Status.FAILED,
            message=f"passed, but the ledger expects it to fail ({entry.reason}); remove the entry {entry.case!r}",
        )
    if result.status.bad:
        return replace(
            result, status=Status.EXPECTED_FAILURE, message=f"{entry.reason} ({entry.link}): {result.message}"
        )
    return result
