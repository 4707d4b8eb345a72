"""turret: a transformer runtime whose numerical operations go through small capability protocols.

Importing it loads nothing: every name below is fetched at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turret import data, generate, models, nn, optim, quant, spi, train
    from turret.registry import Entry, use_backend
    from turret.tensor import Parameter, Tensor, backward, capture, checkpoint, custom_gradient, no_grad, tensor

__version__ = "0.1.0"

__all__ = [
    "Parameter",
    "Tensor",
    "backends",
    "backward",
    "capture",
    "checkpoint",
    "custom_gradient",
    "data",
    "generate",
    "models",
    "nn",
    "no_grad",
    "optim",
    "quant",
    "spi",
    "tensor",
    "train",
    "use_backend",
]

# `turret.tensor` is the package and, being callable, also the function that makes a tensor.
_PACKAGES = frozenset(("data", "generate", "models", "nn", "optim", "quant", "spi", "tensor", "train"))
_HOMES = dict.fromkeys(
    ("Parameter", "Tensor", "backward", "capture", "checkpoint", "custom_gradient", "no_grad"), "turret.tensor"
)
_HOMES["use_backend"] = "turret.registry"


def backends() -> list[Entry]:
    """Every installed backend with its distribution, version, state and, where it is broken, its error."""
    from turret.registry import installed

    return installed()


if not TYPE_CHECKING:  # a type checker that saw this would take every misspelt name for good

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f"turret.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'turret' has no attribute {name!r}")
        value: object = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
