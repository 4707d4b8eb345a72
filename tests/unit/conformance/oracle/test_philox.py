"""The oracle of random words against published answers and another program."""

from __future__ import annotations

import numpy as np
import pytest

from turret.conformance.oracle import philox

TOP = (1 << 64) - 1
PI = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
PUBLISHED = [  # the known answers that come with the authors' Random123 library
    ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    ((TOP,) * 4, (TOP, TOP), (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)),
    (
        PI,
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_a_block_is_the_published_one(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox.block(counter, key) == words


@pytest.mark.parametrize(("key", "counter"), [(0, 0), (5, 7), (TOP, TOP), (1 << 63, 12)])
def test_a_stream_is_that_of_numpy(key: int, counter: int) -> None:
    raw = np.random.Philox(key=key, counter=counter << 128).random_raw(33)
    np.testing.assert_array_equal(philox.bits((11, 6), key=key, counter=counter).reshape(-1), raw.view("<i4"))
