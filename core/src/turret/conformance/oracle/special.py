"""The error function, which NumPy lacks."""

from __future__ import annotations

import math

import numpy as np

from .arrays import Array

ERF = np.frompyfunc(math.erf, 1, 1)
"""The ufunc that an array class of its own receives in `__array_ufunc__`; on plain arrays it gives objects."""


def erf(x: Array, /) -> Array:
    """The error function of each element: float64 for NumPy arrays, what `ERF` gives for anything else.

    Source: Abramowitz and Stegun 1964, eq. 7.1.1.
    """
    y = ERF(x)
    return np.asarray(y, np.float64) if isinstance(x, np.ndarray | np.generic) else y
