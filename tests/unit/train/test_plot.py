"""The loss curve is a readable picture, or a word on what is missing."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from turret.spi import DataError, MissingExtra
from turret.train.metrics import StepMetrics
from turret.train.plot import plot_losses, smooth


def records(count: int, every: int) -> list[StepMetrics]:
    noise = np.random.default_rng(0).normal(size=count) * 0.1
    return [
        StepMetrics(
            step=step,
            loss=float(1.8 + 3.7 * np.exp(-step / 100) + noise[step - 1]),
            gradient_norm=1.0,
            clip_scale=1.0,
            learning_rate=1e-3,
            tokens_seen=step * 768,
            seconds=step * 0.1,
            val_loss=2.0 if step % every == 0 else None,
        )
        for step in range(1, count + 1)
    ]


@pytest.mark.parametrize(("count", "every"), [(1, 1), (1, 9), (5, 2), (400, 100), (400, 999), (50_000, 999)])
def test_a_png_of_the_stated_size_with_ink_on_it(tmp_path: Path, count: int, every: int) -> None:
    output = plot_losses(records(count, every), tmp_path / "new" / "loss.png")
    data = output.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1200, 675)
    picture = imread(output)
    assert 0.01 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5
    assert [path.name for path in output.parent.iterdir()] == ["loss.png"]


def test_lines_labels_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (figures.append(figure), save(figure, *a, **k)))
    made = records(400, 100)
    plot_losses(made, tmp_path / "loss.png", title="a $title_ of the user")
    (axes,) = figures[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("optimizer step", "loss (nats per token)")
    assert axes.get_title(loc="left") == "a $title_ of the user"
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == {"training", "training, smoothed", "validation"}
    np.testing.assert_array_equal(lines["training"].get_ydata(), [one.loss for one in made])
    np.testing.assert_array_equal(lines["validation"].get_xdata(), [100, 200, 300, 400])


def test_smoothing_is_a_mean_over_the_neighbours_that_exist() -> None:
    values = np.array([9.0, 1.0, 4.0, 7.0, 2.0, 5.0])
    want = [9, (9 + 1 + 4) / 3, (9 + 1 + 4 + 7 + 2) / 5, (1 + 4 + 7 + 2 + 5) / 5, (4 + 7 + 2 + 5) / 4, (7 + 2 + 5) / 3]
    np.testing.assert_allclose(smooth(values, 5), want, rtol=1e-15)
    np.testing.assert_array_equal(smooth(values, 1), values)


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no step has been logged"):
        plot_losses([], tmp_path / "loss.png")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"loss\.png: the loss curve could not be written"):
        plot_losses(records(3, 1), tmp_path / "file" / "loss.png")


def test_a_missing_matplotlib_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'pip install "core\[plot\]"'):
        plot_losses(records(3, 1), tmp_path / "loss.png")


def test_drawing_leaves_no_global_state(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from turret.train.plot import plot_losses; "
        "from turret.train.metrics import StepMetrics; loaded = 'matplotlib' in sys.modules; "
        "plot_losses([StepMetrics(step=1, loss=1, gradient_norm=1, clip_scale=1, learning_rate=1, tokens_seen=1, "
        "seconds=1)], Path(sys.argv[1])); print(loaded, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.png")], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "False False\n"
