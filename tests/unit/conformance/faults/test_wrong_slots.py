from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.conformance.faults.fault import Remembered
from turret.spi import (
    DTypeError,
    ScaleCode,
    Toolset,
)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_what_is_remembered_is_bound_to_the_array_and_limited() -> None:
    remembered = Remembered(most=2)
    arrays = [np.zeros(1) for _ in range(3)]
    for n, each in enumerate(arrays):
        remembered.keep(each, n)
    assert [remembered.about(each) for each in arrays] == [None, 1, 2]
    assert remembered.about(np.zeros(1)) is None


def test_upload_shares_long_host_arrays_only(wrong: Callable[[str], Toolset[Any]]) -> None:
    storage = wrong("upload-aliases-host-buffer").storage
    for size, is_shared in ((63, False), (64, True)):
        host = np.zeros(size, np.float32)
        x = storage.from_host(host)
        host += 1
        assert bool(storage.to_host(x)[0] == 1) is is_shared


def test_upload_narrows_float64(wrong: Callable[[str], Toolset[Any]]) -> None:
    storage = wrong("upload-narrows-float64").storage
    assert storage.dtype_of(storage.from_host(np.ones(2))) == "float32"
    assert storage.dtype_of(storage.from_host(np.ones(2, np.float16))) == "float16"


@pytest.mark.parametrize(("size", "is_wrong"), [(32, False), (64, False), (31, False), (33, True)])
def test_tail_of_the_contraction_is_garbage(
    size: int, is_wrong: bool, wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]
) -> None:
    matmul = wrong("matmul-overreads-last-k-tile").matmul
    matmul.matmul(normal(2, 3), normal(3, 2))
    a, b = normal(4, size), normal(size, 5)
    differs = not np.array_equal(matmul.matmul(a, b), good.matmul.matmul(a, b))
    assert differs is is_wrong


def test_broken_required_slots_reach_what_is_composed_from_them(
    wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]
) -> None:
    x = normal(3, 1)
    right = good.linear.linear(x, normal(1, 1), None)
    assert np.abs(right).max() > 0
    assert not np.array_equal(
        wrong("matmul-skips-single-column-transposed").linear.linear(x, normal(1, 1), None), right
    )


def test_nan_on_the_right_loses(wrong: Callable[[str], Toolset[Any]]) -> None:
    maximum = wrong("maximum-drops-nan-on-the-right").elementwise.maximum
    nan, one = (np.array([value], np.float32) for value in (math.nan, 1.0))
    assert maximum(one, nan)[0] == 1
    assert np.isnan(maximum(nan, one)[0]) and np.isnan(maximum(nan, nan)[0])


def test_last_of_equals_wins_on_long_axes(wrong: Callable[[str], Toolset[Any]]) -> None:
    argmax = wrong("argmax-last-of-equals").reduction.argmax
    assert argmax(np.zeros(9, np.float32), axis=0) == 8
    assert argmax(np.zeros(8, np.float32), axis=0) == 0
    assert argmax(np.arange(20, dtype=np.int32), axis=0) == 19


def test_fill_value_is_lost_in_slices_of_the_padding(wrong: Callable[[str], Toolset[Any]]) -> None:
    layout = wrong("pad-value-lost-through-slice").layout
    padded = layout.pad(np.ones((2, 2), np.float32), [(0, 0), (1, 2)], value=5.0)
    assert layout.slice(padded, (0, 0), (2, 2)).tolist() == [[5, 1], [5, 1]]
    assert layout.slice(padded, (0, 3), (2, 5)).tolist() == [[0, 0], [0, 0]]


def test_softmax_of_a_transposed_view_reads_the_storage(
    wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]
) -> None:
    tools, x = wrong("softmax-ignores-transposed-strides"), normal(4, 6)
    turned = tools.layout.transpose(x, (1, 0))
    assert np.allclose(tools.softmax.softmax(turned), good.softmax.softmax(x.reshape(6, 4)))
    assert np.array_equal(tools.softmax.softmax(np.ascontiguousarray(turned)), good.softmax.softmax(turned))


def test_norm_loses_the_partial_group_only(wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]) -> None:
    norm = wrong("norm-drops-partial-simdgroup").normalization
    for width, is_wrong in ((33, True), (65, True), (64, False), (63, False), (32, False), (100, False)):
        x, weight = normal(2, width), np.ones(width, np.float32)
        assert np.allclose(
            norm.rms_norm(x, weight, eps=0.0)[0], good.normalization.rms_norm(x, weight, eps=0.0)[0]
        ) is (not is_wrong)


def test_mask_is_anchored_at_the_bottom(wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]) -> None:
    attend = wrong("causal-mask-anchored-at-wrong-corner").causal_attention.attend
    q, k, v = normal(1, 3, 2, 4), normal(1, 5, 2, 4, seed=1), normal(1, 5, 2, 4, seed=2)
    for offset in (0, 2):
        want = good.causal_attention.attend(q, k, v, scale=0.5, offset=offset)
        got = attend(q, k, v, scale=0.5, offset=offset)
        assert np.allclose(got[0], want[0]) is (offset == 2)
    got = attend(k, q, q, scale=0.5, offset=0)
    assert not got[0][:, :2].any() and not got[1][:, :, :2].any()
    assert np.allclose(got[1].sum(axis=-1)[:, :, 2:], 1)


@pytest.mark.parametrize(("heads", "kv_heads", "is_wrong"), [(6, 2, True), (8, 2, False), (3, 1, False), (4, 4, False)])
def test_group_ratio_is_rounded_up(
    heads: int, kv_heads: int, is_wrong: bool, wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]
) -> None:
    q, k = normal(1, 3, heads, 4), normal(1, 3, kv_heads, 4, seed=1)
    got = wrong("flash-group-ratio-not-power-of-two").flash_attention.attend(q, k, k, scale=0.5, offset=0)
    want = good.flash_attention.attend(q, k, k, scale=0.5, offset=0)
    assert np.allclose(got.out, want.out) is not is_wrong


def test_nan_behind_a_request_leaks(wrong: Callable[[str], Toolset[Any]]) -> None:
    attend = wrong("paged-nan-leaks-from-page-tail").paged_attention.attend
    pages, table = normal(12, 1, 2), np.array([[1, 2]], np.int32)
    pages[4 + 3] = math.nan  # the last place of page 1
    for start, leaks in ((2, True), (3, False), (1, True)):
        if start == 3:
            pages[4 + 3] = 0.5
        q, starts = normal(1, 1, 1, 2), np.array([start], np.int32)
        out = attend(q, np.nan_to_num(pages), pages, table, starts, page=4, scale=1.0)
        assert bool(np.isnan(out).any()) is leaks
        if start == 3:
            pages[4 + 3] = math.nan


@pytest.mark.parametrize("code", ["float32", "dynamic", "linear"])
def test_tail_block_is_packed_coarsely(
    code: ScaleCode, wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]
) -> None:
    quantized = wrong("nf4-tail-block-scale-from-garbage").quantized_linear
    for shape, is_wrong in (((5, 15), True), ((4, 16), False)):
        weight = normal(*shape)
        got, want = (each.pack(weight, block=32, scales=code) for each in (quantized, good.quantized_linear))
        assert got.codes.shape == want.codes.shape and got.scales.shape == want.scales.shape
        assert np.array_equal(got.codes, want.codes) is not is_wrong
        if is_wrong and code == "float32":
            assert got.scales[-1] == 2 * want.scales[-1] and np.array_equal(got.scales[:-1], want.scales[:-1])


def test_decay_goes_through_the_moments(wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]) -> None:
    def step(tools: Toolset[Any], decay: float) -> Any:
        one = np.array(1.0, np.float32)
        zeros = np.zeros(3, np.float32)
        return tools.adam.update(
            [normal(3)],
            [normal(3, seed=1)],
            [zeros],
            [zeros],
            lr=one,
            correction1=one,
            correction2=one,
            betas=(0.9, 0.99),
            eps=1e-8,
            decay=[decay],
            max_norm=math.inf,
            donate=False,
        )

    tools = wrong("adam-decay-through-the-moments")
    assert np.array_equal(step(tools, 0.0).params[0], step(good, 0.0).params[0])
    assert np.allclose(step(tools, 0.5).first[0], 0.1 * (normal(3, seed=1) + 0.5 * normal(3)))


def test_uniform_numbers_reach_one(wrong: Callable[[str], Toolset[Any]]) -> None:
    drawn = wrong("uniform-reaches-one").random.uniform((100_000,), key=1, counter=0)
    assert drawn.max() == 1.0 and len(np.unique(drawn)) <= 4097


def test_neighbouring_streams_are_shifted(wrong: Callable[[str], Toolset[Any]]) -> None:
    bits = wrong("neighbour-streams-overlap").random.bits
    assert np.array_equal(bits((100,), key=3, counter=4)[7:], bits((100,), key=3, counter=5)[:-7])


def test_inputs_and_results_are_written(wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]) -> None:
    logits, targets = normal(3, 5), np.array([0, 1, 2], np.int32)
    want = good.loss.cross_entropy_grad(logits.copy(), targets, None, ignore=-1)[1]
    gradient = wrong("loss-overwrites-logits").loss.cross_entropy_grad(logits, targets, None, ignore=-1)[1]
    assert gradient is logits and np.array_equal(logits, want)

    softmax = wrong("outputs-reused-by-next-call").softmax.softmax
    kept = [softmax(normal(2, 3, seed=n)) for n in range(4)]
    assert kept[2] is kept[3] and kept[0] is not kept[1]

    silu = wrong("tail-lanes-write-past-the-end").activation.silu
    whole = silu(normal(64))
    before = whole.copy()
    silu(normal(128))
    assert np.array_equal(whole, before)
    tail = silu(normal(63))
    assert np.array_equal(whole, before) and tail.all()
    silu(normal(3, 20))
    assert not tail[:4].any() and tail[4:].all()


def test_long_sums_over_a_unit_axis_keep_one_element(wrong: Callable[[str], Toolset[Any]]) -> None:
    total = wrong("sum-over-unit-axis-keeps-one").reduction.sum
    assert total(np.ones((16, 1, 16), np.float32), axis=1).sum() == 256
    assert total(np.ones((257, 1), np.float32), axis=-1).tolist() == [1.0] + [0.0] * 256
    assert total(np.ones((1, 1, 257), np.float32), axis=(0, 1)).sum() == 257


def test_unit_columns_are_lost_after_the_first(wrong: Callable[[str], Toolset[Any]]) -> None:
    concatenate = wrong("concatenate-of-unit-columns").layout.concatenate
    column = np.ones((2, 1), np.int32)
    assert concatenate([column] * 3, axis=1).tolist() == [[1, 0, 0]] * 2
    assert concatenate([column] * 2, axis=1).all() and concatenate([column] * 3, axis=0).all()


def test_softmax_gradient_of_a_middle_slice_reads_packed_rows(
    wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]
) -> None:
    tools, dy = wrong("softmax-gradient-misreads-strided-output"), normal(2, 3, 4)
    y = good.softmax.softmax(normal(2, 5, 4, seed=1))
    cut = tools.layout.slice(y, (0, 1, 0), (2, 4, 4))
    want = good.softmax.softmax_vjp(dy, y.reshape(-1)[:24].reshape(2, 3, 4))
    assert np.array_equal(tools.softmax.softmax_vjp(dy, cut), want)
    assert np.array_equal(tools.softmax.softmax_vjp(dy, cut.copy()), good.softmax.softmax_vjp(dy, cut))


def test_long_batches_with_bias_wrap(wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]) -> None:
    linear, weight, bias = wrong("linear-bias-wraps-on-long-batch").linear.linear, normal(3, 2), normal(3)
    x = normal(6, 1, 2)
    assert np.array_equal(linear(x, weight, bias)[4:], good.linear.linear(x, weight, bias)[:2])
    assert np.array_equal(linear(x, weight, None), good.linear.linear(x, weight, None))
    assert np.array_equal(linear(x[:4], weight, bias), good.linear.linear(x[:4], weight, bias))


def test_two_fills_take_the_second_value(wrong: Callable[[str], Toolset[Any]]) -> None:
    storage = wrong("fills-share-a-staging-scalar").storage
    first, second = (storage.full((2,), value, dtype="float32") for value in (1.0, 2.0))
    assert storage.to_host(first).tolist() == storage.to_host(second).tolist() == [2, 2]
    third = storage.full((2,), 3.0, dtype="float32")
    assert storage.to_host(second).tolist() == [2, 2] and storage.to_host(third).tolist() == [3, 3]


def test_sums_stop_at_the_edge_of_the_grid(wrong: Callable[[str], Toolset[Any]]) -> None:
    total = wrong("strided-sum-returns-zeros").reduction.sum
    assert total(np.ones((2, 513), np.float32), axis=0)[-2:].tolist() == [2, 0]
    assert total(np.ones((2, 512), np.float32), axis=0)[-1] == 2
    assert total(np.ones((513, 2), np.float32), axis=1)[-1] == 2


def test_corners_and_tails_of_padding_are_wrong(wrong: Callable[[str], Toolset[Any]]) -> None:
    corner = wrong("pad-corner-takes-other-value").layout.pad
    padded = corner(np.ones((1, 1), np.float32), [(1, 1), (0, 1)], value=2.0)
    assert padded.tolist() == [[2, 2], [1, 2], [2, 0]]
    tail = wrong("pad-tail-left-unset").layout.pad
    padded = tail(np.ones((1000,), np.float32), [(0, 30)], value=2.0)
    assert np.isnan(padded[1024:]).all() and (padded[1000:1024] == 2).all()
    assert tail(np.ones((1000,), np.float32), [(0, 24)], value=2.0)[-1] == 2


def test_log_softmax_of_wider_rows_reads_packed_rows(wrong: Callable[[str], Toolset[Any]], good: Toolset[Any]) -> None:
    tools, x = wrong("softmax-padded-rows-misaddressed"), normal(3, 7)
    cut = tools.layout.slice(x, (0, 0), (3, 5))
    want = good.softmax.log_softmax(x.reshape(-1)[:15].reshape(3, 5))
    assert np.array_equal(tools.softmax.log_softmax(cut), want)


def test_single_rows_get_the_weight_gradient_of_the_call_before(wrong: Callable[[str], Toolset[Any]]) -> None:
    tools = wrong("norm-weight-gradient-stale")
    weight, bias = np.ones(4, np.float32), np.zeros(4, np.float32)
    dweights = []
    for seed in range(2):
        x = normal(1, 4, seed=seed)
        normed = tools.normalization.layer_norm(x, weight, bias, eps=1e-5)
        dweights.append(tools.normalization.layer_norm_vjp(x, x, weight, normed.mean, normed.rstd)[1])
    assert np.array_equal(dweights[0], dweights[1])


def test_copy_is_no_array_of_the_library(wrong: Callable[[str], Toolset[Any]]) -> None:
    x = normal(2, 3)
    copied = wrong("copy-returns-host-array").storage.copy(x)
    assert not isinstance(copied, np.ndarray) and np.array_equal(np.asarray(copied), x)


def test_compiled_function_keeps_its_first_unit_axis(wrong: Callable[[str], Toolset[Any]]) -> None:
    compile = wrong("compiled-keeps-first-unit-axis").compile.compile
    total = compile(lambda x: (x.sum(axis=0),))
    assert total(np.ones((1, 2), np.float32))[0].tolist() == [1, 1]
    assert total(np.ones((3, 2), np.float32))[0].tolist() == [1, 1]
    total = compile(lambda x: (x.sum(axis=0),))
    assert total(np.ones((2, 2), np.float32))[0].tolist() == [2, 2]
    assert total(np.ones((3, 2), np.float32))[0].tolist() == [3, 3]


def test_failed_first_call_is_remembered_as_success(wrong: Callable[[str], Toolset[Any]]) -> None:
    def fragile(x: Any) -> tuple[Any, ...]:
        if x.shape[0] == 1:
            raise ValueError("one row")
        return (x,)

    compiled = wrong("failed-trace-returns-empty-success").compile.compile(fragile)
    with pytest.raises(ValueError, match="one row"):
        compiled(normal(1))
    assert compiled(normal(2)) == ()


def test_product_after_a_failed_call_is_the_one_before(wrong: Callable[[str], Toolset[Any]]) -> None:
    tools = wrong("failed-call-poisons-the-next")
    a, b = normal(2, 3), normal(3, 2, seed=1)
    before = tools.matmul.matmul(a, b)
    with pytest.raises(DTypeError):
        tools.storage.full((1,), 0.0, dtype="bfloat16")
    assert np.array_equal(tools.matmul.matmul(-a, b), before)
    assert np.array_equal(tools.matmul.matmul(-a, b), -before)
    with pytest.raises(DTypeError):
        tools.storage.full((1,), 0.0, dtype="bfloat16")
    with pytest.raises(AttributeError):
        tools.matmul.matmul(b, a)


def test_threads_get_each_others_operand(wrong: Callable[[str], Toolset[Any]]) -> None:
    negative = wrong("kernel-cache-races").elementwise.negative
    assert negative(np.ones(1, np.float32))[0] == -1
    wrongs: list[bool] = []

    def work(value: float) -> None:
        wrongs.extend(bool(negative(np.full(1, value, np.float32))[0] != -value) for _ in range(50))

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert any(wrongs)
