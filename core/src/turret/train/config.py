"""The configuration of a training run: one flat, frozen record behind the command line, files and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from turret.data import ByteLevelTokenizer, tokenizer_for
from turret.models import KINDS, DecoderConfig, MiniConfig, check_memory
from turret.nn.regularization import check_rate
from turret.optim import Schedule, constant, warmup_cosine
from turret.spi import ConfigError
from turret.train.checkpoint.content import LARGEST_COUNT

from .precision import PRECISIONS
from .values import known_values, require_count, require_kept, require_word, shown, typed

ScheduleName = Literal["cosine", "constant"]
CHANGEABLE = frozenset(
    (
        *("steps", "eval_every", "eval_batches", "checkpoint_every", "keep"),
        *("backend", "capture", "log", "attention", "activation_checkpointing", "optimizer_page"),
    )
)
"""What a resumed run may set anew; everything else decides its losses and stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides a run. None stands for a value that follows from others, filled in by `resolved`.

    Sizes are counts; lr, min_lr per step; warmup, eval_every, checkpoint_every in steps; losses are nats per token.
    capture: a whole step is one program where the backend compiles. attention, activation_checkpointing: as in
    `LanguageModel.save_memory`. dropout: the rate of all three kinds that have none of their own. precision: what
    layers compute in. optimizer_page: elements of a page of Adam's moments. tokenizer_file: the tokenizer.json of a run
    on subword tokens, None for bytes.
    """

    model: str = "decoder"
    corpus: tuple[str, ...] = ("builtin:python-docs",)
    tokenizer_file: str | None = None
    backend: str | None = None
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    width: int = 128
    ff: int | None = None
    context: int = 64
    batch: int = 12
    accumulate: int = 1
    steps: int = 2000
    lr: float = 1e-3
    min_lr: float | None = None
    warmup: int | None = None
    schedule: ScheduleName = "cosine"
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    seed: int = 0
    val_fraction: float = 0.1
    eval_every: int = 250
    eval_batches: int = 20
    checkpoint_every: int = 500
    keep: int = 3
    capture: bool = True
    attention: str = "materialized"
    activation_checkpointing: str = "none"
    dropout: float = 0.0
    attention_dropout: float | None = None
    residual_dropout: float | None = None
    embedding_dropout: float | None = None
    precision: str = "float32"
    optimizer_page: int | None = None
    log: str = "auto"

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            typed(name, kind, getattr(self, name), source="RunConfig")
        self._require_words()
        self._require_counts()
        self._require_ranges()
        self.schedule_function()
        self._model(self.byte_tokenizer.vocabulary_size)
        if self.steps * self.tokens_per_step > LARGEST_COUNT:
            raise ConfigError(
                f"{self.steps} steps of {self.tokens_per_step} tokens pass 2**63 - 1 tokens, which no file counts; "
                f"make steps, batch, accumulate or context smaller"
            )

    def _require_words(self) -> None:
        require_word("model", self.model, KINDS)
        require_word("schedule", self.schedule, get_args(ScheduleName))
        require_word("precision", self.precision, tuple(PRECISIONS))
        require_word("log", self.log, ("auto", "progress", "json"))
        check_memory(self.attention, self.activation_checkpointing)
        if not self.corpus or not all(self.corpus):
            raise ConfigError(f"corpus {shown(self.corpus)}; wanted files, a folder or builtin:python-docs")
        if self.tokenizer_file == "":
            raise ConfigError("tokenizer got an empty text; wanted a tokenizer.json, or leave it out for bytes")

    def _require_counts(self) -> None:
        for name in _COUNTS:
            require_count(name, getattr(self, name), 1)
        for name in ("kv_heads", "ff", "optimizer_page"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1)
        if self.warmup is not None:
            require_count("warmup", self.warmup, 0)
        require_count("seed", self.seed, 0, bits=64)

    def _require_ranges(self) -> None:
        for name in ("beta1", "beta2", "val_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} {shown(getattr(self, name))}; wanted at least 0 and below 1")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay {shown(self.weight_decay)}; wanted a finite number of at least 0")
        if not self.grad_clip > 0:
            raise ConfigError(f"grad_clip {shown(self.grad_clip)}; wanted a positive number, inf for no clipping")
        for kind, rate in {"": self.dropout, **self.dropout_rates()}.items():
            check_rate(f"{kind} dropout".strip(), float(rate))

    @property
    def byte_tokenizer(self) -> ByteLevelTokenizer:
        """What a run without a tokenizer file has: 256 byte ids for the decoder, 262 with reserved ids for mini."""
        return tokenizer_for("bytes" if self.model == "decoder" else "reserved-bytes")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update learns from."""
        return self.batch * self.context * self.accumulate

    def resolved(self) -> RunConfig:
        """The same run with every None filled in."""
        model = self._model(self.byte_tokenizer.vocabulary_size)
        rates = self._rates()
        kv_heads = model.kv_heads if isinstance(model, MiniConfig) else model.key_value_heads
        return replace(self, kv_heads=kv_heads, ff=model.feed_forward, min_lr=rates[0], warmup=rates[1])

    def model_config(self, vocabulary: int | None = None) -> DecoderConfig | MiniConfig:
        """The model's own configuration. vocabulary: the tokenizer's, where the run is not on bytes.

        Raises: ConfigError without the vocabulary of a tokenizer file.
        """
        if vocabulary is None and self.tokenizer_file is not None:
            raise ConfigError(f"the vocabulary of {self.tokenizer_file} decides the model's size; pass it")
        return self._model(self.byte_tokenizer.vocabulary_size if vocabulary is None else vocabulary)

    def _model(self, vocabulary: int) -> DecoderConfig | MiniConfig:
        if self.model == "decoder":
            return DecoderConfig(
                vocabulary=vocabulary,
                context=self.context,
                width=self.width,
                heads=self.heads,
                kv_heads=self.kv_heads,
                blocks=self.layers,
                feed_forward=self.ff or 4 * self.width,
            )
        return MiniConfig(
            vocabulary=vocabulary,
            context=self.context,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads or (self.heads // 2 if self.heads % 2 == 0 else self.heads),
            blocks=self.layers,
            feed_forward=self.ff or max(32, round(8 * self.width / 3 / 32) * 32),
        )

    def dropout_rates(self) -> dict[str, float]:
        """The rate of each kind of dropout, as `LanguageModel.regularize` takes them."""
        own = {
            "attention": self.attention_dropout,
            "residual": self.residual_dropout,
            "embedding": self.embedding_dropout,
        }
        return {kind: self.dropout if rate is None else rate for kind, rate in own.items()}

    def schedule_function(self) -> Schedule:
        """Step number, from 1, to learning rate."""
        min_lr, warmup = self._rates()
        if self.schedule == "constant":
            return constant(float(self.lr), warmup=warmup)
        return warmup_cosine(float(self.lr), min_lr=min_lr, warmup=warmup, steps=self.steps)

    def _rates(self) -> tuple[float, int]:
        min_lr = self.lr / 10 if self.min_lr is None else float(self.min_lr)
        return min_lr, min(100, self.steps // 10) if self.warmup is None else self.warmup

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        values["corpus"] = list(self.corpus)
        if math.isinf(self.grad_clip):
            values["grad_clip"] = "inf"
        return values

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, source: str) -> RunConfig:
        """A configuration from plain values; `source` says in errors where they come from.

        Raises: ConfigError for unknown keys (with a suggestion) and wrong types.
        """
        return cls(**checked_values(values, source=source))

    def resumed(self, given: Mapping[str, Any]) -> RunConfig:
        """This run's configuration with what the user asks for anew.

        Raises: ConfigError for a value that would make it another run.
        """
        require_kept(self, given, CHANGEABLE)
        return replace(self, **given)


_KINDS: dict[str, str] = {f.name: str(f.type) for f in fields(RunConfig)}
_SHORT = {"tokenizer": "tokenizer_file"}
"""Options whose name is shorter than the field's."""
_COUNTS = (
    *("layers", "heads", "width", "context", "batch", "accumulate", "steps"),
    *("eval_every", "eval_batches", "checkpoint_every", "keep"),
)


def checked_values(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Known keys with values of the right type; dashes in keys count as underscores.

    Raises: ConfigError naming source, key and what was wanted.
    """
    return known_values(_KINDS, values, source=source, written=_spelled_out, short=_SHORT)


def _spelled_out(key: str, value: Any) -> Any:
    """What files may write shorter, or cannot write as it is."""
    if key == "grad_clip" and value == "inf":
        return math.inf
    return [value] if key == "corpus" and isinstance(value, str) else value
