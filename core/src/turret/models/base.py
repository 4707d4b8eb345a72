"""What every language model of turret offers, and the caches it fills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, Protocol, Self, get_args

from turret.nn import AttentionForm, Block, CausalSelfAttention, LayerCache, Module, Segments
from turret.nn.regularization import check_rate, dropout
from turret.nn.rotary import Rotation
from turret.spi import ConfigError, DataError, ShapeError
from turret.tensor import Tensor, checkpoint, ops

Checkpointing = Literal["none", "block"]
"""Which activations of the forward pass are kept for the backward pass: all, or those between blocks."""


class Cache(Protocol):
    """Keys and values of every layer for tokens already seen."""

    @property
    def length(self) -> int:
        """Tokens held."""
        ...

    @property
    def places(self) -> Tensor | None:
        """Positions of the tokens of this step, int32 (T,), where only the device knows them; None: `length` and on."""
        ...

    @property
    def layers(self) -> Sequence[LayerCache]:
        """One store per block."""
        ...

    def advance(self, count: int) -> None:
        """Makes the `count` tokens appended to every layer part of `length`."""
        ...


class LanguageModel(Module, ABC):
    """Token ids in, logits of the next token out. `kind` is the word in files and on the command line."""

    kind: str
    vocabulary: int
    context: int
    blocks_count: int
    kv_heads: int
    head_size: int
    checkpointing: str = "none"
    embedding_dropout: float = 0.0

    def save_memory(
        self, *, attention: AttentionForm | str = "materialized", checkpointing: Checkpointing | str = "none"
    ) -> Self:
        """Chooses how training trades time for memory; the function and its parameters stay what they are.

        attention: "flash" keeps no probabilities; a step's bits may differ from "materialized". checkpointing: "block"
        runs every block's forward pass a second time during the backward pass, with the same bits. A step that was
        captured before keeps the way it was captured with.
        Raises: ConfigError for another word.
        """
        check_memory(attention, checkpointing)
        for module in self.modules():
            if isinstance(module, CausalSelfAttention):
                module.form = attention
        self.checkpointing = checkpointing
        return self

    def regularize(self, *, attention: float = 0.0, residual: float = 0.0, embedding: float = 0.0) -> Self:
        """Sets the rates of dropout: of attention probabilities, of what blocks add, and of the embedded tokens.

        They work inside `turret.nn.dropping` alone: a model that is asked is never dropped from. A step that was
        captured before keeps the rates it was captured with.
        Raises: ConfigError for a rate outside 0 <= rate < 1; nothing is changed then.
        """
        for what, rate in (("attention", attention), ("residual", residual), ("embedding", embedding)):
            check_rate(f"{what} dropout", rate)
        for module in self.modules():
            if isinstance(module, CausalSelfAttention):
                module.dropout = attention
            elif isinstance(module, Block):
                module.dropout = residual
        self.embedding_dropout = embedding
        return self

    def _embedded(self, x: Tensor) -> Tensor:
        """What the first block reads."""
        return dropout(x, self.embedding_dropout)

    def _through(
        self,
        block: Block,
        x: Tensor,
        cache: LayerCache | None,
        rotation: Rotation | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """x after one block."""
        if cache is None and self.checkpointing == "block":
            return checkpoint(lambda x: block(x, None, rotation, segments), x)
        return block(x, cache, rotation, segments)

    @abstractmethod
    def __call__(
        self,
        ids: Tensor,
        cache: Cache | None = None,
        *,
        last: bool = False,
        segments: Segments | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """ids: int32 (B, T), 0 <= id < vocabulary; returns logits (B, T, V), or (B, 1, V) of the last token.

        With a cache, the tokens follow those it holds, and it holds them too afterwards. segments: the texts that rows
        consist of, each of which is read as if it stood alone; not with a cache. rows: int32 (N,), places in the B * T
        tokens laid end to end; the logits are (N, V) of these alone.
        Raises: ShapeError where tokens pass the context; ConfigError for segments with a cache, and rows with `last`.
        """
        ...

    @abstractmethod
    def config_dict(self) -> dict[str, object]:
        """The configuration as plain values, for files."""
        ...


def check_memory(attention: str, checkpointing: str) -> None:
    """Raises: ConfigError for a word that `save_memory` does not know."""
    for what, word, known in (
        ("attention", attention, get_args(AttentionForm)),
        ("activation checkpointing", checkpointing, get_args(Checkpointing)),
    ):
        if word not in known:
            raise ConfigError(f"{what} {word!r}; wanted one of {', '.join(known)}")


def check_ids(
    ids: Tensor, cache: Cache | None, segments: Segments | None = None, *, context: int, blocks: int
) -> tuple[int, int]:
    """(start position, T) of a step.

    Raises: DataError for ids that are not int32 (B, T), ShapeError past the context, for a cache of other depth and
    segments of another shape; ConfigError for segments with a cache.
    """
    if not isinstance(ids, Tensor):
        raise DataError(f"token ids as {type(ids).__name__}; wanted an int32 Tensor (B, T): use turret.tensor(...)")
    if cache is not None and len(cache.layers) != blocks:
        raise ShapeError(f"a cache of {len(cache.layers)} layers for a model of {blocks} blocks; wanted one per block")
    if ids.ndim != 2 or ids.dtype != "int32" or 0 in ids.shape:
        raise DataError(f"token ids {ids!r}; wanted int32 of shape (B, T) with at least one token")
    if segments is not None and cache is not None:
        raise ConfigError("segments with a cache; wanted one of them: a cache continues one text a row")
    if segments is not None and segments.ids.shape != ids.shape:
        raise ShapeError(f"token ids {ids.shape} with segments of {segments.ids.shape}; wanted equal shapes")
    start, count = (0 if cache is None else cache.length), ids.shape[1]
    if start + count > context:
        raise ShapeError(
            f"{start + count} tokens pass the context of {context}; shorten the input, or reset the cache and replay a "
            f"suffix"
        )
    return start, count


def chosen(x: Tensor, *, last: bool, rows: Tensor | None) -> Tensor:
    """Of x (B, T, D) what logits are wanted of: all, (B, 1, D), or (N, D) of `rows`. Raises: ConfigError for both."""
    if rows is None:
        return x[:, x.shape[1] - 1 :] if last else x
    if last:
        raise ConfigError("logits of rows and of the last token; wanted one of them")
    return ops.gather_rows(x.reshape(x.shape[0] * x.shape[1], x.shape[2]), rows)


def token_places(cache: Cache | None, segments: Segments | None) -> Tensor | None:
    """Positions of the tokens of a step, int32 (T,) or (B, T), where they are not the next ones of every row."""
    if segments is not None:
        return segments.positions
    return None if cache is None else cache.places


def layer_cache(cache: Cache | None, layer: int) -> LayerCache | None:
    """The store of one block, if there is a cache."""
    return None if cache is None else cache.layers[layer]
