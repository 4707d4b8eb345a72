from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.derived import random

LARGEST = 2**64 - 1


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 2), (63,)])
@pytest.mark.parametrize("kind", ["bits", "uniform", "normal"])
def test_values_depend_on_key_counter_and_shape_alone(bench: Any, kind: str, shape: tuple[int, ...]) -> None:
    draw = getattr(bench.tools.random, kind)
    once, again = (bench.get(draw(shape, key=7, counter=3)) for _ in range(2))
    assert once.shape == shape and once.tobytes() == again.tobytes()
    assert once.dtype == (np.int32 if kind == "bits" else np.float32)


def test_the_bits_are_those_of_philox(bench: Any) -> None:
    """Four words of ten rounds of Philox4x64 (Salmon et al. 2011, section 3.3), worked out here in plain integers."""

    def philox(key: list[int], counter: list[int]) -> list[int]:
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
            counter = [b >> 64 ^ counter[1] ^ key[0], b % 2**64, a >> 64 ^ counter[3] ^ key[1], a % 2**64]
            key = [(key[0] + 0x9E3779B97F4A7C15) % 2**64, (key[1] + 0xBB67AE8584CAA73B) % 2**64]
        return counter

    words = philox([11, 0], [1, 0, 5, 0])
    want = np.array([half for w in words for half in (w & 0xFFFFFFFF, w >> 32)], np.uint32).view(np.int32)
    bench.same(bench.tools.random.bits((8,), key=11, counter=5), want)


def test_streams_of_neighbours_do_not_overlap(eager_bench: Any) -> None:
    draws = [
        eager_bench.get(eager_bench.tools.random.bits((4096,), key=key, counter=counter))
        for key, counter in ((0, 0), (0, 1), (1, 0), (LARGEST, 0), (0, LARGEST), (LARGEST, LARGEST))
    ]
    assert len(np.unique(np.concatenate([d.reshape(-1, 2) for d in draws]), axis=0)) == 6 * 2048


def test_bits_are_evenly_set(eager_bench: Any) -> None:
    words = eager_bench.get(eager_bench.tools.random.bits((20000,), key=1, counter=2)).view(np.uint32)
    share = np.array([(words >> np.uint32(i) & 1).mean() for i in range(32)])
    assert np.abs(share - 0.5).max() < 5 * 0.5 / math.sqrt(20000)


def test_uniform_fills_its_half_open_interval(eager_bench: Any) -> None:
    drawn = eager_bench.get(eager_bench.tools.random.uniform((20000,), key=1, counter=2)).astype(np.float64)
    assert drawn.min() >= 0 and drawn.max() < 1
    assert np.histogram(drawn, 10, (0, 1))[0] == pytest.approx(np.full(10, 2000), abs=5 * math.sqrt(2000))


def test_normal_has_the_moments_of_the_normal_distribution(eager_bench: Any) -> None:
    drawn = eager_bench.get(eager_bench.tools.random.normal((40001,), key=1, counter=2)).astype(np.float64)
    assert np.isfinite(drawn).all()
    moments = [(drawn**n).mean() for n in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.1)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_no_word_gives_an_infinite_normal_or_a_uniform_of_one(
    eager_bench: Any, monkeypatch: pytest.MonkeyPatch, word: int
) -> None:
    monkeypatch.setattr(random, "_words", lambda count, key, counter: np.full(count, word, np.uint32))
    assert np.abs(eager_bench.get(eager_bench.tools.random.normal((4,), key=0, counter=0))).max() < 6.7
    assert 0 <= eager_bench.get(eager_bench.tools.random.uniform((1,), key=0, counter=0))[0] < 1


def test_a_shape_only_arranges_the_values(eager_bench: Any) -> None:
    for kind in ("bits", "uniform", "normal"):
        draw = getattr(eager_bench.tools.random, kind)
        wide = eager_bench.get(draw((3, 4), key=9, counter=0))
        assert np.array_equal(wide.reshape(-1), eager_bench.get(draw((12,), key=9, counter=0)))
