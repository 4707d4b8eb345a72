"""Why a device cannot be used, in words that say what to do: each bad situation is real here, or emulated."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import cupy
import pytest

from turret.registry import Registry, trace
from turret.spi import BackendUnavailable
from turret_cuda import library, probe, toolkit
from turret_cuda.backend import CudaBackend
from turret_cuda.plugin import turret_backends

WHY_NOT = "from turret_cuda.probe import why_not; print(why_not({!r}))"
NO_TOOLKIT = """
import cuda.pathfinder as pathfinder
real = pathfinder.load_nvidia_dynamic_lib

def without(name):
    if name == {!r}:
        raise pathfinder.DynamicLibNotFoundError("no such file\\nin any of 7 folders")
    return real(name) if name == "nvrtc" else None

pathfinder.load_nvidia_dynamic_lib = without
"""


@pytest.fixture
def healthy() -> Iterator[None]:
    """The emulated machine, mended afterwards."""
    yield
    cupy.emulated.set_driver(cupy.cuda.runtime.runtimeGetVersion())
    cupy.emulated.set_device_count(1)


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator passes for CuPy itself, so that words of real devices reach it."""
    monkeypatch.setattr(library, "emulated", lambda: False)


def with_cupy_itself(code: str, *, path: str = "") -> str:
    """What a process prints that sees the installed CuPy and not the emulator; this machine has no NVIDIA driver."""
    environ = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def dist_info(folder: Path, *names: str) -> None:
    for name in names:
        home = folder / f"{name.replace('-', '_')}-14.2.0.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.2.0\n", encoding="utf-8")


def needs_no_driver() -> None:
    if with_cupy_itself("import cupy; print(cupy.cuda.runtime.driverGetVersion())") != "0":
        pytest.skip("this machine has an NVIDIA driver")


def test_the_emulated_device_computes_and_so_it_can_be_used() -> None:
    assert probe.why_not("emulated") is None


@pytest.mark.parametrize("word", ["gpu", "-1", "1.0", "0x1", "²", "1 ", "EMULATED", "emulated:0", "1" * 10])
def test_a_word_that_names_no_device_is_refused_with_the_grammar(word: str) -> None:
    reason = probe.why_not(word)
    assert reason is not None
    assert repr(word) in reason
    assert "as in cuda:1" in reason
    with pytest.raises(BackendUnavailable, match="as in cuda:1"):
        CudaBackend(word)


@pytest.mark.parametrize("word", ["", "0", "7"])
def test_the_emulator_is_never_taken_for_a_gpu(word: str) -> None:
    reason = probe.why_not(word)
    assert reason is not None
    assert "emulator" in reason
    assert "`cuda:emulated`" in reason
    with pytest.raises(BackendUnavailable, match="emulator"):
        CudaBackend(word)


def test_cupy_itself_is_never_taken_for_the_emulator() -> None:
    said = with_cupy_itself(WHY_NOT.format("emulated"))
    assert "cuda:emulated is the emulator" in said
    assert "use `cuda`" in said


def test_a_machine_without_a_driver_says_which_one_is_needed() -> None:
    needs_no_driver()
    said = with_cupy_itself(WHY_NOT.format(""))
    assert "no NVIDIA driver" in said
    assert "CUDA 13 needs driver 580 or newer" in said
    assert "--gpus all" in said


def test_a_driver_that_is_missing_is_told_on_the_emulator_as_well(healthy: None) -> None:
    cupy.emulated.set_driver(None)
    assert "no NVIDIA driver" in str(probe.why_not("emulated"))


def test_a_driver_too_old_for_the_runtime_says_which_and_offers_the_older_cuda(healthy: None) -> None:
    cupy.emulated.set_driver(12040)
    reason = str(probe.why_not("emulated"))
    assert "driver is too old: it is for CUDA 12.4, and CuPy was built with CUDA 13.0" in reason
    assert "driver 580 or newer" in reason
    assert "pip uninstall cupy-cuda13x, and then pip install 'core[cuda12]'" in reason
    with pytest.raises(BackendUnavailable, match="too old"):
        CudaBackend("emulated")


def test_a_driver_too_old_for_every_cuda_there_is_a_wheel_for_is_to_be_upgraded(healthy: None) -> None:
    cupy.emulated.set_driver(11080)
    reason = str(probe.why_not("emulated"))
    assert "for CUDA 11.8" in reason
    assert "upgrade the driver" in reason
    assert "pip" not in reason


def test_a_driver_that_finds_no_gpu_says_where_to_look(healthy: None) -> None:
    cupy.emulated.set_device_count(0)
    reason = str(probe.why_not("emulated"))
    assert "finds no GPU" in reason
    assert "nvidia-smi" in reason
    assert "CUDA_VISIBLE_DEVICES" in reason


@pytest.mark.parametrize(
    ("status", "advice"),
    [(46, "does nvidia-smi run"), (3, "get_context('spawn')"), (700, "start it again"), (719, "start it again")],
)
def test_a_driver_that_fails_in_another_way_is_quoted(status: int, advice: str) -> None:
    error = cupy.cuda.runtime.CUDARuntimeError(status)
    reason = toolkit.refused(error, 13000, 13000)
    assert str(error) in reason
    assert advice in reason


@pytest.mark.parametrize("word", ["1", "9"])
def test_a_number_without_a_gpu_says_how_many_there_are(word: str, like_a_gpu: None) -> None:
    reason = str(probe.why_not(word))
    assert f"no GPU number {word}" in reason
    assert "CUDA finds 1, counted from 0" in reason
    assert "CUDA_VISIBLE_DEVICES" in reason
    with pytest.raises(BackendUnavailable, match="no GPU number"):
        CudaBackend(word)


def test_a_gpu_older_than_turing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy.cuda.Device, "compute_capability", "70")
    reason = str(probe.why_not("emulated"))
    assert "compute capability 7.0" in reason
    assert "7.5 or higher" in reason


@pytest.mark.parametrize(
    ("capability", "fits"), [("61", False), ("72", False), ("75", True), ("90", True), ("120", True)]
)
def test_compute_capabilities_are_compared_as_numbers(capability: str, fits: bool) -> None:
    assert (probe.too_small(capability) is None) is fits


def test_a_cupy_that_is_too_old_is_named(like_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy, "__version__", "13.6.0")
    reason = str(probe.why_not(""))
    assert "CuPy 13.6.0 is too old, wanted 14.0 or newer" in reason
    assert "pip install --upgrade cupy-cuda13x" in reason


def test_two_wheels_of_cupy_are_named_and_neither_is_imported(tmp_path: Path) -> None:
    dist_info(tmp_path, "cupy-cuda12x", "cupy-cuda13x", "cupy-xarray")
    said = with_cupy_itself(
        """
        import sys
        sys.modules["cupy"] = None
        from turret_cuda.probe import why_not
        print(why_not(""))
        """,
        path=str(tmp_path),
    )
    assert "several CuPy wheels are installed and overwrite each other's files: cupy-cuda12x, cupy-cuda13x;" in said
    assert "pip uninstall cupy-cuda12x cupy-cuda13x, and then pip install 'core[cuda]'" in said


def test_a_machine_without_cupy_says_what_to_install_and_still_lists_the_backend() -> None:
    said = with_cupy_itself(
        """
        import sys
        sys.modules["cupy"] = None
        from turret.registry import installed
        from turret_cuda.probe import why_not
        print("cuda" in [entry.name for entry in installed() if entry.state == "loadable"])
        print(why_not(""))
        """
    )
    listed, reason = said.splitlines()
    assert listed == "True"
    assert "CuPy is not installed" in reason
    assert "pip install 'core[cuda]' (CUDA 13)" in reason
    assert "'core[cuda12]' (CUDA 12)" in reason


@pytest.mark.parametrize(
    "raised",
    [
        'ImportError("\\n====\\nFailed to import CuPy.\\n\\n  ImportError: libcudart.so.12: no such file\\n====\\n")',
        'OSError("libcudart.so.12: no such file")',
        'ModuleNotFoundError("libcudart.so.12: no such file", name="cuda")',
    ],
)
def test_a_cupy_that_fails_to_load_is_quoted_with_what_to_run(tmp_path: Path, raised: str) -> None:
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(f"raise {raised}\n", encoding="utf-8")
    said = with_cupy_itself(WHY_NOT.format(""), path=str(tmp_path))
    assert said.startswith("CuPy does not load (")
    assert "libcudart.so.12: no such file)" in said
    assert "pip install --upgrade cupy-cuda13x --force-reinstall" in said


@pytest.mark.parametrize(
    ("library", "words"), [("nvrtc", "compiler NVRTC of CUDA 12"), ("cublas", "cuBLAS of CUDA 12")]
)
def test_a_library_of_the_toolkit_that_is_missing_is_named(library: str, words: str) -> None:
    code = NO_TOOLKIT.format(library) + "from turret_cuda import toolkit; print(toolkit.libraries(12080))"
    said = with_cupy_itself(code)
    assert f"{words} does not load; run: pip install 'core[cuda12]' (no such file)" in said


def test_missing_headers_are_named_because_cupy_refuses_to_compile_without() -> None:
    code = NO_TOOLKIT.format("") + (
        "pathfinder.find_nvidia_header_directory = lambda name: None\n"
        "from turret_cuda import toolkit; print(toolkit.libraries(13000))"
    )
    said = with_cupy_itself(code)
    assert "headers of CUDA 13" in said
    assert "pip install 'core[cuda]'" in said


def test_libraries_of_a_later_cuda_than_the_driver_knows_are_named() -> None:
    assert toolkit.ahead(13000, 13020, {"NVRTC": 13, "cuBLAS": 13}) is None
    assert toolkit.ahead(13000, 12080, {"NVRTC": 12, "cuBLAS": 13}) is None
    reason = str(toolkit.ahead(12080, 12090, {"NVRTC": 13, "cuBLAS": 12}))
    assert "driver is for CUDA 12.8" in reason
    assert "NVRTC of CUDA 13" in reason
    assert "cuBLAS of" not in reason
    assert "driver 580 or newer" in reason
    assert "pip install 'core[cuda12]'" in reason


def test_a_wrong_product_is_a_reason(monkeypatch: pytest.MonkeyPatch, place: object) -> None:
    monkeypatch.setattr(type(place), "copied", lambda self, x: self.empty(x.shape, x.dtype))
    monkeypatch.setattr(type(place), "multiply", lambda self, *_: None)
    assert "came out as" in str(probe.why_not("emulated"))


def test_doctor_tells_the_reason_and_the_wheel() -> None:
    needs_no_driver()
    words = with_cupy_itself(
        """
        from turret.registry import Registry, trace
        found = trace(Registry({"TURRET_BACKEND": "cuda", "TURRET_PLUGINS": "cuda"}))
        print(found.because)
        print(found.versions["cupy-cuda13x"])
        """
    )
    because, version = words.splitlines()
    assert because.startswith("TURRET_BACKEND=cuda, but there is no NVIDIA driver here")
    assert version[0].isdigit()


def test_auto_never_picks_the_emulator() -> None:
    found = trace(Registry({"TURRET_PLUGINS": "cuda"}))
    (cuda,) = (each for each in found.candidates if each.name == "cuda")
    assert found.choice == ""
    assert "emulator" in cuda.blocked_by


def test_the_plugin_describes_what_the_backend_has() -> None:
    (info,) = turret_backends()
    backend = CudaBackend("emulated")
    c = backend.capabilities()
    assert info.provides == {name for name in info.provides if getattr(c, name) is not None}
    assert info.dtypes == c.required.storage.device().dtypes
    assert "not run on a GPU yet" in info.devices


def test_describing_and_refusing_a_word_loads_no_cupy() -> None:
    code = """
        import sys
        import turret_cuda.plugin as plugin, turret_cuda.probe as probe
        plugin.turret_backends()
        probe.why_not("gpu")
        print("cupy" in sys.modules)
    """
    assert with_cupy_itself(code) == "False"
