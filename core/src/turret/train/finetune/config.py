"""The configuration of a fine-tuning run: one flat, frozen record behind the command line, files and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from turret.data.supervision import Learn, Long
from turret.models import check_memory
from turret.nn.adapter import check_adapter
from turret.nn.regularization import check_rate
from turret.optim import Schedule, constant, warmup_cosine
from turret.spi import ConfigError, ScaleCode

from ..checkpoint.content import LARGEST_COUNT
from ..config import ScheduleName
from ..precision import PRECISIONS
from ..values import known_values, require_count, require_kept, require_word, shown, typed

Method = Literal["full", "lora", "qlora"]
Output = Literal["both", "adapter", "merged"]
CHANGEABLE = frozenset(
    (
        *("steps", "eval_every", "eval_batches", "checkpoint_every", "keep", "patience", "output"),
        *("base", "data", "backend", "capture", "log", "attention", "activation_checkpointing", "optimizer_page"),
    )
)
"""What a resumed run may set anew; base and data are compared by content, wherever they lie now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """Everything that decides a run. None stands for a value that follows from others, filled in by `resolved`.

    base: a model folder or file. data: a JSONL file. context: tokens of a row, into which examples are packed; batch:
    rows. rank, alpha, targets, adapter_dropout: of the adapters; block, scales: of packed weights. patience:
    validations without a better loss after which the run ends, None for never. Other fields are as in RunConfig.
    """

    base: str
    data: str
    method: str = "lora"
    backend: str | None = None
    context: int = 512
    batch: int = 1
    accumulate: int = 1
    steps: int = 200
    lr: float | None = None
    min_lr: float | None = None
    warmup: int | None = None
    schedule: ScheduleName = "cosine"
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    seed: int = 0
    val_fraction: float = 0.1
    eval_every: int = 50
    eval_batches: int = 20
    checkpoint_every: int = 50
    keep: int = 2
    patience: int | None = None
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("query", "value")
    adapter_dropout: float = 0.0
    dropout: float = 0.0
    block: int = 64
    scales: str = "dynamic"
    learn: str = "response"
    long: str = "truncate"
    skip_bad: int = 0
    capture: bool = True
    attention: str = "materialized"
    activation_checkpointing: str = "none"
    precision: str = "float32"
    optimizer_page: int | None = None
    output: str = "both"
    log: str = "auto"

    def __post_init__(self) -> None:
        _require_targets(self.targets)
        for name, kind in _KINDS.items():
            typed(name, kind, getattr(self, name), source="FinetuneConfig")
        self._require_words()
        self._require_counts()
        self._require_ranges()
        self.schedule_function()
        if self.steps * self.tokens_per_step > LARGEST_COUNT:
            raise ConfigError(
                f"{self.steps} steps of {self.tokens_per_step} tokens pass 2**63 - 1 tokens, which no file counts; "
                f"make steps, batch, accumulate or context smaller"
            )

    def _require_words(self) -> None:
        require_word("method", self.method, get_args(Method))
        require_word("schedule", self.schedule, get_args(ScheduleName))
        require_word("precision", self.precision, tuple(PRECISIONS))
        require_word("scales", self.scales, get_args(ScaleCode))
        require_word("learn", self.learn, get_args(Learn))
        require_word("long", self.long, get_args(Long))
        require_word("output", self.output, get_args(Output))
        require_word("log", self.log, ("auto", "progress", "json"))
        check_memory(self.attention, self.activation_checkpointing)
        if not self.base or not self.data:
            raise ConfigError("finetune needs a BASE model and --data FILE.jsonl; one of them is empty")
        if self.method == "full" and self.output == "adapter":
            raise ConfigError("output adapter with method full, which has none; wanted both or merged")

    def _require_counts(self) -> None:
        for name in _COUNTS:
            require_count(name, getattr(self, name), 1)
        for name in ("patience", "optimizer_page"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1)
        for name in ("warmup", "skip_bad"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 0)
        require_count("seed", self.seed, 0, bits=64)

    def _require_ranges(self) -> None:
        for name in ("beta1", "beta2", "val_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} {shown(getattr(self, name))}; wanted at least 0 and below 1")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay {shown(self.weight_decay)}; wanted a finite number of at least 0")
        if not self.grad_clip > 0:
            raise ConfigError(f"grad_clip {shown(self.grad_clip)}; wanted a positive number, inf for no clipping")
        if self.patience is not None and self.val_fraction == 0:
            raise ConfigError("patience without validation; wanted a val-fraction above 0, or no patience")
        check_rate("dropout", float(self.dropout))
        if self.method != "full":
            check_adapter(self.rank, float(self.alpha), float(self.adapter_dropout))

    @property
    def tokens_per_step(self) -> int:
        """Positions that one update computes, padding too."""
        return self.batch * self.context * self.accumulate

    def resolved(self) -> FinetuneConfig:
        """The same run with every None filled in."""
        lr, min_lr, warmup = self._rates()
        return replace(self, lr=lr, min_lr=min_lr, warmup=warmup)

    def schedule_function(self) -> Schedule:
        """Step number, from 1, to learning rate."""
        lr, min_lr, warmup = self._rates()
        if self.schedule == "constant":
            return constant(lr, warmup=warmup)
        return warmup_cosine(lr, min_lr=min_lr, warmup=warmup, steps=self.steps)

    def _rates(self) -> tuple[float, float, int]:
        """An adapter begins as nothing and bears, and needs, a higher rate than weights that are good already."""
        default = 2e-5 if self.method == "full" else 2e-4
        lr = default if self.lr is None else float(self.lr)
        min_lr = lr / 10 if self.min_lr is None else float(self.min_lr)
        return lr, min_lr, min(20, self.steps // 10) if self.warmup is None else self.warmup

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        values["targets"] = list(self.targets)
        if math.isinf(self.grad_clip):
            values["grad_clip"] = "inf"
        return values

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, source: str) -> FinetuneConfig:
        """A configuration from plain values; `source` says in errors where they come from.

        Raises: ConfigError for unknown keys (with a suggestion), missing ones and wrong types.
        """
        checked = checked_values(values, source=source)
        for name in ("base", "data"):
            if name not in checked:
                raise ConfigError(f"{source}: no {name}; finetune needs a BASE model and --data FILE.jsonl")
        return cls(**checked)

    def resumed(self, given: Mapping[str, Any]) -> FinetuneConfig:
        """This run's configuration with what the user asks for anew.

        Raises: ConfigError for a value that would make it another run.
        """
        require_kept(self, given, CHANGEABLE)
        return replace(self, **given)


_KINDS: dict[str, str] = {f.name: str(f.type) for f in fields(FinetuneConfig)}
_COUNTS = (
    *("context", "batch", "accumulate", "steps", "eval_every", "eval_batches", "checkpoint_every", "keep"),
    *("rank", "block"),
)


def checked_values(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Known keys with values of the right type; dashes in keys count as underscores.

    Raises: ConfigError naming source, key and what was wanted.
    """
    return known_values(_KINDS, values, source=source, written=_spelled_out)


def _spelled_out(key: str, value: Any) -> Any:
    """What files may write shorter, or cannot write as it is."""
    if key == "grad_clip" and value == "inf":
        return math.inf
    if key == "targets":
        value = [value] if isinstance(value, str) else value
        _require_targets(value)
    return value


def _require_targets(value: Any) -> None:
    """Raises: ConfigError unless `value` has names of layers."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"targets {shown(value)}; wanted names or patterns of layers, as in query")
