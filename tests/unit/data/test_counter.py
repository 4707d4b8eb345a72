"""Counter-based numbers are Philox4x64-10 as its paper has it, and depend on nothing but their position."""

from __future__ import annotations

import numpy as np
import pytest

from turret.data.counter import Stream, checked_seed, fraction, integers, words
from turret.spi.errors import ConfigError

MASK = (1 << 64) - 1


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64 with ten rounds in Python integers; multipliers and Weyl constants from the paper's table 2."""
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * counter[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * counter[2], 1 << 64)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B97F4A7C15) & MASK, (key[1] + 0xBB67AE8584CAA73B) & MASK]
    return counter


def test_the_reference_itself_gives_the_published_vector() -> None:
    assert philox([0] * 4, [0] * 2) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


@pytest.mark.parametrize("seed", [0, 1, MASK])
@pytest.mark.parametrize("position", [(0, 0), (3, 7), (MASK, MASK)])
def test_words_are_philox_of_seed_stream_and_position(seed: int, position: tuple[int, int]) -> None:
    got = words(seed, Stream.VALIDATION, position, 10).tolist()
    blocks = [philox([block, *position, 0], [seed, 2]) for block in (1, 2, 3)]
    assert got == [word for block in blocks for word in block][:10]


def test_the_stream_numbers_never_change() -> None:
    assert {stream.name: int(stream) for stream in Stream} == {
        "TRAINING": 1,
        "VALIDATION": 2,
        "SAMPLING": 3,
        "EXAMPLE_ORDER": 4,
        "EXAMPLE_SPLIT": 5,
    }


def test_integers_stay_below_the_limit_and_reach_beyond_32_bits() -> None:
    drawn = integers(5, Stream.TRAINING, (0, 0), 4000, 10 * 2**30)
    assert drawn.min() >= 0 and drawn.max() < 10 * 2**30
    assert abs(drawn.mean() / (5 * 2**30) - 1) < 0.05
    assert integers(5, Stream.TRAINING, (0, 0), 3, 1).tolist() == [0, 0, 0]


def test_fractions_lie_in_the_half_open_unit_interval() -> None:
    drawn = np.array([fraction(0, Stream.SAMPLING, (n, 0)) for n in range(2000)])
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 4 / np.sqrt(12 * 2000)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "1", None])
def test_a_seed_is_an_integer_of_64_bits(seed: object) -> None:
    with pytest.raises(ConfigError, match="want an integer from 0"):
        checked_seed(seed)  # type: ignore[arg-type]
