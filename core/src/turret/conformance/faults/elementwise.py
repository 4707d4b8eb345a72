"""Wrong element-wise arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import FLOATS, DType

from .fault import Broken, Tools, Views, edited, fault, wide


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


@fault(
    name="transposed-operand-read-packed",
    slot="elementwise",
    views=True,
    url="https://github.com/pytorch/pytorch/issues/118115",
    report=(
        "A fused multiply-divide on MPS ignored strides, so optimizers on transposed parameters computed with "
        "permuted elements; contiguous inputs were right."
    ),
    summary=(
        "elementwise.add, multiply and divide with equal shapes and exactly one operand that came out of "
        "layout.transpose read that operand in storage order."
    ),
)
def packed_operand(good: Any, tools: Tools, views: Views) -> Broken:
    def is_turned(x: Any) -> bool:
        view = None if isinstance(x, int | float) else views.about(x)
        return view is not None and view.method == "transpose"

    def misreading(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def call(a: Any, b: Any, /) -> Any:
            numbers = isinstance(a, int | float) or isinstance(b, int | float)
            if numbers or tuple(a.shape) != tuple(b.shape) or is_turned(a) == is_turned(b):
                return operation(a, b)
            packed = [views.packed(tools.storage, x) if is_turned(x) else x for x in (a, b)]
            return operation(packed[0], packed[1])

        return call

    return Broken(good, **{name: misreading(getattr(good, name)) for name in ("add", "multiply", "divide")})


@fault(
    name="unselected-value-multiplied-by-zero",
    slot="elementwise",
    url="https://github.com/flagos-ai/FlagGems/issues/5755",
    report=(
        "A kernel evaluated the ignored operand times zero instead of skipping it, so NaN or infinity in a value "
        "that must not matter spread to the result."
    ),
    summary=(
        "elementwise.where is computed as c * a + (1 - c) * b, so NaN or infinity in the branch not chosen gives NaN."
    ),
)
def weighed_choice(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def where(condition: Any, a: Any, b: Any, /) -> Any:
        result = good.where(condition, a, b)
        if storage.dtype_of(result) not in FLOATS:
            return result
        chosen = storage.to_host(condition)
        finite = [np.isfinite(x if isinstance(x, int | float) else wide(storage, x)) for x in (a, b)]
        poisoned = ~(np.where(chosen, finite[1], finite[0]) & np.ones(result.shape, bool))
        return edited(storage, result, lambda host: np.where(poisoned, math.nan, host)) if poisoned.any() else result

    return Broken(good, where=where)


@fault(
    name="scalar-operand-widens-dtype",
    slot="elementwise",
    url="https://github.com/chainer/chainer/issues/421",
    report="Multiplying a float32 GPU array by a Python integer returned float64, unlike NumPy.",
    summary=(
        "elementwise.multiply and add with a Python int on the left of a float32 array return float64 where the "
        "library has it (float16 becomes float32); values are right, dtype_of is wrong."
    ),
)
def widening_scalar(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def widening(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def call(a: Any, b: Any, /) -> Any:
            result = operation(a, b)
            if not isinstance(a, int):
                return result
            wider: DType = "float64" if storage.dtype_of(result) == "float32" else "float32"
            narrow = storage.dtype_of(result) in ("float32", "float16")
            return storage.cast(result, wider) if narrow and wider in storage.device().dtypes else result

        return call

    return Broken(good, multiply=widening(good.multiply), add=widening(good.add))


FAULTS = (
    number_wins,
    overflowing_tanh,
    packed_operand,
    weighed_choice,
    widening_scalar,
)
