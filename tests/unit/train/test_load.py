"""A checkpoint whose sealed configuration claims another model than its arrays is refused before that is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.models import build_model, model_config
from turret.registry import open_backend
from turret.spi import CheckpointError
from turret.train.checkpoint import CheckpointContent, write_checkpoint
from turret.train.load import load_model

SIZES: dict[str, Any] = {"vocabulary": 262, "context": 8, "width": 8, "heads": 2, "blocks": 1, "feed_forward": 8}


def _saved(folder: Path, **claims: Any) -> Path:
    arrays = build_model(model_config("mini", SIZES)).state_dict()
    content = CheckpointContent(
        model={"kind": "mini", "config": SIZES | claims},
        train={},
        tokenizer="reserved-bytes",
        data={},
        step=0,
        tokens_seen=0,
        position={"step": 0, "tokens_seen": 0},
        random={},
        parameters=arrays,
        optimizer={"m": np.zeros(1, np.float32)},
    )
    return write_checkpoint(folder, content)


def test_an_honest_one_loads(tmp_path: Path) -> None:
    assert load_model(_saved(tmp_path), open_backend("cpu")).step == 0


@pytest.mark.parametrize("claim", ["width", "blocks", "feed_forward", "vocabulary", "context"])
def test_a_claim_of_a_thousand_million_costs_nothing(tmp_path: Path, claim: str) -> None:
    path = _saved(tmp_path, **{claim: 10**9 if claim != "context" else 10**14})
    with pytest.raises(CheckpointError, match=r"parameters, its file holds|memory"):
        load_model(path, open_backend("cpu"))
