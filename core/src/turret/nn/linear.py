"""The affine map and the embedding table."""

from __future__ import annotations

from turret.spi import ConfigError
from turret.tensor import Parameter, Tensor, ops

from .init import INIT_STD, Init
from .module import Module
from .precision import lowered

JOINED_ROWS = 64


class Linear(Module):
    """x @ weight^T + bias. weight: (outputs, inputs), bias: (outputs,) or none."""

    def __init__(self, inputs: int, outputs: int, *, init: Init, bias: bool = True, std: float = INIT_STD) -> None:
        _positive("Linear", inputs=inputs, outputs=outputs)
        self.weight = Parameter(init.normal((outputs, inputs), std=std))
        self.bias: Parameter | None = Parameter(init.zeros((outputs,))) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., inputs); returns (..., outputs)."""
        return ops.linear(x, *self._operands())

    def _operands(self) -> tuple[Tensor, Tensor | None]:
        return lowered(self.weight), None if self.bias is None else lowered(self.bias)


def project(x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
    """Every map of the same input. Many rows are worth joining plain weights into one product; few are not.

    What stands in for a Linear, or adds to it, is called as it is.
    """
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    if rows < JOINED_ROWS or not all(type(linear) is Linear for linear in maps):
        return tuple(linear(x) for linear in maps)
    return ops.linears(x, *(linear._operands() for linear in maps))


class Embedding(Module):
    """A table of rows. weight: (rows, width)."""

    def __init__(self, rows: int, width: int, *, init: Init, std: float = INIT_STD) -> None:
        _positive("Embedding", rows=rows, width=width)
        self.weight = Parameter(init.normal((rows, width), std=std))

    def __call__(self, ids: Tensor) -> Tensor:
        """ids: int32 of any shape, 0 <= id < rows; returns ids.shape + (width,)."""
        return lowered(ops.gather_rows(self.weight, ids))


def _positive(what: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{what} got {name} {size}; wanted at least 1")
