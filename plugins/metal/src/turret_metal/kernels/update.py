"""The optimizer's update on the GPU: one kernel judges every result, one writes them, both from one table of lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from turret.spi import Adapted

from ..stream import Stream, X
from .source import GROUP, Source, block, kernel

SHARE = 16  # elements of one thread of the judging kernel

# What a step of one tensor needs, in the order in which the numbers lie in the array `settings`.
SETTINGS = (
    "clip",
    "lr",
    "correction1",
    "correction2",
    "beta1",
    "rest1",
    "beta2",
    "rest2",
    "eps",
    "decay",
)

# One element's step: the name of each value, and how it comes about from the ones before.
STEP = (
    ("old", "float(p[at])"),
    ("slope", "float(g[at]) * clip"),
    ("new_m", "beta1 * m[at] + rest1 * slope"),
    ("new_v", "beta2 * v[at] + rest2 * slope * slope"),
    ("root", "metal::precise::sqrt(new_v / correction2) + eps"),
    ("move", "new_m / correction1 / root + decay * old"),
    ("new_p", "old - lr * move"),
)


def _declared(values: Sequence[tuple[str, str]]) -> list[str]:
    return [f"float {name} = {expression};" for name, expression in values]


def _settings() -> list[str]:
    return _declared([(name, f"settings[{i}]") for i, name in enumerate(SETTINGS)])


def judge_body() -> str:
    """Each thread looks at SHARE elements, some apart, and says whether one of its results is not finite."""
    loop = "for (size_t at = thread_position_in_grid.x; at < size; at += threads_per_grid.x)"
    # a first moment that is not finite shows in the parameter
    verdict = "bad = bad || !metal::isfinite(float(P(new_p))) || !metal::isfinite(new_v);"
    return "\n".join(
        [
            "size_t size = sizes[0];",
            *_settings(),
            "bool bad = false;",
            block(loop, [*_declared(STEP), verdict]),
            "out[thread_position_in_grid.x] = bad;",
        ]
    )


def write_body() -> str:
    """Each thread writes one element's results, or its old values where the step is refused."""
    values = (("out_p", "P(new_p)", "p[at]"), ("out_m", "new_m", "m[at]"), ("out_v", "new_v", "v[at]"))
    return "\n".join(
        [
            "size_t at = thread_position_in_grid.x;",
            *_settings(),
            *_declared(STEP),
            *(f"{out}[at] = finite[0] ? {new} : {old};" for out, new, old in values),
        ]
    )


JUDGE = Source(
    name="turret_adam_judge", inputs=("p", "g", "m", "v", "settings", "sizes"), outputs=("out",), body=judge_body()
)
WRITE = Source(
    name="turret_adam_write",
    inputs=("p", "g", "m", "v", "settings", "finite"),
    outputs=("out_p", "out_m", "out_v"),
    body=write_body(),
)


def update(
    do: Stream,
    rows: Sequence[tuple[X, X, X, X, float]],
    rates: tuple[X, X, X, X],
    betas: tuple[float, float],
    eps: float,
    norm: X,
) -> Adapted[X]:
    """New tensors from rows of parameter, gradient, both moments and decay; rates: clip, lr, corrections 1 and 2."""
    settings = {decay: _settled(do, rates, betas, eps, decay) for *_, decay in rows}
    verdicts = [_judged(do, row[:4], settings[row[4]]) for row in rows if row[0].size]
    bad = do(mx.any, do(mx.concatenate, verdicts, axis=0)) if verdicts else mx.array(False)
    finite = do(mx.logical_and, do(mx.isfinite, norm), do(mx.logical_not, bad))
    flag = do(mx.reshape, finite, (1,))
    made = [_written(do, row[:4], settings[row[4]], flag) for row in rows]
    params, first, second = zip(*made, strict=True)
    return Adapted(params, first, second, norm, finite)


def _settled(do: Stream, rates: tuple[X, X, X, X], betas: tuple[float, float], eps: float, decay: float) -> X:
    fixed = mx.array([betas[0], 1 - betas[0], betas[1], 1 - betas[1], eps, decay], dtype=mx.float32)
    return do(mx.concatenate, [*(do(mx.reshape, rate, (1,)) for rate in rates), fixed])


def _judged(do: Stream, tensors: tuple[X, X, X, X], settings: X) -> X:
    """bool, one for each SHARE elements: whether a result is not finite."""
    size = tensors[0].size
    threads = math.ceil(size / SHARE)
    made: list[X] = do.view(
        kernel(JUDGE),
        inputs=[*tensors, settings, mx.array([size], dtype=mx.int64)],
        template=[("P", tensors[0].dtype)],
        grid=(threads, 1, 1),
        threadgroup=(min(threads, GROUP), 1, 1),
        output_shapes=[(threads,)],
        output_dtypes=[mx.bool_],
    )
    return made[0]


def _written(do: Stream, tensors: tuple[X, X, X, X], settings: X, finite: X) -> tuple[X, X, X]:
    p, _, m, v = tensors
    if not p.size:
        return p, m, v
    made: list[X] = do.view(
        kernel(WRITE),
        inputs=[*tensors, settings, finite],
        template=[("P", p.dtype)],
        grid=(p.size, 1, 1),
        threadgroup=(min(p.size, GROUP), 1, 1),
        output_shapes=[p.shape, m.shape, v.shape],
        output_dtypes=[p.dtype, m.dtype, v.dtype],
    )
    new_p, new_m, new_v = made
    return new_p, new_m, new_v
