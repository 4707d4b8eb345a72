"""All faults, in the order in which they are hunted."""

from __future__ import annotations

from turret.spi import ConfigError

from . import (
    activation,
    adam,
    attention,
    compile,
    elementwise,
    indexing,
    layout,
    lifecycle,
    linear,
    loss,
    matmul,
    normalization,
    paged,
    purity,
    quantized,
    random,
    reduction,
    rope,
    softmax,
    storage,
)
from .fault import Fault

CATALOGUE: tuple[Fault, ...] = (
    *storage.FAULTS,
    *matmul.FAULTS,
    *elementwise.FAULTS,
    *reduction.FAULTS,
    *layout.FAULTS,
    *indexing.FAULTS,
    *activation.FAULTS,
    *softmax.FAULTS,
    *normalization.FAULTS,
    *linear.FAULTS,
    *loss.FAULTS,
    *rope.FAULTS,
    *attention.FAULTS,
    *paged.FAULTS,
    *quantized.FAULTS,
    *adam.FAULTS,
    *random.FAULTS,
    *compile.FAULTS,
    *lifecycle.FAULTS,
    *purity.FAULTS,
)

RESERVE: tuple[Fault, ...] = (
    *storage.RESERVE,
    *matmul.RESERVE,
    *elementwise.RESERVE,
    *reduction.RESERVE,
    *layout.RESERVE,
    *indexing.RESERVE,
    *activation.RESERVE,
    *softmax.RESERVE,
    *normalization.RESERVE,
    *linear.RESERVE,
    *loss.RESERVE,
    *rope.RESERVE,
    *attention.RESERVE,
    *paged.RESERVE,
    *quantized.RESERVE,
    *adam.RESERVE,
    *random.RESERVE,
    *compile.RESERVE,
)
"""Further faults, to be hunted where more is asked for than the published rate."""


def by_name(name: str) -> Fault:
    """Raises: ConfigError."""
    for each in (*CATALOGUE, *RESERVE):
        if each.name == name:
            return each
    raise ConfigError(f"no fault {name!r}; `turret conformance faults --list` shows all names")
