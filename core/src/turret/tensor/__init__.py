"""Tensors, the autograd graph and the differentiable operations."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .backward import Gradients as Gradients
from .backward import backward as backward
from .capture import Captured as Captured
from .capture import CaptureWarning as CaptureWarning
from .capture import capture as capture
from .custom import checkpoint as checkpoint
from .custom import custom_gradient as custom_gradient
from .graph import enable_grad as enable_grad
from .graph import no_grad as no_grad
from .random import RandomStream as RandomStream
from .tracing import Stateful as Stateful
from .value import Parameter as Parameter
from .value import Tensor as Tensor
from .value import tensor as tensor


class _Package(ModuleType):
    """`turret.tensor` is this package and the function that makes a tensor: importing one must not hide the other."""

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return tensor(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
