"""The picture of a run: its loss over the steps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from turret.files import replace_file
from turret.spi import DataError, MissingExtra
from turret.train.metrics import StepMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW, _MOST_POINTS = 20, 20_000  # under the first, markers; over the second, every n-th step
_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d9610f", "#555555"


def plot_losses(records: Sequence[StepMetrics], output: Path, *, title: str = "") -> Path:
    """Draw training and validation loss (nats per token) over the steps as a PNG at `output`, and return it.

    Raises: MissingExtra without matplotlib; DataError without records, or if the file cannot be written.
    """
    if not records:
        raise DataError("no step has been logged: there is no loss to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('a loss curve needs matplotlib; install it with: pip install "core[plot]"') from error
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure.add_subplot(), records, title)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, png.getvalue())
    except OSError as error:
        raise DataError(f"{output}: the loss curve could not be written ({error})") from error
    return output


def smooth(values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """Moving average centred on each value, over `width` (odd) values where they exist.

    Near the start, where a loss falls fastest, both sides shrink alike; at the end only the missing side does.
    values: (N,); returns (N,).
    """
    index = np.arange(len(values))
    back = np.minimum(index, width // 2)
    ahead = np.minimum(back, len(values) - 1 - index)
    total = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray((total[index + ahead + 1] - total[index - back]) / (back + ahead + 1))


def _draw(axes: Axes, records: Sequence[StepMetrics], title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    steps = np.array([record.step for record in records])
    losses = np.array([record.loss for record in records], dtype=np.float64)
    if len(records) < _FEW:
        axes.plot(steps, losses, color=_BLUE, linewidth=0.8, marker=".", label="training")
    else:
        thin = slice(None, None, -(-len(steps) // _MOST_POINTS))
        axes.plot(steps[thin], losses[thin], color=_BLUE, alpha=0.3, linewidth=0.8, label="training")
        smoothed = smooth(losses, len(losses) // 40 | 1)
        axes.plot(steps[thin], smoothed[thin], color=_BLUE, linewidth=1.8, label="training, smoothed")
    _draw_validation(axes, [(record.step, record.val_loss) for record in records if record.val_loss is not None])
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title or f"Loss over {records[-1].tokens_seen:,} tokens", loc="left", fontsize=11, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    axes.legend(framealpha=1.0, edgecolor="none")
    axes.grid(color=_GREY, alpha=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_validation(axes: Axes, points: Sequence[tuple[int, float]]) -> None:
    if not points:
        return
    steps, losses = zip(*points, strict=True)
    axes.plot(steps, losses, color=_ORANGE, linewidth=1.2, marker="o", markersize=4, label="validation")
    axes.annotate(
        f"{losses[-1]:.3f}", points[-1], xytext=(0, 8), textcoords="offset points", ha="center", color=_ORANGE
    )
