"""Whether a plugin's data is well formed and its SPI range fits this core."""

from __future__ import annotations

import re
from typing import cast

from turret.spi import DTYPES, OPTIONAL_SLOTS, SPI_VERSION, BackendInfo, PluginError, SpiMismatch

from .names import AUTO, NAME

_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)(\d+)(?:\.(\d+))?")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TEXTS = ("name", "distribution", "spi", "target", "probe", "devices", "install_hint")
_SETS = ("provides", "dtypes", "stand_in_devices")


def check(info: object) -> BackendInfo:
    """`info` itself, once every field is what `BackendInfo` promises and the SPI range holds this core's version.

    Raises: PluginError, SpiMismatch.
    """
    if not isinstance(info, BackendInfo):
        raise PluginError(f"turret_backends() gave {info!r}, wanted BackendInfo")
    for field in _TEXTS:
        _require(isinstance(getattr(info, field), str), info, field, "text")
    for field in _SETS:
        value = getattr(info, field)
        holds = isinstance(value, frozenset) and all(isinstance(word, str) for word in value)
        _require(holds, info, field, "a frozenset of text")
    _require(isinstance(info.score, int) and not isinstance(info.score, bool), info, "score", "a whole number")
    check_spi(info)
    _require(NAME.fullmatch(info.name) is not None and info.name != AUTO, info, "name", "a lower-case word, not auto")
    _require(info.distribution != "", info, "distribution", "what pip installs")
    for field in ("target", "probe"):
        _require(_TARGET.fullmatch(getattr(info, field)) is not None, info, field, '"package.module:name"')
    _require(info.provides <= set(OPTIONAL_SLOTS), info, "provides", f"slots out of {', '.join(OPTIONAL_SLOTS)}")
    _require(cast("frozenset[str]", info.dtypes) <= set(DTYPES), info, "dtypes", f"names out of {', '.join(DTYPES)}")
    return info


def check_spi(info: BackendInfo, core: tuple[int, int] = SPI_VERSION) -> None:
    """Whether `info.spi`, a comma-separated list of comparisons, holds `core`.

    Raises: PluginError where the range cannot be read; SpiMismatch naming both versions and the way out.
    """
    broken = [operator for operator, version in _comparisons(info) if not _holds(core, operator, version)]
    if not broken:
        return
    older = "core" if all(operator.startswith(">") for operator in broken) else info.distribution
    raise SpiMismatch(
        f"backend {info.name!r} of {info.distribution} was written for SPI {info.spi}, this core has SPI "
        f"{core[0]}.{core[1]}; {older} is the older one: pip install --upgrade {older}"
    )


def _comparisons(info: BackendInfo) -> list[tuple[str, tuple[int, int]]]:
    parts = [_COMPARISON.fullmatch(part.strip()) for part in info.spi.split(",")]
    found = [(part[1], (int(part[2]), int(part[3] or 0))) for part in parts if part is not None]
    _require(len(found) == len(parts), info, "spi", 'a list of comparisons such as ">=1.0,<2"')
    return found


def _holds(core: tuple[int, int], operator: str, version: tuple[int, int]) -> bool:
    return {
        ">=": core >= version,
        "<=": core <= version,
        "==": core == version,
        "!=": core != version,
        ">": core > version,
        "<": core < version,
    }[operator]


def _require(holds: bool, info: BackendInfo, field: str, wanted: str) -> None:
    if not holds:
        raise PluginError(f"backend {info.name!r} states {field}={getattr(info, field)!r}, wanted {wanted}")
