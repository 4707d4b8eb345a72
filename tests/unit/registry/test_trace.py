from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from turret.registry import Registry, scope, trace
from turret.registry.trace import cupy_wheels
from turret.spi import BackendInfo

Make = Callable[..., BackendInfo]
ONLY_REGISTERED = {"TURRET_PLUGINS": "nothing_installed_has_this_name"}
UNUSABLE = "def why_not(device):\n    return 'no such hardware' if device != '1' else None\n"


def test_every_candidate_is_probed_in_order_and_the_winner_explained(backend_module: Make) -> None:
    registry = Registry(ONLY_REGISTERED)
    for info in (
        backend_module("low", score=1),
        backend_module("mid", score=5),
        backend_module("top", score=9, extra=UNUSABLE),
    ):
        registry.register(info)
    found = trace(registry)
    told = {c.name: (c.score, c.state, c.blocked_by) for c in found.candidates if c.spi}
    assert list(told) == ["top", "mid", "low"]
    assert told["top"] == (9, "loadable", "no such hardware")
    assert told["mid"] == (5, "usable", "")
    assert told["low"] == (1, "usable", "")
    assert (found.choice, found.because) == ("mid", "auto: the highest score among the usable (5)")
    assert any("nothing_installed_has_this_name" in warning for warning in found.warnings)
    assert found.variables == ONLY_REGISTERED
    assert {"core", "spi", "python", "numpy", "platform"} <= set(found.versions)
    json.dumps(asdict(found))


def test_the_trace_agrees_with_the_choice_that_is_made(backend_module: Make) -> None:
    registry = Registry(ONLY_REGISTERED)
    registry.register(backend_module("one", score=3))
    registry.register(backend_module("two", score=3))
    assert trace(registry).choice == registry.default().name == "two"


def test_the_variable_is_the_reason_when_it_decides(backend_module: Make) -> None:
    registry = Registry({**ONLY_REGISTERED, "TURRET_BACKEND": "far:1"})
    registry.register(backend_module("far", devices="a number", extra=UNUSABLE))
    found = trace(registry)
    assert (found.choice, found.because) == ("far:1", "TURRET_BACKEND=far:1")


@pytest.mark.parametrize(
    ("text", "because"),
    [("far", "TURRET_BACKEND=far, but no such hardware"), ("fra", "did you mean 'far'"), ("", "TURRET_BACKEND=''")],
)
def test_a_variable_that_cannot_be_followed_leaves_no_choice(backend_module: Make, text: str, because: str) -> None:
    registry = Registry({**ONLY_REGISTERED, "TURRET_BACKEND": text})
    registry.register(backend_module("far", extra=UNUSABLE))
    registry.register(backend_module("near"))
    found = trace(registry)
    assert found.choice == ""
    assert because in found.because
    assert {"far", "near"} <= {candidate.name for candidate in found.candidates}


def test_an_unreadable_list_of_plugins_is_told_and_not_raised() -> None:
    found = trace(Registry({"TURRET_PLUGINS": "cpu, cuda"}))
    assert (found.choice, found.candidates) == ("", [])
    assert "TURRET_PLUGINS='cpu, cuda'" in found.because


def test_near_misses_are_warned_about() -> None:
    (warning,) = trace(Registry({"TURRET_BACKENDS": "cpu", "TURRET_DISABLE_PLUGINS": "cpu"})).warnings
    assert "TURRET_BACKENDS" in warning
    assert "did you mean TURRET_BACKEND?" in warning


def test_the_enclosing_scope_is_the_reason_when_it_decides(
    monkeypatch: pytest.MonkeyPatch, backend_module: Make
) -> None:
    monkeypatch.setattr(scope, "PROCESS", Registry(ONLY_REGISTERED))
    with scope.register(backend_module("around")), scope.use_backend("around"):
        assert (trace().choice, trace().because) == ("around", "the enclosing use_backend")


def test_two_cupy_wheels_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy-xarray"):
        home = tmp_path / f"{name.replace('-', '_')}-14.0.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.0\n")
    assert cupy_wheels() == ["cupy-cuda12x 14.0", "cupy-cuda13x 14.0"]
    found = trace(Registry(ONLY_REGISTERED))
    assert any("several CuPy wheels" in warning and "cupy-cuda13x" in warning for warning in found.warnings)
    assert {"cupy-cuda12x": "14.0", "cupy-cuda13x": "14.0"}.items() <= found.versions.items()
