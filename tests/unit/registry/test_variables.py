from __future__ import annotations

import pytest

from turret.registry.variables import PluginFilter, near_misses, seen
from turret.spi import ConfigError


def test_without_variables_every_plugin_may_be_imported() -> None:
    assert PluginFilter.read({}).blocker("anything") == ""


def test_the_allow_list_blocks_the_rest_and_the_deny_list_wins() -> None:
    both = PluginFilter.read({"TURRET_PLUGINS": "cpu,cuda", "TURRET_DISABLE_PLUGINS": "cuda"})
    assert both.blocker("cpu") == ""
    assert both.blocker("tpu") == "TURRET_PLUGINS"
    assert both.blocker("cuda") == "TURRET_DISABLE_PLUGINS"


@pytest.mark.parametrize("variable", ["TURRET_PLUGINS", "TURRET_DISABLE_PLUGINS"])
@pytest.mark.parametrize("text", ["", ",", "cpu,", "cpu, cuda", "CPU", "cpu;cuda", " "])
def test_anything_but_names_and_commas_is_refused(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}=.*wanted names separated by commas"):
        PluginFilter.read({variable: text})


def test_names_that_are_not_installed_are_told() -> None:
    given = PluginFilter.read({"TURRET_PLUGINS": "cpu,vulkan", "TURRET_DISABLE_PLUGINS": "abacus"})
    first, second = given.unknown(frozenset({"cpu"}))
    assert "TURRET_PLUGINS" in first
    assert "vulkan" in first
    assert "cpu" not in first
    assert "abacus" in second


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TURRET_BACKENDS", "TURRET_BACKEND"),
        ("TURRETBACKEND", "TURRET_BACKEND"),
        ("turret_backend", "TURRET_BACKEND"),
        ("TURRET_PLUGIN", "TURRET_PLUGINS"),
        ("TURRET_DISABLED_PLUGINS", "TURRET_DISABLE_PLUGINS"),
    ],
)
def test_a_variable_that_is_nearly_right_is_noticed(name: str, meant: str) -> None:
    assert near_misses({name: "cpu", "PATH": "/bin", "TURRET_BACKEND": "cpu"}) == {name: meant}


def test_other_variables_are_left_alone() -> None:
    environ = {"PATH": "/bin", "BACKEND": "x", "TURRET_CPU_CACHE": "y", "TURRET_PLUGINS": "cpu"}
    assert near_misses(environ) == {}
    assert seen(environ) == {"TURRET_PLUGINS": "cpu"}
