"""Options that several of these commands share."""

from __future__ import annotations

import click

from turret.conformance.runner import TIMEOUT_S

from ..options import Seconds

seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of all inputs."
)
timeout_option = click.option(
    "--timeout-s",
    type=Seconds(),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long one case may take before it is killed and counted as timed out.",
)
