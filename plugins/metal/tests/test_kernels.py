"""The Metal sources, which cannot run here: their text, and their text as Python beside the CPU device's operations."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from turret.spi import Toolset
from turret_metal.adam import MetalAdam
from turret_metal.causal_attention import MetalCausalAttention
from turret_metal.indexing import MetalIndexing
from turret_metal.kernels import rows, update
from turret_metal.kernels.rows import ADD_ROWS, spans
from turret_metal.kernels.source import Source
from turret_metal.kernels.update import JUDGE, SETTINGS, STEP, WRITE
from turret_metal.normalization import MetalNormalization
from turret_metal.stream import Stream, stream_of

Put = Callable[[Any], mx.array]
SOURCES = [ADD_ROWS, JUDGE, WRITE]
WORDS = {"float", "uint", "size_t", "int", "bool", "for", "false", "metal", "isfinite", "precise", "sqrt", "T", "P"}
GIVEN = {"thread_position_in_grid", "threads_per_grid", "x", "y", "base_shape"}

_spec = importlib.util.spec_from_file_location("metal_in_python", Path(__file__).with_name("metal_in_python.py"))
assert _spec is not None
assert _spec.loader is not None
metal_in_python = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(metal_in_python)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The CPU device's stream, passing itself off as the GPU's, with kernels that Python runs."""
    stream = Stream("metal", mx.Device(mx.cpu), stream_of("cpu").total_bytes)
    stream.on_gpu = True
    for module in (rows, update):
        monkeypatch.setattr(module, "kernel", metal_in_python.kernel)
    return stream


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_a_source_is_complete(source: Source) -> None:
    body = source.body
    for left, right in ("{}", "()", "[]"):
        assert body.count(left) == body.count(right)
    assert all(line.rstrip().endswith((";", "{", "}")) for line in body.split("\n"))
    for name in source.inputs:
        assert re.search(rf"\b{name}\[", body), f"{name} is handed over and not read"
    for name in source.outputs:
        assert re.search(rf"\b{name}\[.*\] = ", body), f"{name} is not written"


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_a_source_uses_nothing_that_it_was_not_given(source: Source) -> None:
    declared = set(re.findall(r"(?:uint|size_t|int|float|bool|T) (\w+) =", source.body))
    used = set(re.findall(r"[A-Za-z_]\w*", source.body))
    assert used <= declared | set(source.inputs) | set(source.outputs) | WORDS | GIVEN
    assert not declared & (set(source.inputs) | set(source.outputs))
    assert declared <= {name for name in used if len(re.findall(rf"\b{name}\b", source.body)) > 1}


def test_both_update_kernels_take_the_same_step() -> None:
    for name, expression in STEP:
        line = f"float {name} = {expression};"
        assert line in JUDGE.body
        assert line in WRITE.body
    for i, name in enumerate(SETTINGS):
        assert f"float {name} = settings[{i}];" in JUDGE.body
        assert f"float {name} = settings[{i}];" in WRITE.body


def adam_operands(draw: np.random.Generator, put: Put, dtype: Any) -> list[list[mx.array]]:
    shapes = [(3,), (5, 7), (1,), (0, 2), ()]
    host = [[draw.standard_normal(s) for s in shapes] for _ in range(3)]
    params, grads = ([put(np.asarray(x, dtype)) for x in group] for group in host[:2])
    return [params, grads, [put(np.asarray(x, np.float32)) for x in host[2]], [put(x * x) for x in host[2]]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bad", [None, "gradient", "moment"])
def test_the_update_kernels_do_what_the_operations_do(
    gpu: Stream, tools: Toolset[mx.array], put: Put, draw: np.random.Generator, dtype: Any, bad: str | None
) -> None:
    operands = adam_operands(draw, put, dtype)
    if bad == "gradient":
        operands[1][1] = put(np.full((5, 7), np.nan, dtype))
    elif bad == "moment":
        operands[3][1] = put(np.full((5, 7), np.inf, np.float32))
    options: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-8, "decay": [0.1, 0.0, 0.1, 0.0, 0.1], "max_norm": 1.0}
    rates: dict[str, Any] = {"lr": put(1e-2), "correction1": put(0.271), "correction2": put(0.0297)}
    got = MetalAdam(gpu).update(*operands, **rates, **options, donate=False)
    want = tools.adam.update(*operands, **rates, **options, donate=False)
    get = tools.storage.to_host
    assert get(got.finite) == get(want.finite) == (bad is None)
    for ours, theirs in zip((got.params, got.first, got.second), (want.params, want.first, want.second), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            x, y = get(a), get(b)
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            np.testing.assert_allclose(x, y, rtol=2e-3 if x.dtype == np.float16 else 2e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16])
def test_rows_are_added_in_the_order_of_their_indices(
    gpu: Stream, tools: Toolset[mx.array], put: Put, draw: np.random.Generator, dtype: Any
) -> None:
    ids = draw.integers(0, 6, 31).astype(np.int32)
    base, more = ((draw.standard_normal(s) * 9).astype(dtype) for s in ((6, 2, 3), (31, 2, 3)))
    got = tools.storage.to_host(MetalIndexing(gpu).scatter_add_rows(put(base), put(ids), put(more)))
    want = base.astype(np.float64)
    np.add.at(want, ids, more.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == np.float16 else 1e-5, atol=2e-3)
    order, starts, stops = (np.array(x) for x in spans(gpu, put(ids), 6))
    assert [sorted(order[a:b].tolist()) for a, b in zip(starts, stops, strict=True)] == [
        np.flatnonzero(ids == i).tolist() for i in range(6)
    ]


def test_fused_functions_of_the_gpu_agree_with_the_formulas(
    gpu: Stream, tools: Toolset[mx.array], put: Put, draw: np.random.Generator
) -> None:
    x, weight, bias = (put(draw.standard_normal(s)) for s in ((3, 5, 16), (16,), (16,)))
    norm = MetalNormalization(gpu)
    pairs = list(
        zip(
            norm.layer_norm(x, weight, bias, eps=1e-5),
            tools.normalization.layer_norm(x, weight, bias, eps=1e-5),
            strict=True,
        )
    )
    pairs += zip(norm.rms_norm(x, weight, eps=1e-5), tools.normalization.rms_norm(x, weight, eps=1e-5), strict=True)
    q, k, v = (put(draw.standard_normal(s)) for s in ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8)))
    for offset in (0, 2, 9):
        ours = MetalCausalAttention(gpu).attend(q, k, v, scale=0.3, offset=offset)
        pairs += zip(ours, tools.causal_attention.attend(q, k, v, scale=0.3, offset=offset), strict=True)
    for got, want in pairs:
        a, b = tools.storage.to_host(got), tools.storage.to_host(want)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
