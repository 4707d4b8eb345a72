"""A fine-tuning run in a folder: from base and examples to an adapter or a tuned model, new or resumed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from turret.data import DataPosition, Manifest
from turret.data.example_batches import ExampleBatch
from turret.data.subword import SubwordTokenizer
from turret.optim import Adam, decay_groups
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError
from turret.tensor import RandomStream

from ..assembly import LOSS_SCALE, load_scale
from ..checkpoint import CheckpointContent
from ..checkpoint.content import FINETUNE
from ..engine import Engine
from ..interrupt import Interrupt, watch_signals
from ..lock import hold
from ..loop import Course, Loop, require_inside
from ..objective import LearnedTokens
from ..patience import Patience
from ..precision import LossScale, compute_format
from ..run import require_position
from ..telemetry import Broadcast, Observer, TrainDone
from .best import BestWeights
from .config import FinetuneConfig
from .examples import TuningData, tuning_data
from .outputs import write_outputs
from .tuned_base import Base, open_base, require_same_base, tuned_facts

PATIENCE = "patience"
_LOG = logging.getLogger("turret")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneResult:
    """How a run ended and what it left.

    outputs: folders by kind, none where a signal ended it; best_step: the step whose weights they are.
    """

    done: TrainDone
    base: Base
    config: FinetuneConfig
    data: TuningData
    backend: OpenBackend
    outputs: Mapping[str, str]
    best_step: int
    best_val_loss: float | None


def run_finetuning(
    config: FinetuneConfig,
    out: Path,
    backend: OpenBackend,
    *,
    resume: CheckpointContent | None = None,
    observers: Sequence[Observer] = (),
) -> FinetuneResult:
    """Tunes `config.base` into `out` up to `config.steps`, from its beginning or from a checkpoint, on `backend`.

    With patience, the outputs are of the step with the best validation loss. SIGINT and SIGTERM finish the step in
    progress and save. Raises: DataError, ConfigError, NonFiniteError, CheckpointError, Unsupported; the last checkpoint
    is intact then.
    """
    compute_format(config.precision, backend, resumed=resume is not None)
    require_inside(0 if resume is None else resume.step, config.steps)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: the run folder cannot be made ({error}); choose another --out") from error
    with hold(out), watch_signals() as interrupt:
        run = _Run(config.resolved(), out, backend, resume, Broadcast(observers))
        try:
            return run.train(interrupt)
        finally:
            run.loop.close()


class _Run:
    """The parts of one run, put together in the order in which they can fail."""

    def __init__(
        self,
        config: FinetuneConfig,
        out: Path,
        backend: OpenBackend,
        resume: CheckpointContent | None,
        observer: Broadcast,
    ) -> None:
        self.config, self.out, self.backend, self.resume = config, out, backend, resume
        self.base = open_base(config, backend)
        self.data = tuning_data(config, self.base.opened)
        self.patience, self.best = Patience(config.patience), BestWeights(out, self.base)
        if resume is not None:
            stored = tuned_facts(resume)
            require_same_base(self.base, resume, stored)
            Manifest.from_dict(resume.data).require_same(self.data.manifest)
            require_position(_position(config, resume.step), resume)
            self.patience.load(stored.get(PATIENCE), step=resume.step)
        self.engine = _engine(config, self.base, self.data, backend, resume)
        course = Course(
            steps=config.steps,
            eval_every=config.eval_every,
            checkpoint_every=config.checkpoint_every,
            keep=config.keep,
            tokens_per_step=config.tokens_per_step,
        )
        self.loop = Loop(
            course,
            out,
            self.engine,
            backend,
            observer,
            content=self._content,
            parameters=self.base.parameters,
            resume=resume,
            patience=self.patience if self.engine.validation else None,
            on_better=None if config.patience is None else self.best.keep,
        )

    def _find_best(self) -> None:
        """The best weights so far are those of the checkpoint, or kept beside it, unless that part had no patience."""
        self.best.rewind(self.loop.start)
        resume, step = self.resume, self.patience.best_step
        if resume is None or self.config.patience is None:
            return
        if step and step == resume.step:
            self.best.keep(step)
        elif step and (resume.path is None or not self.best.fetch(step, resume.path.parent.parent)):
            _LOG.warning(
                f"step {step} had the best validation loss, {self.patience.best:.4f}, and its weights were not kept; "
                f"patience begins anew at step {resume.step}"
            )
            self.patience.forget()

    def train(self, interrupt: Interrupt) -> FinetuneResult:
        """Up to the last step, the end of patience, or a signal."""
        self._find_best()
        done = self.loop.run(interrupt)
        ended = done.reason not in ("SIGINT", "SIGTERM")
        step, loss = done.step, done.val_loss
        if ended and self.config.patience is not None and self.patience.best_step:
            step, loss = self.patience.best_step, self.patience.best
            self.best.take(step)
        return FinetuneResult(
            done=done,
            base=self.base,
            config=self.config,
            data=self.data,
            backend=self.backend,
            outputs=write_outputs(self.config, self.out, self.base, lambda: self._plain(step)) if ended else {},
            best_step=step,
            best_val_loss=loss,
        )

    def _plain(self, number: int) -> CheckpointContent:
        """The merged model as a checkpoint that no run goes on from."""
        return replace(self._content(number), extra={}, parameters=self.base.plain_state(), optimizer={})

    def _content(self, number: int) -> CheckpointContent:
        model, tokenizer = self.base.model, self.base.opened.tokenizer
        position = _position(self.config, number)
        return CheckpointContent(
            model={"kind": model.kind, "config": model.config_dict()},
            train=self.config.to_dict(),
            tokenizer=tokenizer.name,
            tokenizer_json=tokenizer.to_json() if isinstance(tokenizer, SubwordTokenizer) else None,
            data=self.data.manifest.to_dict(),
            step=number,
            tokens_seen=position.tokens_seen,
            position=position.to_dict(),
            random={"generator": "philox", "seed": self.config.seed},
            extra=self._extra(),
            parameters=self.base.state(),
            optimizer=self.engine.optimizer.state_dict(),
        )

    def _extra(self) -> dict[str, Any]:
        scale = {} if self.engine.scale is None else {LOSS_SCALE: self.engine.scale.state()}
        tuned = {
            "base_sha256": self.base.fingerprint,
            "examples": asdict(self.data.counts),
            PATIENCE: self.patience.state(),
        }
        return scale | {FINETUNE: tuned}


def _engine(
    config: FinetuneConfig, base: Base, data: TuningData, backend: OpenBackend, resume: CheckpointContent | None
) -> Engine[ExampleBatch]:
    optimizer = Adam(
        decay_groups(base.model.named_parameters(), config.weight_decay),
        lr=config.resolved().lr or 0.0,
        betas=(config.beta1, config.beta2),
        max_norm=config.grad_clip,
        page_elements=config.optimizer_page,
    )
    precision = compute_format(config.precision, backend, resumed=resume is not None)
    scale = LossScale() if precision == "float16" else None
    if resume is not None:
        base.restore(resume)
        if scale is not None:
            scale.load(load_scale(resume), step=resume.step)
        steps = resume.step - (0 if scale is None else scale.skipped)
        try:
            optimizer.load_state_dict(resume.optimizer, steps=steps)
        except ConfigError as error:
            raise CheckpointError(f"{resume.path}: {error}") from error
    drops = config.dropout > 0 or (base.adapters is not None and config.adapter_dropout > 0)
    return Engine(
        base.model,
        optimizer,
        data.sampler,
        config.schedule_function(),
        objective=LearnedTokens(),
        accumulate=config.accumulate,
        validation=data.validation,
        captured=config.capture,
        dropout=RandomStream(config.seed, backend=backend) if drops else None,
        precision=precision,
        scale=scale,
    )


def _position(config: FinetuneConfig, step: int) -> DataPosition:
    return DataPosition.at(step, accumulate=config.accumulate, batch=config.batch, context=config.context)
