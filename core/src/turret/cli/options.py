"""Options and argument types that several sub-commands share."""

from __future__ import annotations

import math
from pathlib import Path

import click

from turret.registry.probing import PROBE_SECONDS

LONGEST = 86_400.0


class Seconds(click.FloatRange):
    """A time, from 0.1 s to a day if nothing else is said; NaN, which no comparison refuses, is none."""

    def __init__(self, least: float = 0.1, most: float = LONGEST) -> None:
        super().__init__(min=least, max=most)

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click says float and converts text
        if math.isnan(seconds):
            self.fail(f"{value} is no time; wanted {self.min} to {self.max:.0f} seconds", param, ctx)
        return seconds


class NamedPath(click.Path):
    """A path that was written out: an empty text would silently mean the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            self.fail("an empty path; write `.` for the current folder", param, ctx)
        return Path(str(value))


time_limit = click.option(
    "--time-limit",
    type=Seconds(),
    default=PROBE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long a probe may take before it is killed.",
)
