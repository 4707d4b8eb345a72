"""Wrong element-wise arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .fault import Broken, Tools, fault


@fault(
    name="maximum-drops-nan-on-the-right",
    slot="elementwise",
    url="https://github.com/openvinotoolkit/openvino/pull/37931",
    report=(
        "The GPU maximum and minimum kernels used fmax and fmin, which return the operand that is a number, so a "
        "NaN met by a number vanished while the CPU plugin kept it."
    ),
    summary=(
        "elementwise.maximum and minimum return the left operand wherever only the right one is NaN; NaN on the "
        "left still wins."
    ),
)
def number_wins(good: Any, tools: Tools) -> Broken:
    def losing(extreme: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def call(a: Any, b: Any, /) -> Any:
            result = extreme(a, b)
            return result if isinstance(b, int | float) else good.where(good.equal(b, b), result, a)

        return call

    return Broken(good, maximum=losing(good.maximum), minimum=losing(good.minimum))


@fault(
    name="tanh-nan-above-forty-five",
    slot="elementwise",
    url="https://github.com/apache/tvm/pull/16438",
    report=(
        "tanh on Metal was evaluated as (t-1)/(t+1) with t=exp(2x), so it became NaN for x above about 45 instead of 1."
    ),
    summary=(
        "elementwise.tanh computes (exp(2x)-1)/(exp(2x)+1) directly: NaN for x > 44, right for every smaller and "
        "every negative value."
    ),
)
def overflowing_tanh(good: Any, tools: Tools) -> Broken:
    def tanh(x: Any, /) -> Any:
        # exp(2x) leaves the range of float32, in which halves are computed as well, or that of float64
        limit = 354.8 if tools.storage.dtype_of(x) == "float64" else 44.36
        return good.where(good.less(limit, x), math.nan, good.tanh(x))

    return Broken(good, tanh=tanh)


FAULTS = (number_wins, overflowing_tanh)
