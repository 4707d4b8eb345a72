"""What a parameter holds until its value is loaded."""

from __future__ import annotations

from typing import NoReturn

from turret.spi import GraphError, Shape


class Pending:
    """The shape of a value to come; it takes no memory and can be used for nothing else.

    Models are built on it where every value is loaded, so that no weight is drawn, or even allocated, in vain.
    """

    __slots__ = ("shape",)

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked for by Python itself, which goes on without
            raise AttributeError(name)
        raise GraphError(f"a parameter of shape {self.shape} has no value yet; load the weights of the model first")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise GraphError(f"a parameter of shape {self.shape} has no value yet; load the weights of the model first")
