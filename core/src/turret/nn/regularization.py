"""Dropout: where it is on, what it draws, and attention whose probabilities are dropped."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

from turret.spi import ConfigError
from turret.tensor import RandomStream, Tensor, checkpoint, ops
from turret.tensor.tracing import shapes_programs

ROWS = 128
"""Query rows whose probabilities are in memory together where attention is memory-linear."""

_stream: ContextVar[RandomStream | None] = shapes_programs(ContextVar("turret_dropping", default=None))


@contextlib.contextmanager
def dropping(stream: RandomStream | None) -> Iterator[None]:
    """Layers inside drop at their rates, with masks from `stream`; None, as outside: nothing is dropped.

    A generator must not yield inside: its caller would be inside as well.
    Raises: ConfigError for what is no RandomStream.
    """
    if stream is not None and not isinstance(stream, RandomStream):
        raise ConfigError(f"dropping got {type(stream).__name__}; wanted a turret.tensor.RandomStream, or None")
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

    Source: Srivastava et al. 2014, section 10 (the inverted form). Raises: ConfigError as `check_rate`.
    """
    check_rate("dropout", rate)
    stream = _stream.get()
    if stream is None or not rate:
        return x
    return _masked(x, stream.bernoulli(1 - rate, *x.shape), rate)


def _masked(x: Tensor, kept: Tensor, rate: float) -> Tensor:
    return ops.where(kept, x * (1 / (1 - rate)), 0.0)


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, rate: float, linear_memory: bool) -> Tensor:
    """Causal attention whose probabilities go through `dropout`. q: (B, T, H, d), k and v: (B, T, K, d); as q.

    Masks are drawn for `ROWS` query rows at a time, whichever way. linear_memory: only their probabilities are in
    memory at once, and are made again in the backward pass.
    Source: Vaswani et al. 2017, eq. 1 and section 5.4. Raises: ConfigError outside of `dropping`.
    """
    stream = _stream.get()
    if stream is None:
        raise ConfigError("attention with dropped probabilities is called outside of `dropping`, where nothing is")
    (b, t, heads, _), keys = q.shape, k.shape[1]
    pieces = [(start, min(start + ROWS, t)) for start in range(0, t, ROWS)]

    def kept(start: int, stop: int) -> Tensor:
        return stream.bernoulli(1 - rate, b, heads, stop - start, stop)

    def piece(start: int, stop: int) -> Tensor:
        def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _mixed(q, k, v, kept(start, stop), start, scale, rate)

        return checkpoint(rows, q[:, start:stop], k[:, :stop], v[:, :stop])

    if linear_memory:
        return ops.concatenate([piece(*each) for each in pieces], axis=1)
    masks = [ops.pad(kept(*each), [(0, 0)] * 3 + [(0, keys - each[1])]) for each in pieces]
    return _mixed(q, k, v, ops.concatenate(masks, axis=2), 0, scale, rate)


def _mixed(q: Tensor, k: Tensor, v: Tensor, kept: Tensor, offset: int, scale: float, rate: float) -> Tensor:
    """Query row i sees keys 0..offset+i; in float32. kept: bool (B, H, T, S)."""
    (b, t, heads, size), (_, s, groups, _) = q.shape, k.shape
    together = heads // groups
    rows = q.cast("float32").transpose(0, 2, 1, 3).reshape(b, groups, together * t, size)
    keys, values = (x.cast("float32").transpose(0, 2, 1, 3) for x in (k, v))
    scores = ops.matmul(rows, keys, transpose_b=True).reshape(b, heads, t, s) * scale
    seen = ops.causal_mask(q, queries=t, keys=s, offset=offset)
    weights = _masked(ops.softmax(ops.where(seen, scores, -math.inf)), kept, rate)
    mixed = ops.matmul(weights.reshape(b, groups, together * t, s), values)
    return mixed.reshape(b, heads, t, size).transpose(0, 2, 1, 3).cast(q.dtype)
