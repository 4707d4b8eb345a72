"""JAX, imported in one place: the first import draws from NumPy's global random numbers, and they are put back."""

from __future__ import annotations

import numpy as np

_drawn_from = np.random.get_state()

import jax as jax  # noqa: E402
from jax import lax as lax  # noqa: E402
from jax.extend.core import get_opaque_trace_state as get_opaque_trace_state  # noqa: E402

np.random.set_state(_drawn_from)
