"""The cases, one module per capability; the order here is the order of a run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache

from ..case import Case

MODULES = (
    "storage",
    "matmul",
    "elementwise",
    "reduction",
    "layout",
    "indexing",
    "activation",
    "softmax",
    "normalization",
    "linear",
    "loss",
    "rope",
    "causal_attention",
    "flash_attention",
    "paged_attention",
    "quantized_linear",
    "adam",
    "random",
    "compile",
    "purity",
    "door",
    "models",
    "lifecycle",
)


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case there is, in order; their ids are distinct."""
    found = tuple(case for name in MODULES for case in _of(name))
    ids = {case.id for case in found}
    assert len(ids) == len(found), "two cases have one id"
    return found


def _of(name: str) -> Iterator[Case]:
    cases: Iterator[Case] = importlib.import_module(f"{__name__}.{name}").cases()
    return cases
