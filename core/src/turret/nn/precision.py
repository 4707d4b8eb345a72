"""Mixed precision: in which format layers compute, while their parameters stay what they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from turret.spi import FLOATS, ConfigError, DType
from turret.tensor import Tensor
from turret.tensor.tracing import shapes_programs

_format: ContextVar[DType | None] = shapes_programs(ContextVar("turret_computing", default=None))


@contextlib.contextmanager
def computing(dtype: DType | None) -> Iterator[None]:
    """Layers inside compute in `dtype`: activations and products have it, parameters and their gradients do not.

    Statistics of norms, softmax and every sum stay float32 inside the operations. None, as outside: the format of the
    parameters. A generator must not yield inside: its caller would be inside as well.
    Source: Micikevicius et al. 2018, section 3.1 (a master copy of weights).
    Raises: ConfigError for what is no float format.
    """
    if dtype is not None and (not isinstance(dtype, str) or dtype not in FLOATS):
        raise ConfigError(f"computing in {dtype!r}; wanted one of {', '.join(sorted(FLOATS))}")
    token = _format.set(dtype)
    try:
        yield
    finally:
        _format.reset(token)


def lowered(x: Tensor) -> Tensor:
    """A parameter, or rows of one, in the format that layers compute in here; gradients come back in x's own."""
    dtype = _format.get()
    return x if dtype is None or x.dtype == dtype else x.cast(dtype)
