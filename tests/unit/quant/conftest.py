"""NF4 from its published construction, in NumPy, and the backends that a packed weight must mean the same on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import BackendNotFound, BackendUnavailable

X = npt.NDArray[Any]
F = np.float32
SPECS = ("cpu", "minimal", "metal:cpu", "tpu:cpu")

LEVELS = np.array(
    """-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334
    -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224
    0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0""".split(),
    F,
)


@dataclass(frozen=True)
class Made:
    """A weight as the published construction packs it."""

    codes: X
    absmax: X
    decoded: X


class Published:
    """Dettmers et al. 2023, section 3, and the storage of bitsandbytes: each a few lines from the text."""

    levels = LEVELS

    @staticmethod
    def dynamic_map() -> X:
        """float32 as torch.linspace makes it: one step, counted from both ends, and every sum rounded once."""
        levels = [0.0, 1.0]
        for i in range(7):
            n = 2**i
            step, k = float((F(1) - F(0.1)) / F(n)), np.arange(n + 1)
            edges = np.where(k < (n + 1) // 2, float(F(0.1)) + step * k, 1 - step * (n - k)).astype(F)
            middles = (edges[:-1] + edges[1:]) / F(2) * F(10.0 ** (i - 6))
            levels += [*middles.tolist(), *(-middles).tolist()]
        return np.sort(np.array(levels, F))

    @staticmethod
    def exact_dynamic_map() -> X:
        """The same in float64, rounded at the end."""
        middles = [np.diff(e) / 2 + e[:-1] for e in (np.linspace(0.1, 1, 2**i + 1) for i in range(7))]
        positive = np.concatenate([m * 10.0 ** (i - 6) for i, m in enumerate(middles)])
        return np.sort(np.concatenate([positive, -positive, [0, 1]])).astype(F)

    @staticmethod
    def nearest(values: X, block: int, levels: X) -> tuple[X, X]:
        """Blockwise: the index of the nearest level, and the largest magnitude of each block."""
        places, scales = [], []
        middles = ((levels[:-1].astype(float) + levels[1:]) / 2).astype(F)
        for start in range(0, values.size, block):
            part = values[start : start + block]
            scales.append(np.abs(part).max())
            units = np.clip(part / max(scales[-1], F(1e-38)), -1, 1)
            places.append(np.searchsorted(middles, units, side="left"))
        return np.concatenate(places).astype(np.uint8), np.array(scales, F)

    def pack(self, weight: X, block: int) -> Made:
        flat = weight.astype(F).reshape(-1)
        places, absmax = self.nearest(flat, block, LEVELS)
        decoded = LEVELS[places] * np.repeat(absmax, block)[: flat.size]
        if flat.size % 2:
            places = np.append(places, np.uint8(7))
        return Made(places[::2] << 4 | places[1::2], absmax, decoded.reshape(weight.shape))

    def checkpoint(self, name: str, weight: X, block: int, *, nested: X | None = None) -> tuple[dict[str, X], X]:
        """The arrays of a bitsandbytes checkpoint, and the float32 weight that they stand for."""
        made = self.pack(weight, block)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": "float16"}
        state["shape"] = list(weight.shape)
        arrays = {name: made.codes.reshape(-1, 1), f"{name}.absmax": made.absmax, f"{name}.quant_map": LEVELS}
        decoded = made.decoded
        if nested is not None:
            offset = made.absmax.mean(dtype=F)
            codes, absmax2 = self.nearest(made.absmax - offset, 256, nested)
            scales = nested[codes] * np.repeat(absmax2, 256)[: codes.size] + offset
            high, low = made.codes >> 4, made.codes & 15
            places = np.stack([high, low], 1).reshape(-1)[: weight.size]
            decoded = (LEVELS[places] * np.repeat(scales, block)[: weight.size]).reshape(weight.shape)
            arrays |= {f"{name}.absmax": codes, f"{name}.nested_absmax": absmax2, f"{name}.nested_quant_map": nested}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        arrays[f"{name}.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
        assert decoded.dtype == F
        assert math.prod(decoded.shape) == weight.size
        return arrays, decoded


@pytest.fixture(scope="session")
def published() -> Published:
    return Published()


def opened(spec: str) -> OpenBackend:
    try:
        return open_backend(spec)
    except (BackendNotFound, BackendUnavailable) as error:
        pytest.skip(str(error))


@pytest.fixture(
    scope="module", params=[*SPECS[:-1], pytest.param(SPECS[-1], marks=pytest.mark.slow)]
)  # XLA compiles for every shape
def each(request: pytest.FixtureRequest) -> Iterator[OpenBackend]:
    """The current backend: every one that opens on this machine, in turn."""
    with use_backend(opened(request.param)) as backend:
        yield backend


@pytest.fixture(scope="session")
def every() -> list[OpenBackend]:
    """All that open on this machine."""
    found = []
    for spec in SPECS:
        try:
            found.append(open_backend(spec))
        except (BackendNotFound, BackendUnavailable):
            continue
    assert found
    return found


@pytest.fixture
def normal() -> Any:
    """Normal float32 numbers of a shape, the same in every test."""
    return lambda *shape, seed=0: np.random.default_rng(seed).normal(size=shape).astype(F)
