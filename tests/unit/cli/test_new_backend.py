"""`turret new-backend` writes all of a working distribution, or says why not and writes nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from turret import __version__
from turret.cli import main, new_backend
from turret.conformance.report import Report
from turret.conformance.results import Result, Status

STRICT = ("--from", "array-api", "--namespace", "array_api_strict")
LONGEST = "abcdefghi-bcdefghij-cdefghijkl"
RULES = ("--select", "E,F,I,UP,B,SIM,RUF,D,BLE", "--ignore", "D102,D103,D105,D107")
STYLE = ("--isolated", "--line-length", "120", "--target-version", "py311")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def written(folder: Path) -> dict[str, str]:
    """Every file with its text."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def installed(site: Any, project: Path) -> None:
    """Lays `project` out in the site as pip would leave it."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    package = f"turret_{next(iter(facts['entry-points']['turret']))}"
    shutil.copytree(project / "src" / package, site.folder / package)
    info = site.folder / f"{package}-{facts['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n")
    points = [f"{name} = {value}" for name, value in facts["entry-points"]["turret"].items()]
    (info / "entry_points.txt").write_text("[turret]\n" + "\n".join(points) + "\n")


def tool(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def report(path: Path, statuses: list[Status] | None) -> None:
    """What `turret conformance --json` writes for cases that ended like this; None: it wrote nothing."""
    path.unlink(missing_ok=True)
    if statuses is not None:
        results = [Result(case=f"layout/{n}", capability="layout", status=each) for n, each in enumerate(statuses)]
        made = Report(backend="x", facts={}, asked={}, started="", seconds=1.0, results=results, problems=[])
        path.write_text(json.dumps(made.as_json()))


@pytest.mark.parametrize("start", [(), STRICT], ids=["numpy", "array-api"])
def test_a_distribution_is_written_with_nothing_left_to_fill_in(here: Path, start: tuple[str, ...]) -> None:
    assert main(["new-backend", "my-gpu", *start]) == 0
    assert [path.name for path in here.iterdir()] == ["turret-my-gpu"]
    files = written(here / "turret-my-gpu")
    assert set(files) == {
        ".github/workflows/conformance.yml",
        "README.md",
        "badge.json",
        "pyproject.toml",
        "src/turret_my_gpu/__init__.py",
        "src/turret_my_gpu/backend.py",
        "src/turret_my_gpu/conformance.toml",
        "src/turret_my_gpu/plugin.py",
        "src/turret_my_gpu/probe.py",
        "src/turret_my_gpu/py.typed",
        "tests/test_conformance.py",
    }
    assert [path for path, text in files.items() if "%" in text or "turret_name" in text] == []
    assert all(text.endswith("\n") or path.endswith("py.typed") for path, text in files.items())


def test_the_project_names_its_entry_point_its_needs_and_its_package_data(here: Path) -> None:
    assert main(["new-backend", "my-gpu", *STRICT]) == 0
    data = tomllib.loads((here / "turret-my-gpu" / "pyproject.toml").read_text())
    assert data["project"]["name"] == "turret-my-gpu"
    assert data["project"]["entry-points"] == {"turret": {"my_gpu": "turret_my_gpu.plugin"}}
    assert data["project"]["dependencies"] == [f"core>={__version__}", "array-api-strict"]
    assert data["tool"]["setuptools"]["package-data"] == {"turret_my_gpu": ["py.typed", "conformance.toml"]}


@pytest.mark.parametrize(
    ("namespace", "needs"),
    [("jax.numpy", ["jax"]), ("array_api_compat.torch", ["array-api-compat", "torch"]), ("numpy", ["numpy>=2.1"])],
)
def test_the_package_of_the_namespace_is_a_dependency(here: Path, namespace: str, needs: list[str]) -> None:
    assert main(["new-backend", "x", "--from", "array-api", "--namespace", namespace]) == 0
    project = tomllib.loads((here / "turret-x" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"][1:] == needs
    assert f"import {namespace} as xp" in (here / "turret-x/src/turret_x/backend.py").read_text()


def test_claims_badge_workflow_and_test_speak_of_this_backend(here: Path) -> None:
    assert main(["new-backend", "my-gpu"]) == 0
    files = written(here / "turret-my-gpu")
    claims = files["src/turret_my_gpu/conformance.toml"]
    assert tomllib.loads(claims) == {"profiles": ["primitives", "inference", "training"]}
    uncommented = re.sub(r"(?m)^# (?=\[\[|case|reason|link|expires)", "", claims)
    (example,) = tomllib.loads(uncommented)["expected"]
    assert set(example) == {"case", "reason", "link", "expires"}
    badge = json.loads(files["badge.json"])
    assert (badge["schemaVersion"], set(badge)) == (1, {"schemaVersion", "label", "message", "color"})
    assert "turret conformance my_gpu --profile training --json" in files[".github/workflows/conformance.yml"]
    assert '"my_gpu", "--profile", "training"' in files["tests/test_conformance.py"]


def test_the_workflow_turns_a_report_into_a_badge(here: Path) -> None:
    assert main(["new-backend", "x"]) == 0
    text = (here / "turret-x/.github/workflows/conformance.yml").read_text()
    step = text.partition("shell: python\n        run: |\n")[2].partition("      - uses")[0]
    code = "".join(line[10:] if line.strip() else line for line in step.splitlines(keepends=True))
    for statuses, message, color in [
        ([Status.PASSED, Status.PASSED, Status.SKIPPED], "training: 2 of 2 cases pass", "brightgreen"),
        ([Status.PASSED, Status.FAILED, Status.CRASHED], "training: 1 of 3 cases pass", "red"),
        ([Status.UNSUPPORTED], "training: 0 of 0 cases pass", "red"),
        (None, "training: 0 of 0 cases pass", "red"),
    ]:
        report(here / "report.json", statuses)
        exec(compile(code, "badge step", "exec"), {})
        badge = json.loads((here / "badge.json").read_text())
        assert (badge["message"], badge["color"]) == (message, color)


def test_the_next_steps_are_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-backend", "my-gpu", "--out", "a b"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [line.strip() for line in printed.out.splitlines()] == [
        "wrote a b; next:",
        "",
        "cd 'a b'",
        "pip install -e .",
        "turret conformance my_gpu --profile training",
    ]


COMPUTE = """
import numpy as np
from turret.registry import open_backend
opened = open_backend("mine")
storage, indexing = opened.tools.storage, opened.tools.indexing
def put(*values, dtype="{dtype}"):
    return storage.from_host(np.array(values, dtype))
def rows(*ids):
    return put(*ids, dtype="int32")
base = put([0], [0], [0])
print(storage.to_host(indexing.scatter_add_rows(base, rows(*[0] * 4096), put(*[[1]] * 4096))).tolist())
print(storage.to_host(indexing.set_rows(base, rows(2), put([1]))).tolist())
print(storage.to_host(base).tolist())
donated = put([1], [1])
print(storage.to_host(indexing.scatter_add_rows(donated, rows(1, 1), put([1], [1]), donate=True)).tolist())
print(storage.to_host(opened.tools.elementwise.rsqrt(put(0))).tolist())
print(sorted(opened.tools.native), opened.info.distribution)
opened.backend.close()
opened.backend.close()
"""


@pytest.mark.parametrize("start", [(), STRICT], ids=["numpy", "array-api"])
def test_the_written_backend_is_listed_probed_opened_and_computes(
    here: Path, site: Any, start: tuple[str, ...]
) -> None:
    assert main(["new-backend", "mine", *start]) == 0
    installed(site, here / "turret-mine")
    listed = json.loads(site.run("-m", "turret", "backends", "--json", "--probe", TURRET_PLUGINS="mine").stdout)
    (row,) = [row for row in listed if row["name"] == "mine"]
    assert (row["state"], row["distribution"], row["version"]) == ("usable", "turret-mine", "0.1.0")
    strict_has_no_halves = "float32" if start else "float16"
    shown = site.python(COMPUTE.replace("{dtype}", strict_has_no_halves), PYTHONWARNINGS="" if start else "error")
    assert shown.splitlines() == [
        "[[4096.0], [0.0], [0.0]]",
        "[[0.0], [0.0], [1.0]]",
        "[[0.0], [0.0], [0.0]]",
        "[[1.0], [3.0]]",
        "[inf]",
        "[] turret-mine",
    ]


@pytest.mark.parametrize("start", [(), STRICT], ids=["numpy", "array-api"])
def test_the_written_backend_refuses_what_it_does_not_have(here: Path, site: Any, start: tuple[str, ...]) -> None:
    assert main(["new-backend", "mine", *start]) == 0
    installed(site, here / "turret-mine")
    done = site.run("-c", "from turret.registry import open_backend\nopen_backend('mine:7')")
    assert "BackendUnavailable" in done.stderr
    assert "got '7'" in done.stderr


def test_a_namespace_that_is_not_installed_is_the_reason_the_probe_gives(here: Path, site: Any) -> None:
    assert main(["new-backend", "mine", "--from", "array-api", "--namespace", "no_such_library.numpy"]) == 0
    installed(site, here / "turret-mine")
    listed = json.loads(site.run("-m", "turret", "backends", "--json", "--probe", TURRET_PLUGINS="mine").stdout)
    (row,) = [row for row in listed if row["name"] == "mine"]
    assert row["state"] == "loadable"
    assert "no_such_library.numpy does not work here (No module named 'no_such_library')" in row["note"]


@pytest.mark.parametrize("name", ["x", LONGEST])
@pytest.mark.parametrize("start", [(), STRICT], ids=["numpy", "array-api"])
def test_the_written_python_is_formatted_and_clean(here: Path, name: str, start: tuple[str, ...]) -> None:
    assert main(["new-backend", name, *start, "--out", "made"]) == 0
    tool("ruff", "format", "--no-cache", "--check", *STYLE, ".", cwd=here / "made")
    google = ("--config", 'lint.pydocstyle.convention="google"')
    tool("ruff", "check", "--no-cache", *STYLE, *RULES, *google, ".", cwd=here / "made")


@pytest.mark.slow
@pytest.mark.parametrize("start", [(), STRICT], ids=["numpy", "array-api"])
def test_the_written_python_passes_the_strictest_type_check(here: Path, start: tuple[str, ...]) -> None:
    assert main(["new-backend", "mine", *start]) == 0
    tool("mypy", "--strict", "src", "tests", cwd=here / "turret-mine")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "lower-case letters and digits"),
        ("GPU", "lower-case letters and digits"),
        ("7up", "lower-case letters and digits"),
        ("my gpu", "lower-case letters and digits"),
        ("my--gpu", "lower-case letters and digits"),
        ("gpu-", "lower-case letters and digits"),
        ("gpü", "lower-case letters and digits"),
        ("gpu\n", "lower-case letters and digits"),
        ("../gpu", "lower-case letters and digits"),
        ("cuda:1", "lower-case letters and digits"),
        ("a" * 31, "at most 30"),
        ("auto", "chooses among the installed backends"),
        ("cpu", "one of turret's own backends"),
        ("tpu", "one of turret's own backends"),
        ("lambda", "keyword of Python"),
    ],
)
def test_a_name_that_will_not_do_is_refused(
    here: Path, name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", name]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert f"backend name {name!r}" in printed.err
    assert reason in printed.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "Missing argument 'NAME'"),
        (("x", "--from", "torch"), "'torch' is not one of 'numpy', 'array-api'"),
        (("x", "--from", "array-api"), "needs --namespace MODULE"),
        (("x", "--from", "array-api", "--namespace", ""), "needs --namespace MODULE"),
        (("x", "--from", "array-api", "--namespace", "jax numpy"), "'jax numpy' is no module"),
        (("x", "--from", "array-api", "--namespace", "jax..numpy"), "'jax..numpy' is no module"),
        (("x", "--from", "array-api", "--namespace", "import.os"), "'import.os' is no module"),
        (("x", "--from", "array-api", "--namespace", "os; print(1)"), "is no module"),
        (("x", "--namespace", "jax.numpy"), "needs --from array-api"),
        (("x", "--out", ""), "empty path"),
        (("x", "--out", "no/such/x"), "there is no folder no/such"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_that_do_not_fit_are_refused(
    here: Path, arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert reason in printed.err
    assert list(here.iterdir()) == []


def test_what_is_there_is_never_written_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "turret-x").mkdir()
    (here / "turret-x" / "kept").write_text("mine")
    (here / "file").write_text("mine")
    (here / "dangling").symlink_to("nowhere")
    before = written(here)
    assert main(["new-backend", "x"]) == 2
    assert "turret-x is not empty" in capsys.readouterr().err
    for place in ("file", "dangling"):
        assert main(["new-backend", "x", "--out", place]) == 2
        assert f"{place} is there and is no folder" in capsys.readouterr().err
    assert main(["new-backend", "x", "--out", "file/x"]) == 2
    assert "file" in capsys.readouterr().err
    assert written(here) == before
    assert {path.name for path in here.iterdir()} == {"turret-x", "file", "dangling"}


@pytest.mark.parametrize("out", ["turret-x", "."])
def test_an_empty_folder_is_filled(here: Path, out: str) -> None:
    (here / out).mkdir(exist_ok=True)
    inode = (here / out).stat().st_ino
    assert main(["new-backend", "x", "--out", out]) == 0
    assert (here / out).stat().st_ino == inode, "a shell that stands in the folder must not lose it"
    assert (here / out / "src/turret_x/plugin.py").is_file()
    assert {path.name for path in here.iterdir() if out == "."} <= {
        *("src", "tests", ".github", "README.md", "badge.json", "pyproject.toml")
    }


def test_an_empty_folder_that_is_a_disk_of_its_own_is_filled(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be moved into it from beside it."""
    (here / "disk").mkdir()
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if ("disk" in self.parts) != ("disk" in target.parts):
            raise OSError(18, "Invalid cross-device link")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert main(["new-backend", "x", "--out", "disk"]) == 0
    assert (here / "disk/src/turret_x/plugin.py").is_file()
    assert [path.name for path in (here / "disk").iterdir() if path.name.startswith(".turret")] == []


def test_a_folder_nobody_may_write_is_an_error_before_anything_is_made(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_options: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(new_backend.tempfile, "mkdtemp", refused)
    assert main(["new-backend", "x"]) == 2
    assert capsys.readouterr().err == (
        "error: cannot write turret-x: Permission denied; choose another place with --out DIR\n"
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_disk_that_fills_up_leaves_nothing_half_written(
    here: Path, there: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        (here / "turret-x").mkdir()
    real, count = Path.write_text, [0]

    def write(self: Path, text: str, **options: Any) -> int:
        count[0] += 1
        if count[0] == 6:
            raise OSError(28, "No space left on device")
        return real(self, text, **options)

    monkeypatch.setattr(Path, "write_text", write)
    assert main(["new-backend", "x"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in here.rglob("*")] == ["turret-x"] * there
