"""One contiguous region of keys and values per layer."""

from __future__ import annotations

import numpy as np

from turret.registry import OpenBackend
from turret.spi import DType, ShapeError
from turret.tensor import Tensor, ops
from turret.tensor.graph import Native

from .checks import check_entry, check_rewind, check_sizes


class ContiguousCache:
    """Room for `capacity` tokens of `batch` sequences of equal length, in every layer. Used under `no_grad` only.

    Rows are flat, (batch * capacity, K, d), so that appending can happen in place on backends that allow it.
    """

    def __init__(
        self,
        backend: OpenBackend,
        *,
        layers: int,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_size: int,
        dtype: DType = "float32",
    ) -> None:
        check_sizes(layers=layers, batch=batch, capacity=capacity, kv_heads=kv_heads, head_size=head_size)
        self.capacity = capacity
        self._length = 0
        self._layers = tuple(
            _Layer(self, backend, batch, (batch * capacity, kv_heads, head_size), dtype) for _ in range(layers)
        )

    @property
    def length(self) -> int:
        return self._length

    @property
    def layers(self) -> tuple[_Layer, ...]:
        return self._layers

    @property
    def places(self) -> None:
        """None: the tokens of a step stand at `length` and after it."""

    def advance(self, count: int) -> None:
        """Makes the tokens appended to every layer visible.

        Raises: ShapeError past the capacity.
        """
        self._require_room(count)
        self._length += count

    def reset(self) -> None:
        """Forgets every token; memory is kept."""
        self.rewind(0)

    def rewind(self, length: int) -> None:
        """Forgets every token from position `length` on; memory is kept. Raises: ShapeError for more than it holds."""
        check_rewind(length, self._length)
        self._length = length

    def _require_room(self, count: int) -> None:
        if self._length + count > self.capacity:
            raise ShapeError(
                f"a cache of {self.capacity} tokens holds {self._length} and got {count} more; reset it and replay"
            )


class _Layer:
    def __init__(
        self, cache: ContiguousCache, backend: OpenBackend, batch: int, shape: tuple[int, int, int], dtype: DType
    ) -> None:
        self._cache, self._backend, self._batch, self._dtype = cache, backend, batch, dtype
        full = backend.tools.storage.full
        self._k, self._v = full(shape, 0.0, dtype=dtype), full(shape, 0.0, dtype=dtype)

    @property
    def length(self) -> int:
        return self._cache.length

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Takes k and v (B, T, K, d) of the new tokens; q: (B, T, H, d) sees them and all before; returns its shape."""
        start = self.length
        return ops.causal_attention(q, *self.append(k, v), scale=scale, offset=start)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Takes k and v (B, T, K, d); returns (B, length + T, K, d) each. Visible to others after `advance`.

        What was returned is the cache's own memory: the next append may write there.
        """
        kv_heads, head_size = self._k.shape[1:]
        check_entry(k, v, self._backend, self._dtype, (self._batch, kv_heads, head_size))
        batch, count = k.shape[:2]
        self._cache._require_room(count)
        start, capacity = self._cache.length, self._cache.capacity
        rows = (np.arange(batch)[:, None] * capacity + np.arange(start, start + count)).reshape(-1).astype(np.int32)
        tools = self._backend.tools
        slots, flat = tools.storage.from_host(rows), (batch * count, kv_heads, head_size)
        put, shape = tools.indexing.set_rows, tools.layout.reshape
        self._k = put(self._k, slots, shape(k.value, flat), donate=True)
        self._v = put(self._v, slots, shape(v.value, flat), donate=True)
        return self._seen(self._k, start + count), self._seen(self._v, start + count)

    def _seen(self, rows: Native, stop: int) -> Tensor:
        layout, capacity = self._backend.tools.layout, self._cache.capacity
        _, kv_heads, head_size = rows.shape
        whole = layout.reshape(rows, (self._batch, capacity, kv_heads, head_size))
        part = layout.slice(whole, (0, 0, 0, 0), (self._batch, stop, kv_heads, head_size))
        return Tensor(part, self._backend, self._dtype)
