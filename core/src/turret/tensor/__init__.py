"""Tensors, the autograd graph and the differentiable operations."""

from .backward import Gradients as Gradients
from .backward import backward as backward
from .custom import checkpoint as checkpoint
from .custom import custom_gradient as custom_gradient
from .graph import enable_grad as enable_grad
from .graph import no_grad as no_grad
from .value import Parameter as Parameter
from .value import Tensor as Tensor
from .value import tensor as tensor
