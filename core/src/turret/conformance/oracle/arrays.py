"""What the oracles compute on, and the silence in which they meet infinities and NaN."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""float64 values, int32 indices or bool as NumPy arrays; for values also whatever has their operators and functions."""

quiet = np.errstate(all="ignore")
"""Decorates an oracle: infinities and NaN are answers of IEEE 754, not reasons to warn."""
