"""The published error of NF4 on normal numbers, on every backend that runs here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.derived.quantized_linear import dynamic_levels, linear_levels
from turret.quant import PackedWeight
from turret.registry import OpenBackend
from turret.spi import ScaleCode
from turret.tensor import tensor

COUNT = 2**20
# block: mean absolute and mean relative error of bitsandbytes' own expectations.
TABLE = {
    32: (0.067746, 0.189726),
    64: (0.072798, 0.203339),
    128: (0.076831, 0.215237),
    256: (0.080337, 0.226105),
    4096: (0.092547, 0.262473),
}
# How much coded scales add to the absolute error, measured from the published construction on 2^22 samples.
MORE: dict[ScaleCode, dict[int, float]] = {
    "dynamic": {32: 1.46e-4, 64: 7.3e-5, 128: 3.8e-5},
    "linear": {32: 1.06e-4, 64: 5.2e-5, 128: 2.6e-5},
}


def mean_error(weight: Any, block: int, scales: ScaleCode) -> tuple[float, float]:
    unpacked = PackedWeight.pack(tensor(weight), block=block, scales=scales).unpack().numpy()
    error = np.abs(unpacked.astype(np.float64) - weight)
    return float(error.mean()), float((error / (np.abs(weight) + 1e-8)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("block", TABLE)
def test_errors_are_the_published_ones(each: OpenBackend, normal: Any, block: int) -> None:
    weight = normal(COUNT, seed=block)
    absolute, relative = mean_error(weight, block, "float32")
    noise = 0.4 * (block / COUNT) ** 0.5 + 2e-3  # four deviations: the scale of a block varies by a tenth
    assert absolute == pytest.approx(TABLE[block][0], rel=noise)
    assert relative == pytest.approx(TABLE[block][1], rel=noise)
    for scales in MORE:
        more = mean_error(weight, block, scales)[0] - absolute
        assert abs(more - MORE[scales].get(block, 1e-5)) < 4e-5, (scales, more)


@pytest.mark.slow
@pytest.mark.parametrize(("scales", "want"), [("dynamic", 1.61e-3), ("linear", 1.19e-3)])
def test_coded_scales_are_as_close_as_published(each: OpenBackend, normal: Any, scales: ScaleCode, want: float) -> None:
    weight = tensor(normal(COUNT, seed=3))
    plain = PackedWeight.pack(weight).scales.numpy()
    coded = PackedWeight.pack(weight, scales=scales).arrays()
    levels = {"dynamic": dynamic_levels, "linear": linear_levels}[scales]()
    again = levels[coded["scales"]] * np.repeat(coded["group_scales"], 256)[: plain.size] + coded["offset"]
    assert np.abs(again / plain - 1).mean() == pytest.approx(want, rel=0.1)
