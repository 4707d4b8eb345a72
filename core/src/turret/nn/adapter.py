"""The low-rank adapter, and the maps that one may stand beside."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from turret.registry import OpenBackend
from turret.spi import BackendMismatch, ConfigError, ShapeError
from turret.tensor import Parameter, Tensor, ops

from .init import Init
from .module import Module
from .regularization import check_rate
from .regularization import dropout as dropped

MOST_ALPHA = 1e30
"""Above it products overflow float32, and 0 times infinity is no number."""


class LowRankAdapter(Module):
    """(alpha / rank) * dropout(x) @ a^T @ b^T. a: (rank, inputs), b: (outputs, rank), both float32.

    a is drawn from U(-m, m) with m = sqrt(6 / (inputs + rank)) and b is 0, so that nothing is added at first. Dropout
    works inside `turret.nn.dropping` alone.
    Source: Hu et al. 2022 (LoRA), eq. 3 and section 4.1; Glorot and Bengio 2010, eq. 16.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        rank: int,
        alpha: float,
        init: Init,
        dropout: float = 0.0,
        backend: OpenBackend | None = None,
    ) -> None:
        for name, size in (("inputs", inputs), ("outputs", outputs)):
            if size < 1:
                raise ConfigError(f"an adapter got {name} {size}; wanted at least 1")
        check_adapter(rank, alpha, dropout)
        self.rank, self.alpha, self.dropout = rank, float(alpha), dropout
        self.shape = (outputs, inputs)
        drawn = init.uniform((rank, inputs), bound=math.sqrt(6 / (inputs + rank)))
        self.a = Parameter(drawn, backend=backend)
        self.b = Parameter(init.zeros((outputs, rank)), backend=backend)

    @property
    def scale(self) -> float:
        """alpha / rank: what the product is multiplied by."""
        return self.alpha / self.rank

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., inputs); returns what is added, (..., outputs), computed in the format of x."""
        inner = ops.linear(dropped(x, self.dropout), _as(self.a, x))
        return ops.linear(inner * self.scale, _as(self.b, x))

    def delta(self) -> npt.NDArray[np.float64]:
        """What the adapter adds to the weight: (outputs, inputs), in float64 on the host."""
        a, b = (p.numpy().astype(np.float64) for p in (self.a, self.b))
        return self.scale * (b @ a)


class Adaptable(Module):
    """A map of `shape` (outputs, inputs) that an adapter may stand beside.

    The adapter is no child: its parameters are extra ones, in no `state_dict` and no `parameter_count`.
    """

    shape: tuple[int, ...]
    adapter: LowRankAdapter | None = None

    def attach(self, adapter: LowRankAdapter) -> None:
        """From now on the map adds what `adapter` gives.

        Raises: ConfigError where one is attached already, here or there; ShapeError, BackendMismatch.
        """
        where = type(self).__name__
        if not isinstance(adapter, LowRankAdapter):
            raise ConfigError(f"{where} got {type(adapter).__name__} for an adapter; wanted a LowRankAdapter")
        if self.adapter is not None:
            raise ConfigError(f"{where} has an adapter already; detach it first")
        if adapter._sealed:
            raise ConfigError(f"{where}: this adapter is attached elsewhere; detach it there first, or make another")
        if adapter.shape != self.shape:
            raise ShapeError(f"{where} of {self.shape} got an adapter of {adapter.shape}; wanted equal shapes")
        if adapter.a.backend is not (own := self.backend):
            raise BackendMismatch(f"{where} is on {own.spec} and its adapter on {adapter.a.backend.spec}; move one")
        object.__setattr__(adapter, "_sealed", True)
        object.__setattr__(self, "adapter", adapter)  # outside the tree: registered, it would be part of the schema

    def detach(self) -> LowRankAdapter:
        """The map as it was before `attach`; returns the adapter. Raises: ConfigError where there is none."""
        adapter = self.adapter
        if adapter is None:
            raise ConfigError(f"{type(self).__name__} has no adapter to detach")
        object.__setattr__(adapter, "_sealed", False)
        object.__setattr__(self, "adapter", None)
        return adapter

    @property
    def backend(self) -> OpenBackend:
        """Where the map's tensors are."""
        return next(self.held_tensors()).backend

    def extra_parameters(self) -> Iterable[tuple[str, Parameter]]:
        """Those of the adapter: "adapter.a" and "adapter.b"."""
        if self.adapter is None:
            return ()
        return [(f"adapter.{name}", parameter) for name, parameter in self.adapter.named_parameters()]

    def _with_adapter(self, x: Tensor, y: Tensor) -> Tensor:
        """y, the result for x, and what the adapter adds to it."""
        return y if self.adapter is None else y + self.adapter(x)


def check_adapter(rank: int, alpha: float, dropout: float) -> None:
    """Raises: ConfigError for numbers that no adapter can have."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"an adapter got rank {rank!r:.40}; wanted a whole number of at least 1")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha <= MOST_ALPHA:
        raise ConfigError(f"an adapter got alpha {alpha!r:.40}; wanted a finite number above 0, at most {MOST_ALPHA}")
    check_rate("adapter dropout", dropout)


def _as(parameter: Parameter, x: Tensor) -> Tensor:
    return parameter if parameter.dtype == x.dtype else parameter.cast(x.dtype)
