"""Dropout: where it is on, what it draws, and attention whose probabilities are dropped."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

from turret.spi import ConfigError
from turret.tensor import RandomStream, Tensor, checkpoint, ops

ROWS = 128
"""Query rows whose probabilities are in memory together where attention is memory-linear."""

_stream: ContextVar[RandomStream | None] = ContextVar("turret_dropping", default=None)


@contextlib.contextmanager
def dropping(stream: RandomStream | None) -> Iterator[None]:
    """Layers inside drop at their rates, with masks from `stream`; None, as outside: nothing is dropped."""
    token = _stream.set(stream)
    try:
        yield
    finally:
        _stream.reset(token)


def check_rate(what: str, rate: float) -> None:
    """Raises: ConfigError for a rate outside 0 <= rate < 1."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ConfigError(f"{what} {rate!r}; wanted a rate of at least 0 and below 1")


def drops(rate: float) -> bool:
    """Whether a layer of this rate drops anything here."""
    return rate > 0 and _stream.get() is not None


def dropout(x: Tensor, rate: float) -> Tensor:
    """Each element with probability `rate` 0, else divided by 1 - rate; x itself outside of `dropping`.

    Source: Srivastava et al. 2014, section 10 (the inverted form).
    """
    stream = _stream.get()
    if stream is None or not rate:
        return x
    kept = stream.bernoulli(1 - rate, *x.shape)
    return ops.where(kept, x * (1 / (1 - rate)), 0.0)


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, rate: float, linear_memory: bool) -> Tensor:
    """Causal attention whose probabilities go through `dropout`. q: (B, T, H, d), k and v: (B, T, K, d); as q.

    linear_memory: the probabilities of a few query rows at a time, made again in the backward pass with the same masks.
    Source: Vaswani et al. 2017, eq. 1 and section 5.4.
    """
    if not linear_memory:
        return _dropped_rows(q, k, v, 0, scale, rate)
    parts = []
    for start in range(0, q.shape[1], ROWS):
        stop = min(start + ROWS, q.shape[1])
        parts.append(
            checkpoint(
                lambda q, k, v, start=start: _dropped_rows(q, k, v, start, scale, rate),
                q[:, start:stop],
                k[:, :stop],
                v[:, :stop],
            )
        )
    return ops.concatenate(parts, axis=1)


def _dropped_rows(q: Tensor, k: Tensor, v: Tensor, offset: int, scale: float, rate: float) -> Tensor:
    """Query row i sees keys 0..offset+i; in float32."""
    (b, t, heads, size), (_, s, groups, _) = q.shape, k.shape
    together = heads // groups
    rows = q.cast("float32").transpose(0, 2, 1, 3).reshape(b, groups, together * t, size)
    keys, values = (x.cast("float32").transpose(0, 2, 1, 3) for x in (k, v))
    scores = ops.matmul(rows, keys, transpose_b=True).reshape(b, heads, t, s) * scale
    seen = ops.causal_mask(q, queries=t, keys=s, offset=offset)
    weights = dropout(ops.softmax(ops.where(seen, scores, -math.inf)), rate)
    mixed = ops.matmul(weights.reshape(b, groups, together * t, s), values)
    return mixed.reshape(b, heads, t, size).transpose(0, 2, 1, 3).cast(q.dtype)
