"""Compiles CUDA sources for the host and runs their kernels with the meaning they have on a device."""

from __future__ import annotations

from .arguments import as_arguments
from .errors import CompileError, FaultKind, KernelFault
from .program import Kernel, Order, Parameter, Program, compile_source

__all__ = [
    "CompileError",
    "FaultKind",
    "Kernel",
    "KernelFault",
    "Order",
    "Parameter",
    "Program",
    "as_arguments",
    "compile_source",
]
