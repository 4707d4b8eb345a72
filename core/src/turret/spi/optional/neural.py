"""Slots of the layers: activation, softmax, normalization, linear, loss and rotary positions."""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, Protocol

from ..arrays import A

GeluForm = Literal["erf", "tanh"]


class Activation(Protocol[A]):
    """Element-wise non-linearities of feed-forward layers, any shape, each with its VJP."""

    def gelu(self, x: A, /, *, form: GeluForm) -> A:
        """x * Phi(x), or its tanh approximation. Source: Hendrycks and Gimpel 2016, eq. 2."""
        ...

    def gelu_vjp(self, dy: A, x: A, /, *, form: GeluForm) -> A:
        """Gradient for x of the same form."""
        ...

    def silu(self, x: A, /) -> A:
        """x * sigmoid(x). Source: Elfwing et al. 2017, eq. 5."""
        ...

    def silu_vjp(self, dy: A, x: A, /) -> A:
        """Gradient for x."""
        ...

    def gated_silu(self, gate: A, up: A, /) -> A:
        """silu(gate) * up, equal shapes. Source: Shazeer 2020, eq. 6 (SwiGLU)."""
        ...

    def gated_silu_vjp(self, dy: A, gate: A, up: A, /) -> tuple[A, A]:
        """Gradients for gate and up."""
        ...


class Softmax(Protocol[A]):
    """Over the last axis; a row that contains NaN or whose maximum is infinite is unspecified but never raises."""

    def softmax(self, x: A, /) -> A:
        """exp(x - max) / sum(exp(x - max))."""
        ...

    def softmax_vjp(self, dy: A, y: A, /) -> A:
        """y: the softmax itself; gradient for x."""
        ...

    def log_softmax(self, x: A, /) -> A:
        """x - max - log(sum(exp(x - max)))."""
        ...

    def log_softmax_vjp(self, dy: A, y: A, /) -> A:
        """y: the log-softmax itself; gradient for x."""
        ...


class Normed(NamedTuple, Generic[A]):
    """out: like x; mean and rstd: (..., 1) float32."""

    out: A
    mean: A
    rstd: A


class Normalization(Protocol[A]):
    """Over the last axis of x: (..., D); weight and bias: (D,); statistics in float32."""

    def layer_norm(self, x: A, weight: A, bias: A, /, *, eps: float) -> Normed[A]:
        """(x - mean) * rstd * weight + bias with rstd = 1 / sqrt(var + eps). Source: Ba et al. 2016, eq. 4."""
        ...

    def layer_norm_vjp(self, dy: A, x: A, weight: A, mean: A, rstd: A, /) -> tuple[A, A, A]:
        """Gradients for x, weight and bias."""
        ...

    def rms_norm(self, x: A, weight: A, /, *, eps: float) -> tuple[A, A]:
        """x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), and rstd. Source: Zhang and Sennrich 2019, eq. 4."""
        ...

    def rms_norm_vjp(self, dy: A, x: A, weight: A, rstd: A, /) -> tuple[A, A]:
        """Gradients for x and weight."""
        ...


class Linear(Protocol[A]):
    """x: (..., I), weight: (O, I), bias: (O,). Two VJPs, so that a frozen weight or a first layer costs nothing."""

    def linear(self, x: A, weight: A, bias: A | None, /) -> A:
        """x @ weight^T + bias; returns (..., O)."""
        ...

    def linear_vjp_input(self, dy: A, weight: A, /) -> A:
        """dy: (..., O); returns (..., I)."""
        ...

    def linear_vjp_weight(self, dy: A, x: A, /) -> tuple[A, A]:
        """Gradients for weight (O, I) and bias (O,)."""
        ...


class Loss(Protocol[A]):
    """Cross entropy. logits: (N, V) with finite values; targets: int32 (N,); weights: float32 (N,) >= 0 or None (ones).

    loss = sum(w * nll) / sum(w) over the targets that differ from `ignore`, float32 of rank 0; 0 with a zero gradient
    when all are ignored or weigh nothing. `ignore` may be any int, also one that is no class.
    """

    def cross_entropy(self, logits: A, targets: A, weights: A | None, /, *, ignore: int) -> A:
        """The loss alone."""
        ...

    def cross_entropy_grad(self, logits: A, targets: A, weights: A | None, /, *, ignore: int) -> tuple[A, A]:
        """The loss and its gradient for logits, in one pass."""
        ...


class Rope(Protocol[A]):
    """Rotary positions. x: (B, T, H, d) with an even d; cos and sin: float32 (T, d/2) or (B, T, d/2).

    cos and sin are made on the host in float64. Half-split rotates the pairs (i, i + d/2), interleaved the pairs
    (2i, 2i + 1). Source: Su et al. 2021, eq. 15.
    """

    def rope(self, x: A, cos: A, sin: A, /, *, interleaved: bool) -> A:
        """Each pair turned by its position's angle."""
        ...

    def rope_vjp(self, dy: A, cos: A, sin: A, /, *, interleaved: bool) -> A:
        """Gradient for x: the opposite turn."""
        ...
