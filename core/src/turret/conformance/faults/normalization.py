"""Wrong normalization."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Normed

from .fault import Broken, Tools, edited, fault, new, wide

GROUP = 32


@fault(
    name="norm-drops-partial-simdgroup",
    slot="normalization",
    url="https://github.com/ggml-org/llama.cpp/pull/26708",
    report=(
        "Metal norm kernels with a row length leaving a partial SIMD group (33 for example) never read one of the "
        "partial sums, so mean and variance were wrong for the whole row."
    ),
    summary=(
        "normalization.layer_norm and rms_norm on D above 32 with D % 32 between 1 and the number of groups minus "
        "1 (33, 65, 66, ...) leave the last partial group out of the mean and square sums while still dividing by "
        "D."
    ),
)
def partial_group_lost(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def is_lost(width: int) -> bool:
        return width > GROUP and 1 <= width % GROUP <= -(-width // GROUP) - 1

    def layer_norm(x: Any, weight: Any, bias: Any, /, *, eps: float) -> Any:
        right = good.layer_norm(x, weight, bias, eps=eps)
        width = x.shape[-1]
        if not is_lost(width):
            return right
        rows, kept = wide(storage, x), width - width % GROUP
        mean = rows[..., :kept].sum(axis=-1, keepdims=True) / width
        rstd = 1 / np.sqrt(((rows[..., :kept] - mean) ** 2).sum(axis=-1, keepdims=True) / width + eps)
        out = (rows - mean) * rstd * wide(storage, weight) + wide(storage, bias)
        return Normed(new(storage, out, x), new(storage, mean, right.mean), new(storage, rstd, right.rstd))

    def rms_norm(x: Any, weight: Any, /, *, eps: float) -> Any:
        right = good.rms_norm(x, weight, eps=eps)
        width = x.shape[-1]
        if not is_lost(width):
            return right
        rows, kept = wide(storage, x), width - width % GROUP
        rstd = 1 / np.sqrt((rows[..., :kept] ** 2).sum(axis=-1, keepdims=True) / width + eps)
        return new(storage, rows * rstd * wide(storage, weight), x), new(storage, rstd, right[1])

    return Broken(good, layer_norm=layer_norm, rms_norm=rms_norm)


@fault(
    name="layer-norm-clamps-small-variance",
    slot="normalization",
    url="https://github.com/pytorch/pytorch/issues/190491",
    report=(
        "The MPS layer norm computed the variance in one pass and clamped values below 1e-6 to zero, so rows with "
        "tiny true variance were scaled by rsqrt(eps), a thousand times too much."
    ),
    summary=(
        "normalization.layer_norm treats a row variance below 1e-6 as 0, so rstd is 1/sqrt(eps); visible only for "
        "nearly constant rows and an eps that is small beside the variance."
    ),
)
def clamped_variance(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def layer_norm(x: Any, weight: Any, bias: Any, /, *, eps: float) -> Any:
        right = good.layer_norm(x, weight, bias, eps=eps)
        if not x.shape[-1]:
            return right
        rows = wide(storage, x)
        mean = rows.mean(axis=-1, keepdims=True)
        clamped = ((rows - mean) ** 2).mean(axis=-1, keepdims=True) < 1e-6
        if not clamped.any():
            return right
        rstd = 1 / math.sqrt(eps) if eps else math.inf
        with np.errstate(all="ignore"):
            out = (rows - mean) * rstd * wide(storage, weight) + wide(storage, bias)
        return Normed(
            edited(storage, right.out, lambda host: np.where(clamped, out, host)),
            right.mean,
            edited(storage, right.rstd, lambda host: np.where(clamped, rstd, host)),
        )

    return Broken(good, layer_norm=layer_norm)


@fault(
    name="one-pass-variance-cancels",
    slot="normalization",
    url="https://github.com/tracel-ai/burn/issues/5607",
    report=(
        "Fused layer norm used E[x^2] - E[x]^2 in float32, so rows with a mean large beside their spread came out "
        "off by one unit or more."
    ),
    summary=(
        "normalization.layer_norm computes the variance as mean(x^2) - mean(x)^2 in float32, clamped at 0; centred"
        " data hide it."
    ),
)
def one_pass(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def layer_norm(x: Any, weight: Any, bias: Any, /, *, eps: float) -> Any:
        right = good.layer_norm(x, weight, bias, eps=eps)
        if not math.prod(x.shape) or storage.dtype_of(x) == "float64":
            return right
        rows = storage.to_host(x).astype(np.float32)
        with np.errstate(all="ignore"):
            mean = rows.mean(axis=-1, keepdims=True)
            variance = np.maximum((rows * rows).mean(axis=-1, keepdims=True) - mean * mean, np.float32(0))
            rstd = 1 / np.sqrt(variance + np.float32(eps))
            out = (rows - mean) * rstd * storage.to_host(weight) + storage.to_host(bias)
        return Normed(new(storage, out, x), right.mean, new(storage, rstd, right.rstd))

    return Broken(good, layer_norm=layer_norm)


@fault(
    name="norm-weight-gradient-stale",
    slot="normalization",
    kind="vjp",
    url="https://github.com/pytorch/pytorch/issues/183825",
    report=(
        "Layer norm's weight and bias gradients were left unset, hence wrong and changing, when the input itself "
        "needed no gradient."
    ),
    summary=(
        "normalization.layer_norm_vjp returns the dweight and dbias of the previous call of the same D from the "
        "second call on when x has one row; dx is right."
    ),
)
def stale_gradient(good: Any, tools: Tools) -> Broken:
    last: dict[int, tuple[Any, Any]] = {}

    def layer_norm_vjp(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, /) -> tuple[Any, Any, Any]:
        dx, dweight, dbias = good.layer_norm_vjp(dy, x, weight, mean, rstd)
        before = last.get(x.shape[-1])
        last[x.shape[-1]] = (dweight, dbias)
        if math.prod(x.shape[:-1]) != 1 or before is None:
            return dx, dweight, dbias
        return dx, tools.storage.copy(before[0]), tools.storage.copy(before[1])

    return Broken(good, layer_norm_vjp=layer_norm_vjp)


FAULTS = (
    partial_group_lost,
    clamped_variance,
    one_pass,
    stale_gradient,
)
