"""The slot of the optimizer's update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol

from ..arrays import A


class Adapted(NamedTuple, Generic[A]):
    """New parameters and moments in the order given; norm: float32 of rank 0; finite: bool of rank 0."""

    params: tuple[A, ...]
    first: tuple[A, ...]
    second: tuple[A, ...]
    norm: A
    finite: A


class Adam(Protocol[A]):
    """Adam with decoupled weight decay over a list of tensors.

    Source: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
    """

    def update(
        self,
        params: Sequence[A],
        grads: Sequence[A],
        first: Sequence[A],
        second: Sequence[A],
        /,
        *,
        lr: A,
        correction1: A,
        correction2: A,
        betas: tuple[float, float],
        eps: float,
        decay: Sequence[float],
        max_norm: float,
        donate: bool,
    ) -> Adapted[A]:
        """One batched step; at least one tensor.

        g is scaled by min(1, max_norm / norm), norm being the Euclidean norm of all gradients together, computed
        without overflow (infinite max_norm: no clipping). m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
        p = p - lr * (m / correction1 / (sqrt(v / correction2) + eps) + decay * p), each with the old p.
        lr, correction1 = 1 - b1^t and correction2 = 1 - b2^t: float32 of rank 0, computed on the host in float64.
        Moments are float32 whatever the dtype of the parameters.

        All or nothing: where any gradient or result is not finite, `finite` is False and every output equals its input
        bit for bit, donated or not. The norm is a result: one that float32 cannot hold is not finite. `donate` allows
        writing into params, first and second.
        """
        ...
