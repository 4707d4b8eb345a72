"""Sizes that no machine holds are refused by arithmetic, before memory is taken."""

from __future__ import annotations

from typing import Any

import pytest

from turret.models import DecoderConfig, MiniConfig
from turret.spi import ConfigError
from turret.train import room

IMPOSSIBLE = 10**15


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
