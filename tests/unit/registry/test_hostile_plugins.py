"""Many plugins that do something wrong, installed together with one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

GOOD = "good"
INFO = """
from dataclasses import replace
from turret.spi import BackendInfo, hookimpl
fine = BackendInfo(
    name="{name}", distribution="turret-{name}", spi=">=1.0,<2", target="turret_{name}.backend:open_device",
    probe="turret_{name}.probe:why_not",
)
@hookimpl
def turret_backends():
    return %s
"""
AT_IMPORT = {
    "import_import_error": ("raise ImportError('libdevice is missing')", "ImportError"),
    "import_os_error": ("raise OSError('libdevice.so.1: cannot open shared object file')", "OSError"),
    "import_value_error": ("raise ValueError('bad table')", "ValueError"),
    "import_exit": ("raise SystemExit(3)", "SystemExit"),
    "import_syntax": ("def (:", "SyntaxError"),
}
AT_HOOK = {
    "hook_import_error": ("1 / 0 if False else __import__('no_such_library')", "ModuleNotFoundError"),
    "hook_os_error": ("open('/no/such/folder/file')", "FileNotFoundError"),
    "hook_value_error": ("int('x')", "ValueError"),
    "hook_exit": ("exit(1)", "SystemExit"),
}
MALFORMED = {
    "not_info": ("['cpu']", "gave 'cpu', wanted BackendInfo"),
    "not_list": ("fine", "wanted a list of BackendInfo"),
    "empty_list": ("[]", "announced no backend"),
    "other_name": ("[replace(fine, name='surprise')]", "entry point is named"),
    "bad_target": ("[replace(fine, target='turret_bad backend')]", "target='turret_bad backend'"),
    "bad_score": ("[replace(fine, score='high')]", "score='high'"),
    "bad_slots": ("[replace(fine, provides=frozenset({'teleport'}))]", "provides="),
    "bad_range": ("[replace(fine, spi='about 1')]", "spi='about 1'"),
    "bad_home": ("[replace(fine, distribution='numpy')]", "distribution='numpy'"),
}
MISSPELT = """
from turret.spi import hookimpl
@hookimpl
def turret_backend():
    return []
"""
UNMARKED = """
def turret_backends():
    return []
"""
AT_OPEN = {
    "open_import_error": ("import no_such_library", "BackendUnavailable", "pip install libopen_import_error"),
    "open_os_error": ("raise OSError('no driver')", "BackendUnavailable", "no driver"),
    "open_value_error": ("raise ValueError('odd device')", "BackendUnavailable", "odd device"),
    "open_exit": ("raise SystemExit(1)", "BackendUnavailable", "SystemExit"),
    "open_own_bug": ("undefined_name", "BackendUnavailable", "turret_open_own_bug/backend.py:2"),
    "open_wrong_object": ("return 3", "PluginError", "capabilities() of int raised"),
}
LACKING = """
import numpy
from turret.spi import Capabilities
from turret.spi.array_api import required_from

class Softmax:
    def softmax(self, x, /):
        return x

class Opened:
    def capabilities(self):
        return Capabilities(required=required_from(numpy), softmax=Softmax())

    def close(self):
        pass

def open_device(device):
    return Opened()
"""
ASK = """
import json, turret
from turret.registry import installed, open_backend
from turret.spi import TurretError
import numpy
answers = {}
for entry in installed():
    answer = {"state": entry.state, "distribution": entry.distribution, "version": entry.version,
              "error": str(entry.error or ""), "cause": type(entry.error.__cause__).__name__ if entry.error else ""}
    try:
        with turret.use_backend(entry.name) as opened:
            host = opened.tools.storage.to_host(opened.tools.storage.full((2,), 7.0, dtype="float32"))
            answer["asked"] = f"{host.tolist()}"
    except TurretError as error:
        answer |= {"asked": type(error).__name__, "text": str(error), "because": type(error.__cause__).__name__}
    answers[entry.name] = answer
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(make_site: Any) -> Any:
    site = make_site()
    site.add(GOOD)
    for name, (source, _) in AT_IMPORT.items():
        site.add(name, plugin=source)
    for name, (expression, _) in AT_HOOK.items():
        site.add(name, plugin=INFO % f"({expression}, [fine])[1]")
    for name, (expression, _) in MALFORMED.items():
        site.add(name, plugin=INFO % expression)
    for name, (statement, *_) in AT_OPEN.items():
        site.add(name, backend=f"def open_device(device):\n    {statement}\n")
    site.add("lacks_methods", backend=LACKING)
    site.add("misspelt", plugin=MISSPELT)
    site.add("unmarked", plugin=UNMARKED)
    site.add("old", spi=">=0.1,<1")
    site.add("future", spi=">=2.0,<3")
    site.add("no_target", backend="")
    site.add("no_module", backend="import turret_no_module.deeper")
    site.add("unreadable", entry_points="[turret]\nthis line has no equals sign\n")
    site.add("nameless", metadata="Metadata-Version: 2.1\n")
    site.add("twice", distribution="turret-twice", package="turret_twice")
    site.add("twice", distribution="turret-copycat", package="turret_copycat")
    return json.loads(site.python(ASK))


def test_a_sound_plugin_works_beside_all_the_broken_ones(answers: Any) -> None:
    assert answers[GOOD]["state"] == "loadable"
    assert answers[GOOD]["asked"] == "[7.0, 7.0]"


@pytest.mark.parametrize("name", [*AT_IMPORT, *AT_HOOK])
def test_what_a_plugin_raises_is_recorded_and_raised_again_with_its_cause(answers: Any, name: str) -> None:
    raised = {**AT_IMPORT, **AT_HOOK}[name][1]
    answer = answers[name]
    assert answer["state"] == "installed"
    assert f"turret-{name} 1.5" in answer["error"]
    assert raised in answer["error"]
    assert (answer["asked"], answer["because"]) == ("PluginError", raised)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_data_is_a_plugin_error_that_says_what_was_wanted(answers: Any, name: str) -> None:
    answer = answers[name]
    assert (answer["state"], answer["asked"]) == ("installed", "PluginError")
    assert MALFORMED[name][1] in answer["text"]
    assert f"turret-{name} 1.5" in answer["text"]


@pytest.mark.parametrize("name", AT_OPEN)
def test_what_goes_wrong_at_open_is_told_when_the_backend_is_asked_for(answers: Any, name: str) -> None:
    _, error, text = AT_OPEN[name]
    assert answers[name]["state"] == "loadable"
    assert answers[name]["asked"] == error
    assert text in answers[name]["text"]
    assert answers[name]["because"] != "NoneType"


def test_methods_that_a_slot_lacks_are_named_at_opening(answers: Any) -> None:
    text = answers["lacks_methods"]["text"]
    assert answers["lacks_methods"]["asked"] == "PluginError"
    assert "slot softmax (Softmax) lacks softmax_vjp, log_softmax, log_softmax_vjp" in text


def test_a_misspelt_hook_is_named(answers: Any) -> None:
    assert "turret_backend" in answers["misspelt"]["error"]
    assert answers["misspelt"]["cause"] == "PluginValidationError"


def test_a_hook_without_its_mark_is_noticed(answers: Any) -> None:
    assert "marked with turret.spi.hookimpl" in answers["unmarked"]["error"]


@pytest.mark.parametrize(
    ("name", "command"), [("old", "pip install --upgrade turret-old"), ("future", "--upgrade core")]
)
def test_a_wrong_spi_range_names_both_versions_and_the_command(answers: Any, name: str, command: str) -> None:
    assert answers[name]["asked"] == "SpiMismatch"
    assert {"old": ">=0.1,<1", "future": ">=2.0,<3"}[name] in answers[name]["text"]
    assert "this core has SPI 1.0" in answers[name]["text"]
    assert command in answers[name]["text"]


def test_a_target_that_does_not_exist_is_the_plugins_fault(answers: Any) -> None:
    assert answers["no_target"]["asked"] == "PluginError"
    assert "has no 'open_device'" in answers["no_target"]["text"]


def test_entry_points_that_cannot_be_parsed_are_recorded_under_their_distribution(answers: Any) -> None:
    assert "entry points cannot be read" in answers["turret-unreadable"]["error"]


def test_a_distribution_without_a_name_is_still_reported(answers: Any) -> None:
    assert answers["nameless"]["distribution"] == "unknown"
    assert answers["nameless"]["state"] == "installed"


def test_a_name_claimed_twice_is_nobodys_and_both_are_named(answers: Any) -> None:
    assert answers["twice"]["asked"] == "PluginError"
    assert "turret-copycat 1.5" in answers["twice"]["text"]
    assert "turret-twice 1.5" in answers["twice"]["text"]
