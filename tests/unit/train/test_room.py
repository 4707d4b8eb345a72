"""Sizes that no machine holds are refused by arithmetic, before memory is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from turret.models import DecoderConfig, MiniConfig
from turret.spi import ConfigError
from turret.train import room

IMPOSSIBLE = 10**15
BEYOND_FLOAT = 10**400


@pytest.mark.parametrize("name", ["width", "blocks", "feed_forward", "context", "vocabulary"])
@pytest.mark.parametrize("kind", [DecoderConfig, MiniConfig])
def test_a_size_beyond_any_machine_is_refused(kind: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=r"GB of memory.*smaller"):
        room.require_room(kind(**{"vocabulary": 256, name: IMPOSSIBLE}))


@pytest.mark.parametrize("what", ["tokens", "held", "copies"])
def test_a_batch_beyond_any_machine_is_refused(what: str) -> None:
    with pytest.raises(ConfigError, match="memory"):
        room.require_room(DecoderConfig(vocabulary=256), **{what: IMPOSSIBLE})


def test_what_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "machine_memory", lambda: 2 * 10**6)
    room.require_room(DecoderConfig(vocabulary=256), tokens=64, held=64, copies=4)


def test_a_run_that_saves_memory_is_not_refused_for_what_it_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig(vocabulary=256, width=64, blocks=8, feed_forward=256)
    monkeypatch.setattr(room, "machine_memory", lambda: 10**8)
    with pytest.raises(ConfigError):
        room.require_room(config, tokens=20_000, copies=4)
    room.require_room(config, tokens=20_000, copies=4, saving=True)


@pytest.mark.parametrize("name", ["width", "blocks", "feed_forward", "context", "vocabulary"])
@pytest.mark.parametrize("kind", [DecoderConfig, MiniConfig])
@pytest.mark.parametrize("saving", [False, True])
def test_a_size_that_no_float_holds_is_refused_like_any_other(kind: Any, name: str, saving: bool) -> None:
    config = kind(**{"vocabulary": 256, name: BEYOND_FLOAT})
    with pytest.raises(ConfigError, match="need at least over a billion GB of memory"):
        room.require_room(config, tokens=64, held=64, copies=4, saving=saving)


@pytest.mark.parametrize("what", ["tokens", "held", "copies"])
def test_a_batch_that_no_float_holds_is_refused_like_any_other(what: str) -> None:
    counts: dict[str, Any] = {what: BEYOND_FLOAT}
    with pytest.raises(ConfigError, match="memory"):
        room.require_room(DecoderConfig(vocabulary=256), **counts)


@pytest.mark.parametrize("config", [DecoderConfig(vocabulary=256, width=128, blocks=4), MiniConfig(vocabulary=262)])
def test_pages_too_small_for_a_model_are_refused_with_the_least_that_is_not(
    config: DecoderConfig | MiniConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PAGES", 1000)
    with pytest.raises(ConfigError, match=r"wanted at least \d+ for this model") as caught:
        room.require_few_pages(config, 1)
    least = int(re.findall(r"at least (\d+)", str(caught.value))[0])
    room.require_few_pages(config, least)
    with pytest.raises(ConfigError, match=f"optimizer-page {least - 1} cuts the {config.parameter_count()} parameters"):
        room.require_few_pages(config, least - 1)
