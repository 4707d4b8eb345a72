from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from turret.conformance.bench import Bench, Mismatch, NotSupported
from turret.conformance.case import Case, call_case
from turret.conformance.execute import Rules, execute
from turret.conformance.given import Call, Draw, Slope
from turret.conformance.oracle import matmul as matmul_oracle
from turret.conformance.results import Result, Status
from turret.conformance.subject import Subject

NAME = "matmul/product/example-f32"
Wrong = Callable[..., Any]


def product_call(draw: Draw) -> Call:
    return Call("matmul", "matmul", (draw.normal(3, 4), draw.normal(4, 5)))


def product() -> Case:
    return call_case(NAME, product_call, matmul_oracle.matmul)


def run(subject: Subject, body: Any, *, perturb: bool = False, **rules: Any) -> Result:
    case = body if isinstance(body, Case) else Case(id="storage/copy/example-f32", body=body, kind="forward")
    return execute(case, subject, Rules(perturb=perturb, **rules))


@pytest.fixture
def product_by(own: ModuleType, subject: Subject) -> Callable[[Wrong], Result]:
    """The case of a product, answered by (the right one, a, b, **flags)."""

    def answered(wrong: Wrong) -> Result:
        own.replaces("matmul", "matmul")(wrong)
        return run(subject, product())

    return answered


def test_a_right_product_passes_and_says_what_it_used(subject: Subject) -> None:
    result = run(subject, product(), perturb=True)
    assert result.status is Status.PASSED
    assert result.budget_used is not None and 0 <= result.budget_used < 1
    assert result.comparisons == 3  # the result and two inputs
    assert result.calls > 0 and result.native and not result.derived and not result.host_transfers


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda right, a, b, **f: None, "got 0 results, wanted 1"),
        (lambda right, a, b, **f: (right(a, b), right(a, b)), "got 2 results, wanted 1"),
        (lambda right, a, b, **f: np.asarray(right(a, b)), r"got numpy\.ndarray, wanted .* own_array\.Own"),
        (lambda right, a, b, **f: right(a, b).tolist(), r"got 3 results|got builtins\.list|got 15 results"),
        (lambda right, a, b, **f: 7.0, r"got builtins\.float, wanted .* own_array\.Own"),
        (lambda right, a, b, **f: right(a, b).astype(np.float64), "got dtype float64, wanted float32"),
        (lambda right, a, b, **f: right(a, b).astype(np.int32), "got dtype int32, wanted float32"),
        (lambda right, a, b, **f: right(a, b)[:, :4], r"got shape \(3, 4\), wanted \(3, 5\)"),
        (lambda right, a, b, **f: right(a, b)[None], r"got shape \(1, 3, 5\), wanted \(3, 5\)"),
        (lambda right, a, b, **f: right(a, b).reshape(15), r"got shape \(15,\), wanted \(3, 5\)"),
        (lambda right, a, b, **f: right(a, b) * np.float32(1.001), "budgets; 15 of 15 elements are off"),
        (lambda right, a, b, **f: right(a, b) * np.float32(np.nan), "got nan, wanted"),
        (lambda right, a, b, **f: right(b, a), "raised ValueError"),
        (lambda right, a, b, **f: exit(3), "raised SystemExit: 3"),
        (lambda right, a, b, **f: 1 / 0, "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_answer_fails_and_the_text_says_what_was_called_and_what_was_wanted(
    product_by: Callable[[Wrong], Result], wrong: Wrong, said: str
) -> None:
    result = product_by(wrong)
    assert result.status is Status.FAILED
    assert result.message.startswith("matmul.matmul(float32[3, 4], float32[4, 5]): ")
    assert re.search(said, result.message), result.message


def test_a_written_input_is_found(product_by: Callable[[Wrong], Result]) -> None:
    def wrong(right: Any, a: Any, b: Any, **flags: Any) -> Any:
        result = right(a, b)
        b[0, 0] += 1
        return result

    result = product_by(wrong)
    assert result.status is Status.FAILED
    assert "input 2 (float32[4, 5]) was written" in result.message


def test_memory_beside_a_view_that_was_written_is_found(own: ModuleType, subject: Subject) -> None:
    @own.replaces("matmul", "matmul")  # type: ignore[untyped-decorator]
    def wrong(right: Any, a: Any, b: Any, **flags: Any) -> Any:
        result = right(a, b)
        a.base[0, 0] = 5.0
        return result

    def build(draw: Draw) -> Call:
        return Call("matmul", "matmul", (draw.normal(3, 4, view="offset"), draw.normal(4, 5)))

    result = run(subject, call_case(NAME, build, matmul_oracle.matmul))
    assert "input 1 (float32[3, 4] offset) was written" in result.message


@pytest.mark.parametrize("may_alias", [False, True])
def test_a_result_that_shares_memory_with_an_input_is_found_unless_it_may(
    own: ModuleType, subject: Subject, may_alias: bool
) -> None:
    own.replaces("storage", "copy")(lambda right, x: x)
    case = call_case(
        "storage/copy/example-f32",
        lambda draw: Call("storage", "copy", (draw.normal(3, 4),)),
        lambda x: x,
        exact=True,
        may_alias=may_alias,
    )
    result = run(subject, case)
    assert result.status is (Status.PASSED if may_alias else Status.FAILED)
    assert may_alias or "shares memory with a result" in result.message


def test_two_results_that_share_memory_are_found(own: ModuleType, subject: Subject) -> None:
    @own.replaces("matmul", "matmul")  # type: ignore[untyped-decorator]
    def wrong(right: Any, a: Any, b: Any, **flags: Any) -> Any:
        result = right(a, b)
        return result, result[:]

    result = run(subject, call_case(NAME, product_call, lambda a, b: (a @ b, a @ b)))
    assert "two results share memory" in result.message


def test_a_written_input_is_found_after_any_body(subject: Subject) -> None:
    def body(bench: Bench) -> None:
        x = bench.put(bench.draw.normal(3))
        x[1] = 0
        bench.require(True, "")

    result = run(subject, body)
    assert result.status is Status.FAILED
    assert "input 1 (float32[3]) was written; no input may change unless it was donated" in result.message


def test_a_donated_input_may_be_written(subject: Subject) -> None:
    def body(bench: Bench) -> None:
        x = bench.put(bench.draw.normal(3))
        bench.donates(x)
        x[:] = 0
        bench.require(True, "")

    assert run(subject, body).status is Status.PASSED


def test_a_case_that_compares_nothing_fails(subject: Subject) -> None:
    result = run(subject, lambda bench: None)
    assert result.status is Status.FAILED
    assert "compared nothing" in result.message


def test_a_result_made_without_the_plugin_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = subject.table.required.matmul
    monkeypatch.setitem(subject.opened.tools.matmul.__dict__, "matmul", right.matmul)
    assert "no call reached the plugin" in run(subject, product()).message


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (lambda bench: bench.needs("bfloat16"), Status.UNSUPPORTED, "the device does not declare bfloat16"),
        (lambda bench: bench.put(bench.draw.normal(2, dtype="bfloat16")), Status.UNSUPPORTED, "bfloat16"),
        (lambda bench: bench.skip("no second device"), Status.SKIPPED, "no second device"),
        (lambda bench: bench.require(False, "two are equal"), Status.FAILED, "two are equal"),
        (lambda bench: bench.refuses(KeyError, lambda: 5), Status.FAILED, "nothing was raised .*int.*wanted KeyError"),
        (lambda bench: bench.refuses((KeyError, OSError), dict), Status.FAILED, "wanted KeyError or OSError"),
        (lambda bench: bench.refuses(KeyError, lambda: [][0]), Status.FAILED, "raised IndexError"),
        (lambda bench: bench.refuses(KeyError, lambda: dict[int, int]()[0]), Status.PASSED, ""),
    ],
)
def test_a_body_ends_as_it_says(subject: Subject, body: Any, status: Status, said: str) -> None:
    result = run(subject, body)
    assert result.status is status
    assert re.search(said, result.message), result.message


def test_a_device_that_has_a_dtype_is_not_unsupported(subject: Subject) -> None:
    bench = Bench(subject, NAME, 0)
    bench.needs("float32", "float64", "int64")
    with pytest.raises(NotSupported, match="bfloat16"):
        bench.needs("float32", "bfloat16")


def test_refused_gives_the_text_of_the_error(subject: Subject) -> None:
    def refuse() -> None:
        raise KeyError("what was said")

    assert "what was said" in Bench(subject, NAME, 0).refuses(KeyError, refuse)


def test_a_lax_comparison_is_found_when_every_comparison_is_perturbed(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turret.conformance.tolerances import compare as right

    def lax(got: Any, want: Any, allowed: Any, dtype: Any) -> Any:
        return right(got, want, allowed * 1000, dtype)

    monkeypatch.setattr("turret.conformance.bench.compare", lax)
    assert run(subject, product()).status is Status.PASSED
    result = run(subject, product(), perturb=True)
    assert result.status is Status.FAILED
    assert "an error of ten budgets" in result.message and "lax" in result.message


def test_a_lax_exact_comparison_is_found_too(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(bench: Bench) -> None:
        given = bench.draw.normal(4)
        bench.exact("copy", bench.tools.storage.copy(bench.put(given)), given.host, "float32")

    assert run(subject, body, perturb=True).status is Status.PASSED
    monkeypatch.setattr("turret.conformance.bench._first_difference", lambda got, want, **more: None)
    assert "the comparison did not see" in run(subject, body, perturb=True).message


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        ([0.0], [-0.0], False),
        ([np.nan], [np.nan], True),
        ([np.nan], [-np.nan], True),
        ([np.nan], [1.0], False),
        ([np.inf], [np.inf], True),
        ([1.0, 2.0], [1.0, np.nextafter(np.float32(2), np.float32(3))], False),
        ([], [], True),
    ],
)
def test_exact_means_every_bit_but_those_of_a_nan(subject: Subject, got: Any, want: Any, same: bool) -> None:
    bench = Bench(subject, NAME, 0)
    array = subject.table.required.storage.from_host(np.array(got, np.float32))
    if same:
        bench.exact("x", array, np.array(want, np.float32), "float32")
    else:
        with pytest.raises(Mismatch, match=r"x: at \(\d,\) of"):
            bench.exact("x", array, np.array(want, np.float32), "float32")


def test_within_names_the_worst_element_and_the_share_of_the_budget(subject: Subject) -> None:
    bench = Bench(subject, NAME, 0)
    want = np.zeros((2, 3))
    got = np.array([[0, 0.05, 0], [0, 0, -0.4]], np.float32)
    with pytest.raises(
        Mismatch, match=r"y: at \(1, 2\) of \(2, 3\) got -0\.4.*wanted 0\.0 within 0\.1: 4 budgets; 1 of 6"
    ):
        bench.within("y", got, want, 0.1)
    assert bench.budget_used == pytest.approx(4)


def sloped(gradient: Callable[[Any, Any], Any]) -> Case:
    """exp through elementwise, whose "gradient" is dy times what is given; the oracle errs in the same way."""

    def build(draw: Draw) -> Call:
        dy, x = draw.normal(5), draw.normal(5)
        slope = Slope(lambda value: np.square(value), (x.exact,), dy.exact)
        return Call("elementwise", "multiply", (dy, draw.of(gradient(x.host, dy.host))), slope=slope)

    return call_case("elementwise/square-vjp/example-f32", build, lambda dy, factor: dy * factor, kind="vjp")


def test_finite_differences_are_a_second_opinion_about_a_gradient(subject: Subject) -> None:
    assert run(subject, sloped(lambda x, dy: 2 * x)).status is Status.PASSED
    for wrong in (lambda x, dy: 2.05 * x, lambda x, dy: 2 * dy, lambda x, dy: x * 0):
        result = run(subject, sloped(wrong))
        assert result.status is Status.FAILED
        assert "finite differences say" in result.message


def test_forbidding_derived_fails_what_a_composition_answered_and_nothing_else(subject: Subject) -> None:
    def body(bench: Bench) -> None:
        x = bench.put(bench.draw.normal(3, 4))
        bench.get(bench.tools.softmax.softmax(x))
        bench.require(True, "")

    allowed = run(subject, body)
    assert allowed.status is Status.PASSED and allowed.derived == ("softmax",)
    forbidden = run(subject, body, forbid_derived=True)
    assert forbidden.status is Status.FAILED
    assert "composed by turret.derived (softmax), which --forbid-derived forbids" in forbidden.message
    assert run(subject, product(), forbid_derived=True).status is Status.PASSED


def test_forbidding_the_host_fails_what_goes_through_it_inside_a_call(subject: Subject) -> None:
    assert run(subject, product(), forbid_host=True).status is Status.PASSED

    def body(bench: Bench) -> None:
        bench.require(bench.tools.random.uniform((3,), key=1, counter=0) is not None, "")

    through = run(subject, body)
    assert through.status is Status.PASSED
    assert through.host_transfers > 0
    result = run(subject, body, forbid_host=True)
    assert "went through the host (random: storage.from_host x 1)" in result.message
