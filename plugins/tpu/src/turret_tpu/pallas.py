"""Pallas, imported in one place, and only where a device runs its kernels."""

from __future__ import annotations

from jax.experimental.pallas import BlockSpec as BlockSpec
from jax.experimental.pallas import GridSpec as GridSpec
from jax.experimental.pallas import pallas_call as pallas_call
from jax.experimental.pallas import program_id as program_id
from jax.experimental.pallas import when as when
from jax.experimental.pallas.tpu import VMEM as VMEM
from jax.experimental.pallas.tpu import CompilerParams as CompilerParams
