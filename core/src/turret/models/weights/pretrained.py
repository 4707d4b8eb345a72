"""A model that was loaded from a file, with what it needs to speak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turret.data.chat_template import ChatTemplate
from turret.data.subword import SubwordTokenizer
from turret.models.base import LanguageModel
from turret.spi import CheckpointError

Form = Literal["hf", "safetensors", "gguf"]
"""Folders in a Hugging Face layout, folders in turret's own, and GGUF files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """eos_ids: the tokens that end a generation, all inside the vocabulary. prefix: what every text begins with.

    tokenizer and template are None where the file has none.
    """

    model: LanguageModel
    tokenizer: SubwordTokenizer | None
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]
    source: Path
    form: Form
    architecture: str

    def __post_init__(self) -> None:
        """Raises: CheckpointError for a tokenizer with ids that the model lacks."""
        if self.tokenizer is not None and self.tokenizer.vocabulary_size > self.model.vocabulary:
            raise CheckpointError(
                f"{self.source}: the tokenizer has {self.tokenizer.vocabulary_size} ids and the model "
                f"{self.model.vocabulary}; wanted no more: the tokenizer is of another model"
            )

    @property
    def prefix(self) -> tuple[int, ...]:
        """The ids that the tokenizer puts in front of every text; none without a tokenizer."""
        return () if self.tokenizer is None else self.tokenizer.prefix

    @property
    def allowed(self) -> int:
        """Ids from 0 to here may be sampled: embeddings are often padded beyond the tokenizer's vocabulary."""
        return self.model.vocabulary if self.tokenizer is None else self.tokenizer.vocabulary_size
