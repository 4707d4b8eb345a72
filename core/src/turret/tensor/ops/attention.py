"""Causal attention over all keys at once, and its memory-linear form."""

from __future__ import annotations

from turret.registry import OpenBackend
from turret.spi import ConfigError, ShapeError

from ..graph import Native
from ..value import Tensor, record, same_backend, same_floats


def _check(name: str, q: Tensor, k: Tensor, v: Tensor, offset: int) -> OpenBackend:
    backend = same_floats(name, q, k, v)
    sq, sk = q.shape, k.shape
    if len(sq) != 4 or len(sk) != 4 or sk != v.shape or sq[0] != sk[0] or sq[3] != sk[3] or sk[1] == 0:
        raise ShapeError(
            f"{name} got q {sq}, k {sk}, v {v.shape}; wanted q (B, T, H, d), k and v (B, S, K, d) with S >= 1"
        )
    if sk[2] == 0 or sq[2] % sk[2]:
        raise ShapeError(f"{name}: {sq[2]} query heads do not divide over {sk[2]} key-value heads")
    if offset < 0:
        raise ConfigError(f"{name} got offset {offset}; wanted the number of earlier keys, >= 0")
    return backend


def causal_mask(like: Tensor, *, queries: int, keys: int, offset: int = 0) -> Tensor:
    """bool (queries, keys): query i sees key j where j <= offset + i. On the backend of `like`; no gradient."""
    if min(queries, keys, offset) < 0:
        raise ConfigError(f"causal_mask got {queries} queries, {keys} keys and offset {offset}; wanted counts >= 0")
    tools = same_backend("causal_mask", like).tools
    last = tools.layout.reshape(tools.storage.arange(queries), (queries, 1))
    last = tools.elementwise.add(last, offset)
    return Tensor(tools.elementwise.less_equal(tools.storage.arange(keys), last), like.backend, "bool")


def causal_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, offset: int = 0) -> Tensor:
    """q: (B, T, H, d), k and v: (B, S, K, d), H % K == 0; query i sees keys 0..offset+i. Returns (B, T, H, d)."""
    slot = _check("causal_attention", q, k, v, offset).tools.causal_attention
    qv, kv, vv = q.value, k.value, v.value
    out, probabilities = slot.attend(qv, kv, vv, scale=scale, offset=offset)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return slot.attend_vjp(dy, qv, kv, vv, probabilities, scale=scale)

    return record("causal_attention", out, q, (q, k, v), vjp)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, offset: int = 0) -> Tensor:
    """The same function in memory linear in T: probabilities are rebuilt in backward."""
    slot = _check("flash_attention", q, k, v, offset).tools.flash_attention
    qv, kv, vv = q.value, k.value, v.value
    saved = slot.attend(qv, kv, vv, scale=scale, offset=offset)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return slot.attend_vjp(dy, qv, kv, vv, saved, scale=scale, offset=offset)

    return record("flash_attention", saved.out, q, (q, k, v), vjp)
