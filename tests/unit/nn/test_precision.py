"""Mixed precision: halves inside, float32 outside, and nothing changed elsewhere."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.nn import computing, lowered
from turret.registry import OpenBackend, use_backend
from turret.spi import ConfigError
from turret.tensor import Parameter, Tensor, backward, ops, tensor

RNG = np.random.default_rng(8)
CONFIGS = {
    "decoder": DecoderConfig(vocabulary=31, context=9, width=16, heads=4, kv_heads=2, blocks=2, feed_forward=24),
    "mini": MiniConfig(vocabulary=31, context=9, width=16, heads=4, kv_heads=2, blocks=2, feed_forward=24),
}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
SCALE = 4096.0  # of the loss: without it most of these gradients are subnormal in float16


def test_outside_a_parameter_is_itself(backend: OpenBackend) -> None:
    p = Parameter(np.ones(3, np.float32))
    assert lowered(p) is p
    with computing("float16"), computing(None):
        assert lowered(p) is p
    with computing("float32"):
        assert lowered(p) is p


def test_a_gradient_comes_back_in_the_format_of_its_parameter(backend: OpenBackend) -> None:
    p = Parameter(RNG.standard_normal(4).astype(np.float32))
    with computing("float16"):
        half = lowered(p)
        found = backward((half * half).sum().cast("float32"))[p]
    assert (half.dtype, found.dtype) == ("float16", "float32")
    np.testing.assert_allclose(found.numpy(), 2 * p.numpy(), rtol=2**-10)


@pytest.mark.parametrize("dtype", ["int32", "half", "", ["float16"], 16])
def test_a_format_that_is_none_is_refused(backend: OpenBackend, dtype: str) -> None:
    with pytest.raises(ConfigError, match="wanted one of bfloat16, float16, float32, float64"), computing(dtype):  # type: ignore[arg-type]
        pass


def loss_and_gradients(model: LanguageModel, ids: np.ndarray, dtype: str | None) -> tuple[float, list[np.ndarray]]:
    with computing(dtype):  # type: ignore[arg-type]
        logits = model(tensor(ids))
    assert logits.dtype == (dtype or "float32")
    loss = ops.cross_entropy(logits.cast("float32"), tensor(ids))
    found = backward(loss, tensor(SCALE))
    gradients = [found[p] for p in model.parameters()]
    assert {g.dtype for g in gradients} == {"float32"}
    return float(loss.item()), [g.numpy() / SCALE for g in gradients]


@pytest.mark.parametrize("checkpointing", ["none", "block"])
@pytest.mark.parametrize("attention", ["materialized", "flash"])
@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [("minimal", "float16"), ("metal:cpu", "float16"), ("metal:cpu", "bfloat16"), ("tpu:cpu", "bfloat16")],
)
def test_a_model_in_halves_is_near_the_same_model(
    spec: str, dtype: str, family: str, attention: str, checkpointing: str
) -> None:
    ids = RNG.integers(0, 31, (2, 9), dtype=np.int32)
    with use_backend(spec):
        model = build_model(CONFIGS[family], seed=3)
        want = loss_and_gradients(model, ids, None)
        model.save_memory(attention=attention, checkpointing=checkpointing)
        got = loss_and_gradients(model, ids, dtype)
    assert got[0] == pytest.approx(want[0], rel=8 * UNIT[dtype])
    assert got[0] != want[0]
    whole = math.sqrt(sum(float((exact**2).sum()) for exact in want[1]))
    for mine, exact in zip(got[1], want[1], strict=True):
        # a key's bias moves all scores of a row alike: its gradient is 0 but for what was rounded
        assert np.linalg.norm(mine - exact) <= UNIT[dtype] * (12 * np.linalg.norm(exact) + 1e-3 * whole)


def test_sums_of_norms_softmax_and_loss_are_float32() -> None:
    """Values whose squares overflow float16, and more addends than float16 can count."""
    with use_backend("minimal"):
        x = tensor(np.full((1, 4096), 300.0, np.float16))
        one = tensor(np.ones(4096, np.float16))
        np.testing.assert_allclose(ops.rms_norm(x, one, eps=1e-5).numpy(), 1.0, rtol=2**-10)
        flat = ops.softmax(tensor(np.zeros((1, 4096), np.float16)))
        np.testing.assert_array_equal(flat.numpy(), np.float16(1 / 4096))


def test_bfloat16_products_round_once() -> None:
    a, b = (RNG.standard_normal((8, 512)).astype(ml_dtypes.bfloat16).astype(np.float32) for _ in range(2))
    with use_backend("tpu:cpu"):
        product = ops.matmul(tensor(a).cast("bfloat16"), tensor(b).cast("bfloat16"), transpose_b=True)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    slack = 2.0**-8 * np.abs(exact) + 2.0**-20 * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(product.numpy() - exact) <= slack).all()


def test_the_compute_format_reaches_a_checkpoint_that_runs_again_later(backend: OpenBackend) -> None:
    model = build_model(CONFIGS["decoder"], seed=3).save_memory(checkpointing="block")
    ids = tensor(RNG.integers(0, 31, (2, 9), dtype=np.int32))
    seen: list[str] = []
    first = model.blocks[0].feed_forward  # type: ignore[attr-defined]
    inner = type(first).__call__

    def spied(self: object, x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return inner(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(first), "__call__", spied)
        with computing("float16"):
            logits = model(ids)
        backward(ops.cross_entropy(logits.cast("float32"), ids))
    assert seen == ["float16"] * 4
