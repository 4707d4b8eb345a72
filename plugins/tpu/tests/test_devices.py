"""Device words and missing libraries: each refusal says what was got, what is wanted and what to do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from turret.spi import BackendUnavailable
from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax
from turret_tpu.plugin import turret_backends
from turret_tpu.probe import why_not

Run = Callable[..., subprocess.CompletedProcess[str]]
NO_TPU = "needs a TPU"


def has_tpu() -> bool:
    return NO_TPU not in (why_not("") or "")


@pytest.mark.parametrize("word", ["cpu", "interpret"])
def test_the_cpu_device_works(word: str) -> None:
    assert why_not(word) is None


@pytest.mark.parametrize(
    "word", ["gpu", "CPU", "-1", "1.0", "cpu:0", "²", " ", "Interpret", "interpreted", "interpret:0"]
)
def test_an_unknown_device_is_refused_with_the_grammar(word: str) -> None:
    with pytest.raises(BackendUnavailable, match=r"tpu has no device .*tpu:1.*tpu:cpu.*tpu:interpret"):
        TpuBackend(word)


@pytest.mark.skipif(has_tpu(), reason="there is a TPU")
@pytest.mark.parametrize("word", ["", "0", "3"])
def test_without_a_tpu_the_refusal_names_the_library_and_the_stand_in(word: str) -> None:
    began = time.perf_counter()
    with pytest.raises(BackendUnavailable) as caught:
        TpuBackend(word)
    assert time.perf_counter() - began < 10
    for part in ("libtpu", "pip install 'core[tpu]'", "tpu:cpu"):
        assert part in str(caught.value)


def test_a_number_beyond_the_last_tpu_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = jax.devices("cpu")[0]
    monkeypatch.setattr(jax, "local_devices", lambda *, backend: [cpu, cpu] if backend == "tpu" else [])
    assert why_not("1") is None
    with pytest.raises(BackendUnavailable, match=r"no TPU number 2 here, JAX finds 2, counted from 0"):
        TpuBackend("2")


def test_a_machine_that_hides_its_cpu_from_jax_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*, backend: str) -> None:
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    assert "JAX_PLATFORMS" in str(why_not("cpu"))


def test_an_old_jax_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 7, 2))
    assert "wanted 0.8 or newer; run: pip install -U jax" in str(why_not("cpu"))


def test_a_wrong_product_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from turret_tpu.library import lax

    monkeypatch.setattr(lax, "dot_general", lambda a, b, dimensions: a)
    assert "came out as 1.0, wanted 3.0" in str(why_not("cpu"))


@pytest.mark.parametrize("word", ["", "cpu"])
def test_without_jax_the_backend_is_listed_and_says_how_to_get_it(run_code: Run, word: str) -> None:
    done = run_code(
        f"""
        import sys
        sys.modules["jax"] = None
        from turret import registry
        from turret.spi import BackendUnavailable
        assert [e.info.name for e in registry.installed() if e.info is not None and e.info.name == "tpu"] == ["tpu"]
        from turret_tpu.probe import why_not
        assert "pip install 'core[tpu]'" in why_not({word!r}), why_not({word!r})
        try:
            registry.open_backend("tpu:" + {word!r} if {word!r} else "tpu")
        except BackendUnavailable as error:
            assert "pip install 'core[tpu]'" in str(error), error
        else:
            raise SystemExit("opened")
        """
    )
    assert done.returncode == 0, done.stderr


def test_listing_loads_no_jax(run_code: Run) -> None:
    done = run_code("import sys, turret_tpu.plugin as p; p.turret_backends(); assert 'jax' not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(has_tpu(), reason="there is a TPU")
def test_probing_for_a_tpu_prints_nothing(run_code: Run) -> None:
    done = run_code("from turret_tpu.probe import why_not; assert why_not('')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_auto_never_takes_the_stand_in() -> None:
    (info,) = turret_backends()
    assert info.stand_in_devices == {"cpu", "interpret"}


def test_the_device_that_interprets_says_so(backend: TpuBackend) -> None:
    names = [each.capabilities().required.storage.device().name for each in (backend, TpuBackend("interpret"))]
    assert ["interpreting Pallas" in name for name in names] == [False, True]


@pytest.mark.parametrize("word", ["cpu", "interpret"])
def test_pallas_is_loaded_only_where_its_kernels_run(run_code: Run, word: str) -> None:
    done = run_code(
        f"""
        import sys
        import numpy as np
        from turret_tpu.backend import TpuBackend
        np.random.seed(3)
        before = np.random.get_state()[1].tobytes()
        TpuBackend({word!r})
        assert ("jax.experimental.pallas" in sys.modules) == ({word!r} == "interpret")
        assert np.random.get_state()[1].tobytes() == before
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", ["cpu", "interpret"])
def test_what_is_declared_native_is_native(word: str) -> None:
    (info,) = turret_backends()
    table = TpuBackend(word).capabilities()
    native = {name for name in type(table).__dataclass_fields__ if getattr(table, name) is not None} - {"required"}
    assert native == info.provides
    assert table.required.storage.device().dtypes == info.dtypes
