"""All faults, in the order in which they are hunted."""

from __future__ import annotations

from collections.abc import Sequence

from turret.spi import ConfigError

from ..profiles import guess
from . import (
    activation,
    adam,
    attention,
    compile,
    elementwise,
    flash,
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
    scale_codes,
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
    *flash.FAULTS,
    *paged.FAULTS,
    *quantized.FAULTS,
    *scale_codes.FAULTS,
    *adam.FAULTS,
    *random.FAULTS,
    *compile.FAULTS,
    *lifecycle.FAULTS,
    *purity.FAULTS,
)


def find(names: Sequence[str] = ()) -> tuple[Fault, ...]:
    """The faults of these names; none named: the whole catalogue. Raises: ConfigError for a name that is none."""
    if not names:
        return CATALOGUE
    known = {each.name: each for each in CATALOGUE}
    for name in names:
        if name not in known:
            raise ConfigError(f"no fault {name!r}; {guess(name, known)}")
    return tuple(known[name] for name in names)


def by_name(name: str) -> Fault:
    """Raises: ConfigError."""
    return find((name,))[0]
