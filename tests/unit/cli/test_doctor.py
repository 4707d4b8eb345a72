from __future__ import annotations

import json
from typing import Any

import pytest

ONLY = {"TURRET_PLUGINS": "fine,lame,ugly"}


@pytest.fixture
def three(site: Any) -> Any:
    site.add("fine", devices="a number", score=4)
    site.add("lame", score=9, probe="def why_not(device):\n    return 'no lame device'\n")
    site.add("ugly", plugin="print('chatter')\nraise OSError('no libugly.so')")
    return site


def test_doctor_tells_the_choice_and_what_speaks_against_the_others(three: Any) -> None:
    done = three.run("-m", "turret", "doctor", TURRET_BACKENDS="cpu", **ONLY)
    assert done.returncode == 0
    assert "choice: fine (auto: the highest score among the usable (4))" in done.stdout
    assert "no lame device" in done.stdout
    assert "OSError: no libugly.so" in done.stdout
    assert "Traceback" in done.stdout
    assert "warning: TURRET_BACKENDS is set but turret does not read it; did you mean TURRET_BACKEND?" in done.stdout
    assert "TURRET_PLUGINS='fine,lame,ugly'" in done.stdout
    assert all(word in done.stdout for word in ("python 3.", "numpy ", "platform ", "spi 1.0"))


def test_json_holds_the_whole_trace_and_nothing_else_is_on_stdout(three: Any) -> None:
    done = three.run("-m", "turret", "doctor", "--json", **ONLY)
    found = json.loads(done.stdout)
    assert found["choice"] == "fine"
    assert found["variables"] == ONLY
    told = {each["name"]: each for each in found["candidates"]}
    assert [each["name"] for each in found["candidates"]][:2] == ["lame", "fine"]
    assert told["lame"]["blocked_by"] == "no lame device"
    assert told["fine"]["state"] == "usable"
    assert "no libugly.so" in told["ugly"]["traceback"]
    assert "chatter" in done.stderr


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("lame", "TURRET_BACKEND=lame, but no lame device"),
        ("fien", "did you mean 'fine'?"),
        ("cudaa", "did you mean 'cuda'?"),
        ("ugly", "OSError: no libugly.so"),
        ("", "TURRET_BACKEND=''"),
        (" fine ", 'did you mean "fine"?'),
    ],
)
def test_a_choice_that_cannot_be_followed_exits_with_1_and_says_why(three: Any, text: str, because: str) -> None:
    done = three.run("-m", "turret", "doctor", TURRET_BACKEND=text, **ONLY)
    assert done.returncode == 1
    choice = next(line for line in done.stdout.splitlines() if line.startswith("choice: "))
    assert choice.startswith("choice: none (")
    assert because in choice


def test_an_explicit_device_is_probed_as_it_was_asked_for(three: Any) -> None:
    done = three.run("-m", "turret", "doctor", TURRET_BACKEND="fine:1", **ONLY)
    assert done.returncode == 0
    assert "choice: fine:1 (TURRET_BACKEND=fine:1)" in done.stdout
