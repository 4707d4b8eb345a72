"""Causal attention inside each of several texts that lie end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turret.spi import ConfigError, Toolset

from ..graph import Native
from ..value import Tensor, record
from .attention import _check

Span = tuple[int, int]
Three = tuple[Native, Native, Native]
Pull = Callable[[Native], Three]
"""The gradient of an output to those of q, k and v."""


def segmented_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, spans: Sequence[Span], linear_memory: bool = False
) -> Tensor:
    """q: (1, N, H, d), k and v: (1, N, K, d), H % K == 0; query i sees the keys of its span up to i. As q.

    spans: (start, stop) that follow one another from 0 to N. linear_memory: probabilities are rebuilt in backward.
    Raises: ConfigError for other spans, ShapeError.
    """
    tools = _check("segmented_attention", q, k, v, 0).tools
    count = q.shape[1]
    edges = [0, *(stop for _, stop in spans)]
    if (
        q.shape[0] != 1
        or k.shape[1] != count
        or edges[-1] != count
        or any(start != before or start >= stop for before, (start, stop) in zip(edges, spans, strict=False))
    ):
        raise ConfigError(
            f"segmented_attention got q {q.shape}, k {k.shape} and {len(spans)} spans that end at {edges[-1]}; wanted "
            f"one row of as many keys as queries, and spans that follow one another from 0 to its end"
        )
    cut, joined = tools.layout.slice, tools.layout.concatenate

    def part(x: Native, span: Span) -> Native:
        return cut(x, (0, span[0], 0, 0), (1, span[1], x.shape[2], x.shape[3]))

    outs: list[Native] = []
    pulls: list[Pull] = []
    for span in spans:
        three = (part(q.value, span), part(k.value, span), part(v.value, span))
        out, pull = _flash(tools, three, scale) if linear_memory else _plain(tools, three, scale)
        outs.append(out)
        pulls.append(pull)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        gradients = [pull(part(dy, span)) for span, pull in zip(spans, pulls, strict=True)]
        return tuple(joined(list(pieces), axis=1) for pieces in zip(*gradients, strict=True))

    return record("segmented_attention", joined(outs, axis=1), q, (q, k, v), vjp)


def _plain(tools: Toolset[Native], qkv: Three, scale: float) -> tuple[Native, Pull]:
    out, probabilities = tools.causal_attention.attend(*qkv, scale=scale, offset=0)
    return out, lambda dy: tools.causal_attention.attend_vjp(dy, *qkv, probabilities, scale=scale)


def _flash(tools: Toolset[Native], qkv: Three, scale: float) -> tuple[Native, Pull]:
    saved = tools.flash_attention.attend(*qkv, scale=scale, offset=0)
    return saved.out, lambda dy: tools.flash_attention.attend_vjp(dy, *qkv, saved, scale=scale, offset=0)
