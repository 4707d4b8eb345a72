"""All faults, in the order in which they are hunted."""

from __future__ import annotations

from turret.spi import ConfigError

from . import (
    adam,
    attention,
    compile,
    elementwise,
    indexing,
    layers,
    layout,
    lifecycle,
    linear,
    matmul,
    paged,
    purity,
    quantized,
    random,
    reduction,
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
    *layers.FAULTS,
    *linear.FAULTS,
    *attention.FAULTS,
    *paged.FAULTS,
    *quantized.FAULTS,
    *adam.FAULTS,
    *random.FAULTS,
    *compile.FAULTS,
    *lifecycle.FAULTS,
    *purity.FAULTS,
)


def by_name(name: str) -> Fault:
    """Raises: ConfigError."""
    for each in CATALOGUE:
        if each.name == name:
            return each
    raise ConfigError(f"no fault {name!r}; `turret conformance faults --list` shows all names")
