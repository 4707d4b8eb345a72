"""What each wrong tiled attention gets wrong, and that it is right elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.conformance.faults import flash
from turret.spi import Toolset

Wrong = Callable[[str], Toolset[Any]]


def inputs(queries: int, keys: int, *, heads: int = 4, kv_heads: int = 2, dtype: Any = np.float32) -> Any:
    draw = np.random.default_rng(0)
    shapes = ((2, queries, heads, 8), (2, keys, kv_heads, 8), (2, keys, kv_heads, 8))
    return tuple(draw.standard_normal(shape).astype(dtype) for shape in shapes)


def agree(got: Any, want: Any) -> list[bool]:
    return [bool(np.allclose(a, b, rtol=1e-4, atol=1e-5)) for a, b in zip(got, want, strict=True)]


def test_a_greater_maximum_behind_the_first_tile_is_what_goes_wrong(wrong: Wrong, good: Toolset[Any]) -> None:
    slot, right = wrong("flash-later-maximum-not-rescaled").flash_attention, good.flash_attention
    options: dict[str, Any] = {"scale": 0.5, "offset": 96}
    q, k, v = inputs(3, 100)
    got, want = slot.attend(q, k, v, **options), right.attend(q, k, v, **options)
    later = want.row_max > slot.attend(q, k[:, :64], v[:, :64], **options).row_max
    assert later.any() and not later.all()
    assert agree(got, want) == [False, True, False]
    off = ~np.isclose(got.row_sum, want.row_sum, rtol=1e-4)
    assert np.array_equal(off, later)
    k[:, 64:] = 0
    k[:, 0] = 9 * np.sign(q[:, 0, ::2])  # the first tile has the greatest score of the first query
    short = q[:, :1, ::2]
    assert all(agree(slot.attend(short, k, v, **options), right.attend(short, k, v, **options)))
    assert all(agree(slot.attend(q, k[:, :64], v[:, :64], **options), right.attend(q, k[:, :64], v[:, :64], **options)))


def test_rows_that_see_into_every_tile_are_right(wrong: Wrong, good: Toolset[Any]) -> None:
    slot = wrong("flash-unseen-tile-gives-nan").flash_attention
    q, k, v = inputs(5, 70)
    got, want = (each.attend(q, k, v, scale=0.5, offset=61) for each in (slot, good.flash_attention))
    assert np.isnan(got.out).any(axis=(0, 2, 3)).tolist() == [True, True, True, False, False]
    assert np.isnan(got.row_sum).any(axis=(0, 1)).tolist() == [True, True, True, False, False]
    assert np.array_equal(got.row_max, want.row_max) and np.array_equal(got.out[:, 3:], want.out[:, 3:])
    again = slot.attend(q, k[:, :64], v[:, :64], scale=0.5, offset=0)
    assert np.isfinite(again.out).all()


def test_row_sums_of_halves_stop_growing(wrong: Wrong, good: Toolset[Any]) -> None:
    slot = wrong("flash-row-sum-in-half").flash_attention
    q, k, v = inputs(1, 3000, dtype=np.float16)
    got, want = (each.attend(q, 0 * k, v + 1, scale=0.5, offset=2999) for each in (slot, good.flash_attention))
    assert set(got.row_sum.reshape(-1)) == {2048} and set(want.row_sum.reshape(-1)) == {3000}
    assert np.allclose(got.out, want.out.astype(np.float32) * 3000 / 2048, rtol=2e-3)
    q, k, v = inputs(1, 3000)
    assert all(agree(*(each.attend(q, k, v, scale=0.5, offset=9) for each in (slot, good.flash_attention))))


@pytest.mark.parametrize(("name", "right"), [
    ("flash-backward-ignores-offset", [False, False, False]),
    ("flash-gradient-of-one-head-per-group", [True, False, False]),
])  # fmt: skip
def test_gradients_go_wrong_where_the_summary_says(
    wrong: Wrong, good: Toolset[Any], name: str, right: list[bool]
) -> None:
    slot = wrong(name).flash_attention

    def both(offset: int, **sizes: int) -> list[bool]:
        q, k, v = inputs(5, 9, **sizes)
        saved = good.flash_attention.attend(q, k, v, scale=0.5, offset=offset)
        assert agree(slot.attend(q, k, v, scale=0.5, offset=offset), saved) == [True, True, True]
        slots = slot, good.flash_attention
        return agree(*(each.attend_vjp(q, q, k, v, saved, scale=0.5, offset=offset) for each in slots))

    assert both(4) == right
    harmless = both(0) if "offset" in name else both(4, kv_heads=4)
    assert harmless == [True, True, True]


def test_a_tile_is_as_the_summaries_say() -> None:
    assert flash.TILE == 64
