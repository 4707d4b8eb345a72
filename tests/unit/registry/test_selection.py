from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from turret.registry import OpenBackend, Registry
from turret.spi import BackendInfo, BackendNotFound, BackendUnavailable, ConfigError, PluginError, SpiMismatch

Make = Callable[..., BackendInfo]
ONLY_REGISTERED = {"TURRET_PLUGINS": "nothing_installed_has_this_name"}
UNUSABLE = "def why_not(device):\n    return 'no such hardware'\n"
FAILS_TO_OPEN = "def Opened(device):\n    raise OSError('the driver went away')\n"


def openings(info: BackendInfo) -> list[str]:
    """The devices its module was asked to open, in order."""
    opened: list[str] = sys.modules[info.target.partition(":")[0]].openings
    return opened


def test_one_object_per_name_and_device(registry: Registry, backend_module: Make) -> None:
    info = backend_module("one", devices="a number")
    registry.register(info)
    first = registry.open("one")
    assert registry.open("one") is first
    assert registry.open("one:1") is not first
    assert registry.open("one:1") is registry.open("one:1")
    assert (first.name, first.device, first.spec) == ("one", "", "one")
    assert registry.open("one:1").spec == "one:1"
    assert openings(info) == ["", "1"]


def test_eight_threads_that_open_first_open_once(registry: Registry, backend_module: Make) -> None:
    info = backend_module(
        "slow", extra="import time\nmake = Opened\ndef Opened(device):\n    time.sleep(0.2)\n    return make(device)\n"
    )
    registry.register(info)
    gate = threading.Barrier(8)
    got: list[OpenBackend] = []

    def first() -> None:
        gate.wait()
        got.append(registry.open("slow"))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert all(opened is got[0] for opened in got)
    assert openings(info) == [""]


def test_a_device_on_a_backend_without_devices_is_unavailable(registry: Registry, backend_module: Make) -> None:
    info = backend_module("single")
    registry.register(info)
    with pytest.raises(BackendUnavailable, match="'single:7': backend 'single' has no device to choose; use 'single'"):
        registry.open("single:7")


def test_the_first_failure_to_open_is_not_remembered(registry: Registry, backend_module: Make, tmp_path: Path) -> None:
    flag = tmp_path / "plugged-in"
    extra = f"make = Opened\ndef Opened(device):\n    open({str(flag)!r}).close()\n    return make(device)\n"
    registry.register(backend_module("later", extra=extra))
    with pytest.raises(BackendUnavailable, match="plugged-in"):
        registry.open("later")
    flag.touch()
    assert registry.open("later").name == "later"


def test_an_explicit_choice_never_falls_back(registry: Registry, backend_module: Make) -> None:
    registry.register(backend_module("sound", score=9))
    registry.register(backend_module("broken", extra=FAILS_TO_OPEN))
    with pytest.raises(BackendUnavailable, match="the driver went away") as caught:
        registry.open("broken")
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_of_ours_that_a_plugin_raises_arrives_as_it_is(registry: Registry, backend_module: Make) -> None:
    extra = """
        from turret.spi import BackendUnavailable
        def Opened(device):
            raise BackendUnavailable("device 3 of 2")
    """
    registry.register(backend_module("exact", extra=extra))
    with pytest.raises(BackendUnavailable) as caught:
        registry.open("exact")
    assert str(caught.value) == "device 3 of 2"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ("def Opened(device):\n    return object()\n", "capabilities"),
        ("Opened.capabilities = lambda self: {}\n", "gave dict, wanted turret.spi.Capabilities"),
        ("Opened.capabilities = lambda self: 1 / 0\n", "ZeroDivisionError"),
        ("Opened.capabilities = lambda self: Capabilities(required=None)\n", "`required` is NoneType"),
        (
            "from dataclasses import replace\n"
            "def lame(self):\n"
            "    return Capabilities(required=replace(self.table.required, layout=None))\n"
            "Opened.capabilities = lame\n",
            "the required slots layout are None",
        ),
        ("Opened = 3\n", "wanted a callable"),
    ],
)
def test_a_wrong_object_is_a_plugin_error(registry: Registry, backend_module: Make, extra: str, text: str) -> None:
    registry.register(backend_module("wrong", extra=extra))
    with pytest.raises(PluginError, match=text):
        registry.open("wrong")


def test_a_target_in_a_missing_module_is_a_plugin_error(registry: Registry, backend_module: Make) -> None:
    registry.register(backend_module("lost", target="no_such_package.backend:Lost"))
    with pytest.raises(PluginError, match="there is no module 'no_such_package'"):
        registry.open("lost")


def test_a_missing_library_says_how_to_get_it(registry: Registry, backend_module: Make) -> None:
    info = backend_module("needy", extra="import no_such_library", install_hint="pip install needy-libs")
    registry.register(info)
    with pytest.raises(
        BackendUnavailable, match=r"no_such_library.*install its libraries with: pip install needy-libs"
    ):
        registry.open("needy")


def test_an_unknown_name_says_what_is_installed(registry: Registry, backend_module: Make) -> None:
    registry.register(backend_module("vulkan"))
    with pytest.raises(BackendNotFound, match="did you mean 'vulkan'"):
        registry.open("vulcan")


def test_auto_takes_the_highest_score_then_the_name_and_says_why(
    backend_module: Make, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(ONLY_REGISTERED)
    for info in (
        backend_module("low", score=1),
        backend_module("alpha", score=5),
        backend_module("beta", score=5),
        backend_module("missing", score=90, extra=UNUSABLE),
        backend_module("fickle", score=80, extra=FAILS_TO_OPEN),
    ):
        registry.register(info)
    with caplog.at_level(logging.INFO, logger="turret"):
        chosen = registry.default()
        assert registry.default() is chosen
    assert chosen.name == "beta"
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "backend beta chosen by auto: score 5; passed over missing (score 90): no such"
    )
    assert "fickle (score 80): its probe passed, but opening failed" in record.getMessage()


def test_auto_does_not_probe_below_its_choice(backend_module: Make, tmp_path: Path) -> None:
    registry = Registry(ONLY_REGISTERED)
    mark = tmp_path / "probed"
    registry.register(backend_module("high", score=2))
    registry.register(
        backend_module("low", score=1, extra=f"def why_not(device):\n    open({str(mark)!r}, 'w').close()\n")
    )
    assert registry.auto().name == "high"
    assert not mark.exists()


def test_auto_passes_a_stand_in_over(backend_module: Make) -> None:
    registry = Registry(ONLY_REGISTERED)
    registry.register(backend_module("pretend", score=9, stand_in_devices=frozenset({""})))
    registry.register(backend_module("real", score=1))
    assert registry.auto().name == "real"
    assert registry.open("pretend").name == "pretend"


def test_auto_kills_a_hanging_probe_and_goes_on(backend_module: Make) -> None:
    registry = Registry(ONLY_REGISTERED, probe_seconds=2.0)
    registry.register(
        backend_module("stuck", score=9, extra="import time\ndef why_not(device):\n    time.sleep(600)\n")
    )
    registry.register(backend_module("real", score=1))
    assert registry.auto().name == "real"


def test_when_nothing_is_usable_every_reason_is_told(backend_module: Make) -> None:
    registry = Registry(ONLY_REGISTERED)
    registry.register(backend_module("missing", score=90, extra=UNUSABLE))
    with pytest.raises(BackendUnavailable, match=r"missing \(score 90\): no such hardware.*turret doctor"):
        registry.default()


def test_the_variable_beats_auto_and_is_read_at_first_use(backend_module: Make) -> None:
    environ = {**ONLY_REGISTERED, "TURRET_BACKEND": "quiet:2"}
    registry = Registry(environ)
    registry.register(backend_module("loud", score=9))
    registry.register(backend_module("quiet", score=1, devices="a number"))
    assert registry.default().spec == "quiet:2"
    environ["TURRET_BACKEND"] = "loud"
    assert registry.default().spec == "quiet:2"
    assert registry.open("auto").name == "loud"


@pytest.mark.parametrize("text", ["", " ", "quiet ", "QUIET", "quiet:"])
def test_a_malformed_variable_is_named_in_the_error(backend_module: Make, text: str) -> None:
    registry = Registry({**ONLY_REGISTERED, "TURRET_BACKEND": text})
    registry.register(backend_module("quiet"))
    with pytest.raises(ConfigError, match="TURRET_BACKEND="):
        registry.default()
    assert registry.open("quiet").name == "quiet"


def test_a_plugin_that_is_switched_off_says_by_what() -> None:
    registry = Registry({"TURRET_DISABLE_PLUGINS": "cpu"})
    with pytest.raises(ConfigError, match="switched off by TURRET_DISABLE_PLUGINS"):
        registry.open("cpu")


def test_registration_ends_with_its_block(registry: Registry, backend_module: Make) -> None:
    info = backend_module("brief")
    with registry.register(info) as registered:
        assert registered is info
        opened = registry.open("brief")
    with pytest.raises(BackendNotFound):
        registry.open("brief")
    undo = registry.register(info)
    assert registry.open("brief") is not opened
    undo()
    undo()
    assert "brief" not in {entry.name for entry in registry.installed()}


def test_registering_checks_at_once_and_changes_nothing_when_refused(registry: Registry, backend_module: Make) -> None:
    info = backend_module("strict")
    with pytest.raises(SpiMismatch):
        registry.register(replace(info, spi=">=7.0"))
    with pytest.raises(PluginError, match="target="):
        registry.register(replace(info, target="nowhere"))
    registry.register(info)
    with pytest.raises(PluginError, match="already registered"):
        registry.register(info)
    assert registry.open("strict").info is info


def test_a_registered_name_that_is_also_installed_is_nobodys(backend_module: Make) -> None:
    registry = Registry({})
    registry.register(backend_module("cpu"))
    with pytest.raises(PluginError, match=r"claimed by turret-cpu .* and by turret-cpu"):
        registry.open("cpu")
