from __future__ import annotations

import json
from typing import Any

import pytest

NOISY = "print('plugin chatter')\nimport os\n{plugin}"
HEAVY = {"numba", "llvmlite", "scipy", "torch", "jax", "cupy", "mlx", "matplotlib"}
HOSTED = """
from turret.spi import BackendInfo, hookimpl

@hookimpl
def turret_backends():
    return [BackendInfo(name="ours", distribution="turret-ours", spi=">=1.0,<2", target="x:y", probe="x:z",
                        on_host=frozenset(("linear.linear: no such kernel yet",)))]
"""
ONLY = {"TURRET_PLUGINS": "fine,slow,ugly"}


@pytest.fixture
def three(site: Any) -> Any:
    site.add("fine", devices="a number", score=4)
    site.add("slow", score=9, probe="import time\ndef why_not(device):\n    time.sleep(600)\n")
    site.add("ugly", plugin="print('chatter')\nraise OSError('no libugly.so')")
    return site


def test_the_listing_shows_how_far_each_backend_gets(three: Any) -> None:
    done = three.run("-m", "turret", "backends", **ONLY)
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert rows["NAME"].split()[:4] == ["NAME", "STATE", "DISTRIBUTION", "SPI"]
    assert rows["fine"].split()[1:5] == ["loadable", "turret-fine", "1.5", ">=1.0,<2"]
    assert rows["ugly"].split()[1] == "installed"
    assert "OSError: no libugly.so" in rows["ugly"]


def test_json_is_the_only_thing_on_stdout(three: Any) -> None:
    done = three.run("-m", "turret", "backends", "--json", **ONLY)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["fine"] == {
        "name": "fine",
        "state": "loadable",
        "distribution": "turret-fine",
        "version": "1.5",
        "spi": ">=1.0,<2",
        "native": [],
        "note": "",
    }
    assert rows["cuda"]["state"] == "installed"
    assert "switched off by TURRET_PLUGINS" in rows["cuda"]["note"]
    assert "chatter" in done.stderr


def test_a_known_backend_that_is_not_installed_is_listed_with_how_to_get_it(three: Any) -> None:
    three.without("turret-cuda")
    done = three.run("-m", "turret", "backends", "--json", **ONLY)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["cuda"]["state"] == "absent"
    assert 'pip install "core[cuda]"' in rows["cuda"]["note"]
    assert rows["metal"]["state"] == "installed", "only the one is taken away"
    assert rows["fine"]["state"] == "loadable"
    done = three.run("-m", "turret", "doctor", TURRET_BACKEND="cuda", **ONLY)
    assert done.returncode == 1
    assert 'pip install "core[cuda]"' in done.stdout


def test_probe_adds_usable_and_survives_a_probe_that_hangs(three: Any) -> None:
    done = three.run("-m", "turret", "backends", "--probe", "--json", "--time-limit", "3", **ONLY)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["fine"]["state"] == "usable"
    assert rows["slow"]["state"] == "loadable"
    assert rows["slow"]["note"] == "its probe gave no answer within 3 s and was killed"


def test_listing_imports_nothing_heavier_than_numpy(three: Any) -> None:
    code = f"import sys, turret.cli\nturret.cli.main(['backends'])\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    assert three.python(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize("text", ["", "fine, ugly", "FINE"])
def test_an_unreadable_list_of_plugins_is_a_configuration_error(three: Any, text: str) -> None:
    done = three.run("-m", "turret", "backends", TURRET_PLUGINS=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: TURRET_PLUGINS={text!r}")


@pytest.mark.parametrize("text", ["fien", "", " fine", "FINE", "fine:", "ugly:7"])
def test_a_bad_choice_does_not_break_the_listing(three: Any, text: str) -> None:
    done = three.run("-m", "turret", "backends", TURRET_BACKEND=text, **ONLY)
    assert done.returncode == 0
    assert "loadable" in done.stdout


def test_one_backend_is_described_without_being_opened(three: Any) -> None:
    done = three.run("-m", "turret", "backends", "fine", **ONLY)
    told = {line[:14].strip(): line[14:] for line in done.stdout.splitlines()}
    assert told["name"] == "fine"
    assert told["distribution"] == "turret-fine 1.5"
    assert told["devices"] == "a number"
    assert told["native"] == ""
    assert "causal_attention" in told["composed"].split()
    assert told["on the host"] == "random: numbers are drawn on the host and moved to the device"
    facts = json.loads(three.run("-m", "turret", "backends", "fine", "--json", **ONLY).stdout)
    assert facts["on the host"] == [told["on the host"]]


def test_what_a_plugin_does_on_the_host_is_listed(site: Any) -> None:
    site.add("ours", plugin=HOSTED)
    done = site.run("-m", "turret", "backends", "ours", TURRET_PLUGINS="ours")
    assert done.stdout.splitlines()[-2:] == [
        "on the host   linear.linear: no such kernel yet",
        "              random: numbers are drawn on the host and moved to the device",
    ]


@pytest.mark.parametrize(
    ("name", "why"), [("fin", "did you mean 'fine'"), ("Fine", "did you mean"), ("ugly", "libugly")]
)
def test_a_name_that_is_none_is_an_error(three: Any, name: str, why: str) -> None:
    done = three.run("-m", "turret", "backends", name, **ONLY)
    assert done.returncode != 0 and done.stdout == "" and why in done.stderr
