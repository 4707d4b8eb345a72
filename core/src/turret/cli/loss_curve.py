"""The picture of a run's losses, drawn where a run ends."""

from __future__ import annotations

from pathlib import Path


def draw_curve(out: Path) -> str | None:
    """Draws the losses of the run in `out`; its path, or None, with a notice, where it cannot be drawn."""
    from turret.spi import DataError, MissingExtra
    from turret.train.metrics import read_metrics
    from turret.train.plot import plot_losses
    from turret.train.run import LOSS_CURVE, METRICS

    from .notices import notice

    try:
        records = read_metrics(out / METRICS)
        return str(plot_losses(records, out / LOSS_CURVE)) if records else None
    except (MissingExtra, DataError) as error:  # the run is whole without its picture
        notice(str(error))
        return None
