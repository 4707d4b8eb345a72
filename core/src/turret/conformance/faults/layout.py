"""Wrong rearrangement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turret.spi import Host, Shape

from .fault import Broken, Remembered, Tools, edited, fault


@fault(
    name="pad-value-lost-through-slice",
    slot="layout",
    url="https://github.com/tinygrad/tinygrad/issues/2194",
    report=(
        "Reading a padded array whole showed the padding value, but slicing out just the padded part gave zero, "
        "because the view kept the mask and lost the fill value."
    ),
    summary=(
        "layout.slice applied to a result of layout.pad with a non-zero value returns 0 where the sliced region "
        "lies completely inside the padding (the wrapper remembers pad results by identity)."
    ),
)
def fill_value_lost(good: Any, tools: Tools) -> Broken:
    padded = Remembered()

    def pad(x: Any, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> Any:
        result = good.pad(x, widths, value=value)
        if value != 0 and result is not x:
            padded.keep(result, [(before, before + n) for (before, _), n in zip(widths, x.shape, strict=True)])
        return result

    def cut(x: Any, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> Any:
        result = good.slice(x, start, stop, step=step)
        inner = padded.about(x)
        if inner is None or not any(
            last <= low or first >= high for first, last, (low, high) in zip(start, stop, inner, strict=True)
        ):
            return result
        return edited(tools.storage, result, lambda host: host * 0)

    return Broken(good, pad=pad, slice=cut)


@fault(
    name="concatenate-of-unit-columns",
    slot="layout",
    url="https://github.com/tenstorrent/tt-metal/issues/21581",
    report=(
        "Concatenating arrays whose last axis is 1 along that last axis gave the right first element and zeros for"
        " all the others."
    ),
    summary=(
        "layout.concatenate along the last axis, when every input has size 1 there and there are three or more "
        "inputs, keeps the first input's column and puts zeros in the others."
    ),
)
def first_column_alone(good: Any, tools: Tools) -> Broken:
    def concatenate(xs: Sequence[Any], /, *, axis: int) -> Any:
        result = good.concatenate(xs, axis=axis)
        if axis != len(result.shape) - 1 or len(xs) < 3 or any(x.shape[-1] != 1 for x in xs):
            return result

        def drop(host: Host) -> None:
            host[..., 1:] = 0

        return edited(tools.storage, result, drop)

    return Broken(good, concatenate=concatenate)


FAULTS = (fill_value_lost, first_column_alone)
