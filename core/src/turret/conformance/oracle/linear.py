"""Truth of the affine map and of its derivatives."""

from __future__ import annotations

import math

from .arrays import Array, quiet


@quiet
def linear(x: Array, weight: Array, bias: Array | None, /) -> Array:
    """x @ weight^T + bias. x: (..., I), weight: (O, I), bias: (O,); returns (..., O).

    Source: Rumelhart et al. 1986, eq. 1, with the bias written out.
    """
    product = (_rows(x) @ weight.T).reshape((*x.shape[:-1], weight.shape[0]))
    return product if bias is None else product + bias


@quiet
def linear_vjp_input(dy: Array, weight: Array, /) -> Array:
    """dy @ weight: (..., O) to (..., I). Source: Giles 2008, section 2.2.2."""
    return (_rows(dy) @ weight).reshape((*dy.shape[:-1], weight.shape[1]))


@quiet
def linear_vjp_weight(dy: Array, x: Array, /) -> tuple[Array, Array]:
    """dy^T @ x: (O, I), and the sum of dy over all rows: (O,). Source: Giles 2008, sections 2.2.2 and 2.2.1."""
    return _rows(dy).T @ _rows(x), _rows(dy).sum(axis=0)


def _rows(x: Array) -> Array:
    """(..., n) to (rows, n)."""
    return x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))
