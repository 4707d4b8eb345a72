"""Keys and values in arrays of one shape for ever, with positions on the device: decoding as one captured program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from turret.registry import OpenBackend
from turret.spi import ConfigError, DType, Host, ShapeError
from turret.tensor import Tensor
from turret.tensor.graph import Native
from turret.tensor.tracing import explaining, giving, stepping

from .checks import check_entry, check_rewind, check_sizes


class StaticCache:
    """Room for `capacity` tokens of `batch` sequences of equal length, in every layer. Used under `no_grad` only.

    Each sequence has one page of `capacity` rows in flat pools, (1 + batch) * capacity rows, so that the paged
    attention slot finds its length in an array. `begin` puts the places of the next tokens on the device, before the
    step that appends them.
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
        self.capacity, self.batch, self.backend, self.dtype = capacity, batch, backend, dtype
        self._length, self._coming = 0, 0
        rows = ((batch + 1) * capacity, kv_heads, head_size)
        self._layers = tuple(_Layer(self, rows) for _ in range(layers))
        self.table = self._put(1 + np.arange(batch)[:, None])
        self.starts = self._put(np.zeros(batch))
        self._slots, self._places = self._put(np.zeros(batch)), self._put(np.zeros(1))

    @property
    def length(self) -> int:
        return self._length

    @property
    def layers(self) -> tuple[_Layer, ...]:
        return self._layers

    @property
    def places(self) -> Tensor:
        """Positions of the tokens of this step, int32 (T,)."""
        return self._places

    @property
    def slots(self) -> Native:
        """Rows of the pools that this step writes, int32 (batch * T,)."""
        return self._slots.value

    def begin(self, count: int) -> None:
        """Makes the step ready that brings `count` tokens of every sequence.

        Raises: ShapeError past the capacity; ConfigError below 1.
        """
        if count < 1:
            raise ConfigError(f"a step of {count} tokens; wanted at least 1")
        if self._length + count > self.capacity:
            raise ShapeError(
                f"a cache of {self.capacity} tokens holds {self._length} and got {count} more; reset it and replay"
            )
        places = self._length + np.arange(count)
        self._coming = count
        self._places.value = self._native(places)
        self._slots.value = self._native((self.capacity * (1 + np.arange(self.batch))[:, None] + places).reshape(-1))
        self.starts.value = self._native(np.full(self.batch, self._length))

    def advance(self, count: int) -> None:
        """Makes the tokens appended to every layer part of `length`, in a captured step after each of its calls.

        Raises: ShapeError for another count than `begin` was told.
        """
        if count != self._coming:
            raise ShapeError(f"a step of {count} tokens after begin({self._coming}); call begin with the step's count")
        if not explaining() and not stepping(self, "cache.advance"):
            self._finish()

    def reset(self) -> None:
        """Forgets every token; memory is kept."""
        self.rewind(0)

    def rewind(self, length: int) -> None:
        """Forgets every token from position `length` on; memory is kept. Raises: ShapeError for more than it holds."""
        check_rewind(length, self._length)
        self._length, self._coming = length, 0

    def held_tensors(self) -> Iterator[Tensor]:
        """The pools, and where the tokens of a step go."""
        yield from self.replaced_tensors()
        yield from (self.table, self.starts, self._slots, self._places)

    def replaced_tensors(self) -> Iterator[Tensor]:
        """The pools."""
        for layer in self._layers:
            yield from (layer.k, layer.v)

    def before_step(self) -> None:
        """Raises: ShapeError where `begin` was not called: the step would write over what is held."""
        if not self._coming:
            raise ShapeError("a captured step of a cache without begin(count); call it before every step")

    def after_step(self, again: Callable[[], object]) -> None:
        """Counts the tokens of the step."""
        self._finish()

    def _finish(self) -> None:
        self._length, self._coming = self._length + self._coming, 0

    def _native(self, numbers: Host) -> Native:
        return self.backend.tools.storage.from_host(numbers.astype(np.int32))

    def _put(self, numbers: Host) -> Tensor:
        return Tensor(self._native(numbers), self.backend, "int32")


class _Layer:
    """The pools of one layer."""

    def __init__(self, cache: StaticCache, rows: tuple[int, int, int]) -> None:
        self._cache = cache
        full = cache.backend.tools.storage.full
        self.k, self.v = (Tensor(full(rows, 0.0, dtype=cache.dtype), cache.backend, cache.dtype) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Takes k and v (B, T, K, d) of the new tokens; q: (B, T, H, d) sees them and all before; returns its shape."""
        cache, backend = self._cache, self._cache.backend
        check_entry(k, v, backend, cache.dtype, (cache.batch, self.k.shape[1], self.k.shape[2]))
        slot, reshape = backend.tools.paged_attention, backend.tools.layout.reshape
        flat = (k.shape[0] * k.shape[1], *k.shape[2:])
        new = (reshape(k.value, flat), reshape(v.value, flat))
        pools = slot.append(self.k.value, self.v.value, *new, cache.slots, donate=giving())
        self.k.value, self.v.value = pools
        out = slot.attend(q.value, *pools, cache.table.value, cache.starts.value, page=cache.capacity, scale=scale)
        return Tensor(out, backend, q.dtype)
