"""Adapters of our layers as those of the modules of a checkpoint, several of which may be one module there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from turret.models.base import LanguageModel
from turret.models.decoder import Decoder
from turret.models.mini import Mini
from turret.nn import LowRankAdapter
from turret.nn.adapter import Adaptable
from turret.nn.packing import named_layers
from turret.spi import CheckpointError, ConfigError, Host, Unsupported

from .names import hugging_face


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """a: (rank, inputs), b: (outputs, rank) and alpha of one adapter."""

    a: Host
    b: Host
    alpha: float

    @property
    def rank(self) -> int:
        return len(self.a)


def module_names(model: LanguageModel) -> dict[str, str]:
    """What transformers calls each linear layer: ours to theirs. Raises: ConfigError for another family."""
    if not isinstance(model, (Decoder, Mini)):
        raise ConfigError(f"{type(model).__name__} has no names in transformers; give names=")
    plan = hugging_face(model.config)
    return {name: plan[f"{name}.weight"].stored.removesuffix(".weight") for name, _ in named_layers(model, Adaptable)}


def grouped(names: Mapping[str, str]) -> dict[str, list[str]]:
    """Our layers of each module of the checkpoint, in the order in which its outputs have them."""
    groups: dict[str, list[str]] = {}
    for ours, theirs in names.items():
        groups.setdefault(theirs, []).append(ours)
    return groups


def joined(module: str, members: Mapping[str, LowRankAdapter | None], outputs: list[int]) -> tuple[Pair, list[int]]:
    """One adapter for layers that are one module, and how many of its ranks belong to each of them.

    Where all share a, so does the result, and there are no ranks to tell. Else every layer has ranks of its own and b
    is 0 elsewhere. outputs: of each member. Raises: Unsupported where the scales differ.
    """
    pairs = [None if each is None else _pair(each) for each in members.values()]
    found = [pair for pair in pairs if pair is not None]
    scales = {pair.alpha / pair.rank for pair in found}
    if len(scales) > 1:
        raise Unsupported(f"{module}: its adapters have the scales {sorted(scales)}; wanted one for one module")
    first = found[0]
    if len(found) == len(pairs) and all(np.array_equal(pair.a, first.a) for pair in found):
        return Pair(a=first.a, b=np.concatenate([pair.b for pair in found]), alpha=first.alpha), []
    ranks = [0 if pair is None else pair.rank for pair in pairs]
    b = np.zeros((sum(outputs), sum(ranks)), np.float32)
    row = column = 0
    for pair, size, rank in zip(pairs, outputs, ranks, strict=True):
        if pair is not None:
            b[row : row + size, column : column + rank] = pair.b
        row, column = row + size, column + rank
    alpha = first.alpha * sum(ranks) / first.rank
    return Pair(a=np.concatenate([pair.a for pair in found]), b=b, alpha=alpha), ranks


def parted(module: str, pair: Pair, outputs: list[int], ranks: list[int]) -> list[Pair | None]:
    """The adapters of the layers that a module is: what `joined` gives, taken apart again.

    ranks: as there; empty where all share a. Raises: CheckpointError where they do not fit.
    """
    rows = np.cumsum([0, *outputs])
    if not ranks:
        return [Pair(a=pair.a, b=pair.b[i:j], alpha=pair.alpha) for i, j in pairwise(rows)]
    if len(ranks) != len(outputs) or sum(ranks) != pair.rank or min(ranks) < 0:
        raise CheckpointError(f"{module}: ranks {ranks!r:.80} for {len(outputs)} layers; wanted {pair.rank} in all")
    columns, rest = np.cumsum([0, *ranks]), pair.b.copy()
    made: list[Pair | None] = []
    for n, rank in enumerate(ranks):
        here = np.s_[rows[n] : rows[n + 1], columns[n] : columns[n + 1]]
        a, b = pair.a[columns[n] : columns[n + 1]], pair.b[here]
        made.append(Pair(a=a, b=b, alpha=pair.alpha * rank / pair.rank) if rank else None)
        rest[here] = 0
    if rest.any():
        raise CheckpointError(f"{module}: values outside of its layers' ranks {ranks!r:.80}; wanted 0 there")
    return made


def _pair(adapter: LowRankAdapter) -> Pair:
    return Pair(a=adapter.a.numpy(), b=adapter.b.numpy(), alpha=adapter.alpha)
