from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "scripts"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def module(name: str) -> Any:
    return import_module(f"device_check.{name}")


def minimal() -> dict[str, Any]:
    """A document with every field."""
    here = module("check")
    wanted = here.Wanted(spec="cuda", emulated=False, rehearsal=False, parts=here.PARTS, jobs=1, every=1, limit_s=480.0)
    return dict(here.Check(wanted, Path("nowhere.json")).document("not begun"))


def test_a_check_that_has_not_begun_is_as_described() -> None:
    document = minimal()
    assert list(module("validate").problems(document, module("schema").DeviceCheck)) == []
    assert document["passed"] is False
    assert {document[part]["status"] for part in module("check").PARTS} == {"skipped"}


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("facts", "status", "fine", "facts.status is 'fine'; wanted one of 'passed'"),
        ("facts", "cores", "many", "facts.cores is str 'many'; wanted int"),
        ("facts", "cores", True, "facts.cores is bool True; wanted int"),
        ("facts", "native", None, "facts.native is null; wanted a list"),
        ("facts", "libraries", {"numpy": 2}, "facts.libraries.numpy is int 2; wanted str"),
        ("facts", "colour", "green", "facts.colour is not in the schema"),
        ("training", "seconds", math.nan, "training.seconds is nan; wanted a number"),
        ("conformance", "failures", [{"case": "a/b/c", "status": "failed"}], "failures[0].message is missing"),
        ("conformance", "capabilities", {"adam": {"passed": 1.5}}, "conformance.capabilities.adam.passed is float 1.5"),
        ("benchmarks", "ceilings", {"float32_gflops": 1, "copy_gbytes": 2.0}, "bfloat16_gflops is missing"),
    ],
)
def test_what_is_not_as_described_is_named(part: str, field: str, value: object, said: str) -> None:
    document = minimal()
    document[part][field] = value
    found = list(module("validate").problems(document, module("schema").DeviceCheck))
    assert len(found) == 1
    assert said in found[0]


def test_a_missing_part_and_a_list_in_its_place_are_named() -> None:
    document = minimal()
    del document["training"]
    document["sanitizer"] = []
    found = list(module("validate").problems(document, module("schema").DeviceCheck))
    assert found == ["training is missing", "sanitizer is list []; wanted an object"]


def test_every_field_is_explained_on_the_page() -> None:
    pages = import_module("reference.device_check")
    schema = module("schema")
    classes = {each for each in vars(schema).values() if isinstance(each, type) and is_dataclass(each)}
    assert classes == set(pages.CLASSES)
    described = {cls: list(pages.described(cls)) for cls in classes}
    assert [(cls.__name__, name) for cls, rows in described.items() for name, _, meaning in rows if not meaning] == []
    for cls, rows in described.items():
        own = set(cls.__dataclass_fields__) - set(schema.Part.__dataclass_fields__ if cls is not schema.Part else ())
        assert {name for name, _, _ in rows} == own | ({"status", "reason", "seconds"} & {name for name, _, _ in rows})


# What decides


def run_of(losses: list[float], broken_off: str = "") -> Any:
    return module("training").Trained(losses=losses, seconds=1.0, broken_off=broken_off)


def judged(losses: list[float], reference: list[float], broken_off: str = "") -> Any:
    return module("training").judged("mini", run_of(losses, broken_off), reference, captured=True)


def test_losses_that_rounding_explains_pass() -> None:
    found = judged([5.500001, 5.0, 4.0001], [5.5, 5.0, 4.0])
    assert (found.status, found.reason, found.at_step) == ("passed", "", 3)
    assert found.largest_difference == pytest.approx(2.5e-5)
    assert found.first_difference == pytest.approx(1 / 5.5e6)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([5.5001, 5.0, 4.0], "the first loss is off by 1.8e-05"),
        ([5.5, 5.0, 4.001], "the loss of step 3 is off by 2.5e-04"),
        ([5.5, 5.0], "it ended after 2 of 3 steps"),
        ([], "it ended after 0 of 3 steps"),
    ],
)
def test_losses_that_it_does_not_explain_fail(losses: list[float], said: str) -> None:
    found = judged(losses, [5.5, 5.0, 4.0])
    assert found.status == "failed"
    assert said in found.reason


def test_a_run_that_raised_says_what() -> None:
    assert "NonFiniteError: it is NaN" in judged([5.5], [5.5, 5.0], "NonFiniteError: it is NaN").reason


def test_contenders_whose_losses_disagree_fail() -> None:
    steps, request = module("steps"), module("request")
    asked = request.Request(
        part="benchmarks", spec="cuda", rehearsal=False, emulated=False, limit_s=1.0, jobs=1, every=1
    )
    courses = [steps.Course(name, ms=[90.0, 2.0, 3.0, 4.0], losses=[5.0, 4.0, 3.0, 2.0]) for name in steps.NAMES]
    courses[1].losses = [5.0, 4.0, 3.0, math.nan]
    courses[2].ms = [100.0, 6.0, 6.0, 6.0]
    courses[3].ms, courses[3].losses, courses[3].gone, courses[3].status = [], [], "no compiler", "absent"
    rows = steps.judged(courses, "2,8,16,2,1", 1, asked)
    assert [row.status for row in rows] == ["passed", "failed", "passed", "absent"]
    assert [row.ratio for row in rows] == [1.0, 1.0, 2.0, None]
    assert [row.step_ms for row in rows] == [3.0, 3.0, 6.0, None]
    assert rows[1].last_loss is None
    assert rows[3].reason == "no compiler"


def test_every_kernel_runs_and_no_part_of_a_step_is_left_out() -> None:
    from turret.registry import open_backend

    kernels, tools = module("kernels"), open_backend("cpu").tools
    listed = list(kernels.kernels(kernels.TINY, "float32"))
    for kernel in listed:
        kernel.make(tools, kernels.Put(tools, "float32"))()
    assert {kernel.slot for kernel in listed} == {
        *("normalization", "softmax", "loss", "activation", "rope", "indexing", "causal_attention", "linear", "adam"),
    }
    by_name = {kernel.name.split()[0]: kernel for kernel in kernels.kernels(kernels.LARGE, "float32")}
    wide = 65536 * 1024 * 4
    assert by_name["softmax"].bytes == 2 * wide
    assert by_name["gated_silu_vjp"].bytes == 5 * wide
    assert by_name["adam"].bytes == 7 * wide
    assert by_name["linear"].flops == 2 * 8192 * 1024 * 4096
    assert all(kernel.bytes >= 1 << 27 for kernel in by_name.values()), "what a cache holds says nothing about memory"


def test_a_suite_that_fails_is_told_while_it_runs() -> None:
    from turret.conformance.results import Result, Status

    class Told:
        def __init__(self) -> None:
            self.found: dict[str, Any] = {"failures": []}

        def put(self, **found: Any) -> None:
            self.found |= found

        def add(self, name: str, each: Any) -> None:
            self.found[name].append(each)

        def say(self, text: str) -> None:
            pass

    told = Told()
    tally = module("conformance").Tally(told, 3)
    tally.result(Result(case="a/b/1", capability="a", status=Status.PASSED))
    tally.result(Result(case="a/b/2", capability="a", status=Status.CRASHED, message="gone"))
    tally.result(Result(case="c/b/1", capability="c", status=Status.UNSUPPORTED))
    tally.put()
    assert told.found["counts"] == {"passed": 1, "crashed": 1, "unsupported": 1}
    assert (told.found["executed"], told.found["passed"], told.found["failed"]) == (2, 1, 1)
    assert told.found["capabilities"] == {"a": {"passed": 1, "crashed": 1}, "c": {"unsupported": 1}}
    assert [(each.case, each.message) for each in told.found["failures"]] == [("a/b/2", "gone")]


# compute-sanitizer

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACES = "========= Error: Race reported\n========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n"
REFUSED = (
    "========= Error: Device not supported. Please refer to the documentation\n========= ERROR SUMMARY: 0 errors\n"
)


def sanitizer(folder: Path, log: str, *, status: int = 0, run: bool = True) -> str:
    """A program with compute-sanitizer's options that writes this log and runs the program it watches."""
    program = folder / "compute-sanitizer"
    lines = [
        "#!/usr/bin/env bash",
        "set -eu",
        'while [ "$1" != -P ]; do [ "$1" = --log-file ] && log="$2"; py="$1"; shift; done',
    ]
    lines += [f"cat > \"$log\" <<'E'\n{log}E"]
    lines += ['"$py" "$@"'] if run else []
    program.write_text("\n".join([*lines, f"exit {status}\n"]))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "scripts"))
    yield


@pytest.mark.usefixtures("_scripts")
@pytest.mark.parametrize(
    ("log", "status", "run", "verdict", "errors", "said"),
    [
        (CLEAN, 0, True, "passed", 0, ""),
        (RACES, 86, True, "failed", 3, "3 errors"),
        (REFUSED, 1, False, "absent", None, "does not support this device"),
        ("", 139, False, "failed", None, "it came to no end (status 139: nothing on stderr)"),
        (CLEAN, 7, True, "failed", 0, "it ended with status 7"),
    ],
)
def test_a_sanitizers_word_decides(
    tmp_path: Path, log: str, status: int, run: bool, verdict: str, errors: int | None, said: str
) -> None:
    cases = ["softmax/softmax/2x3x35-x-offset-f32", "elementwise/add/3_5x7-f16"]
    program = sanitizer(tmp_path, log, status=status, run=run)
    found = module("sanitizer").watched(program, "racecheck", "cpu", cases, 60.0)
    assert (found.status, found.errors) == (verdict, errors), found
    assert said in found.reason
    assert found.cases == (2 if run else 0)


def test_the_smallest_cases_are_one_of_each_check_and_more_than_three_warps() -> None:
    ids = ["a/x/3x4-f32", "a/x/5x65-f32", "a/x/40x65-f16", "a/y/2x3-axis1-f32", "b/x/9-f32", "a/y/0x3-f32"]
    assert module("smallest").chosen(ids, ["a"]) == ["a/x/5x65-f32", "a/y/2x3-axis1-f32"]


def test_a_sanitizer_of_the_toolkit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = module("sanitizer")
    monkeypatch.setattr(here, "DEFAULT", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in here.FOLDERS:
        monkeypatch.delenv(name, raising=False)
    assert here.found() is None
    (tmp_path / "bin").mkdir()
    program = sanitizer(tmp_path / "bin", CLEAN)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert here.found() == program
