from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.registry.names import KNOWN, Spec, not_found
from turret.spi import ConfigError

words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda word: word != "auto")
devices = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,8}", fullmatch=True)


@given(words, devices)
def test_a_spec_survives_being_printed(name: str, device: str) -> None:
    assert Spec.parse(f"{name}:{device}") == Spec(name, device)
    assert Spec.parse(name) == Spec(name)
    assert str(Spec.parse(f"{name}:{device}")) == f"{name}:{device}"


@given(st.text())
def test_any_text_is_a_spec_or_a_config_error(text: str) -> None:
    try:
        spec = Spec.parse(text)
    except ConfigError as error:
        assert repr(text) in str(error)
    else:
        assert str(spec) == text


@pytest.mark.parametrize(
    "text",
    ["", " ", "cpu ", " cpu", "cpu\n", "CPU", "cpu:", ":1", "cuda:1:2", "cuda: 1", "cu da", "auto:1", "7", "-", "cpü"],
)
def test_a_malformed_spec_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"TURRET_BACKEND=.*is not a backend; wanted <name> or <name>:<device>"):
        Spec.parse(text, source="TURRET_BACKEND")


@pytest.mark.parametrize(
    ("text", "meant"), [("CPU", "cpu"), (" cuda:1 ", "cuda:1"), ("cpu:", "cpu"), ("auto:1", "auto"), ("Metal", "metal")]
)
def test_a_malformed_spec_that_is_nearly_right_is_corrected(text: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f'did you mean "{meant}"'):
        Spec.parse(text)


@pytest.mark.parametrize("value", [None, 3, b"cpu", ["cpu"]])
def test_a_spec_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="is not a backend"):
        Spec.parse(value)


@pytest.mark.parametrize("word", KNOWN)
def test_a_missing_known_backend_says_how_to_get_it(word: str) -> None:
    text = str(not_found(Spec(word), ["stranger"]))
    assert f'pip install "core[{word}]"' in text
    assert "installed: stranger" in text


def test_a_misspelt_name_is_guessed_among_the_installed() -> None:
    text = str(not_found(Spec("vulcan", "1"), ["vulkan", "cpu"], source="TURRET_BACKEND"))
    assert "TURRET_BACKEND='vulcan:1'" in text
    assert "did you mean 'vulkan'?" in text
    assert "pip install" not in text


def test_a_misspelt_name_of_an_absent_backend_is_guessed_with_its_command() -> None:
    assert "did you mean 'cuda'? Install it with: pip install \"core[cuda]\"" in str(not_found(Spec("cudaa"), ["cpu"]))


def test_with_nothing_installed_the_error_says_what_to_install() -> None:
    text = str(not_found(Spec("zzz"), []))
    assert "installed: none" in text
    assert 'pip install "core[cpu]"' in text
