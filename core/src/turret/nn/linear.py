"""The affine map and the embedding table."""

from __future__ import annotations

from turret.spi import ConfigError, ShapeError
from turret.tensor import Parameter, Tensor, ops

from .adapter import Adaptable
from .init import INIT_STD, Init
from .module import Module
from .precision import lowered

JOINED_ROWS = 64


class Linear(Adaptable):
    """x @ weight^T + bias, plus what an adapter adds. weight: (outputs, inputs), bias: (outputs,) or none."""

    def __init__(self, inputs: int, outputs: int, *, init: Init, bias: bool = True, std: float = INIT_STD) -> None:
        _positive("Linear", inputs=inputs, outputs=outputs)
        self.weight = Parameter(init.normal((outputs, inputs), std=std))
        self.bias: Parameter | None = Parameter(init.zeros((outputs,))) if bias else None
        self.shape = self.weight.shape

    @classmethod
    def of(cls, weight: Parameter, bias: Parameter | None = None) -> Linear:
        """The map of these parameters, which become its own. Raises: ShapeError, ConfigError where they have an owner.

        weight: (outputs, inputs), bias: (outputs,).
        """
        if len(weight.shape) != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            got = "none" if bias is None else bias.shape
            raise ShapeError(f"Linear.of got weight {weight.shape}, bias {got}; wanted (outputs, inputs), (outputs,)")
        made = cls.__new__(cls)
        made.weight, made.bias, made.shape = weight, bias, weight.shape
        return made

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., inputs); returns (..., outputs)."""
        return self._with_adapter(x, ops.linear(x, *self._operands()))

    def _operands(self) -> tuple[Tensor, Tensor | None]:
        return lowered(self.weight), None if self.bias is None else lowered(self.bias)


def project(x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
    """Every map of the same input. Many rows are worth joining plain weights into one product; few are not.

    What adapters add comes after the joint product; what stands in for a Linear is called as it is.
    """
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    if rows < JOINED_ROWS or not all(type(linear) is Linear for linear in maps):
        return tuple(linear(x) for linear in maps)
    products = ops.linears(x, *(linear._operands() for linear in maps))
    return tuple(linear._with_adapter(x, y) for linear, y in zip(maps, products, strict=True))


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
