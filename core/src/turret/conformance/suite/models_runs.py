"""Cases of training: twenty steps beside the truth's trajectory, and checkpoints that go on elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from turret.models import LanguageModel, build_model, model_config
from turret.optim import Adam, decay_groups
from turret.registry import OpenBackend, use_backend
from turret.spi import BackendInfo, Capabilities, Host
from turret.spi.array_api import required_from
from turret.tensor import backward, ops, tensor

from ..bench import Bench
from ..case import Case
from ..oracle import models as oracle
from ..shaken import spread
from .drawn import Config, Weights, drawn_ids, drawn_model, drawn_targets

STEPS, BEFORE, AFTER = 20, 3, 4
SIZE = (3, 8)
Batches = list[tuple[Host, Host]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """What a run is told; the words of the oracle."""

    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    decay: float = 0.1
    max_norm: float | None = 1.0
    page_elements: int | None = None

    def optimizer(self, model: LanguageModel) -> Adam:
        return Adam(
            decay_groups(model.named_parameters(), self.decay),
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            max_norm=self.max_norm,
            page_elements=self.page_elements,
        )

    def truth(self, config: Config, batches: Batches, weights: Mapping[str, Host]) -> dict[str, Host]:
        losses = oracle.train(
            config,
            weights,
            batches,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            decay=self.decay,
            max_norm=self.max_norm,
        )
        return {f"loss of step {n}": np.asarray(value) for n, value in enumerate(losses, start=1)}


HYPERS: dict[str, Hyper] = {
    "decay-and-clipping": Hyper(),
    "plain": Hyper(decay=0.0, max_norm=None, betas=(0.8, 0.95)),
    "paged-moments": Hyper(page_elements=50),
}


def run_cases(families: dict[str, Config]) -> Iterator[Case]:
    """Training and checkpoints of each family."""
    for family, config in families.items():
        for name, hyper in HYPERS.items():
            yield _case(f"models/training/{family}-{name}", partial(_train, config=config, hyper=hyper))
        yield _case(f"models/checkpoint/{family}-bit-equal", partial(_bit_equal, config=config))
        yield _case(f"models/checkpoint/{family}-resumes-here", partial(_resumes, config=config, route="here"))
        yield _case(f"models/checkpoint/{family}-resumes-elsewhere", partial(_resumes, config=config, route="there"))
        yield _case(f"models/checkpoint/{family}-comes-from-elsewhere", partial(_resumes, config=config, route="back"))


def _case(name: str, body: Any) -> Case:
    return Case(id=name, body=body, kind="model")


def _batches(bench: Bench, config: Config, count: int) -> Batches:
    return [(drawn_ids(bench, config, SIZE), drawn_targets(bench, config, SIZE)) for _ in range(count)]


def _steps(model: LanguageModel, optimizer: Adam, batches: Batches) -> list[float]:
    """The loss of each batch before its step."""
    held, losses = model.parameters()[0].backend, []
    for ids, targets in batches:
        loss = ops.cross_entropy(model(tensor(ids, backend=held)), tensor(targets, backend=held))
        optimizer.step(backward(loss))
        losses.append(float(loss.item()))
    return losses


def _follow(
    bench: Bench, config: Config, hyper: Hyper, weights: Weights, batches: Batches, losses: list[float], since: int = 0
) -> None:
    """Losses from step `since` on beside the truth's. Every step rounds as the first one: the budget grows with it."""
    truth = partial(hyper.truth, config, batches)
    want, allowed = spread(truth, weights, bench.draw.rng)
    for n, (name, value) in enumerate(want.items()):
        if n >= since:
            bench.within(name, np.asarray(losses[n - since], np.float32), value, (n + 1) * allowed[name])


def _train(bench: Bench, config: Config, hyper: Hyper) -> None:
    model, weights = drawn_model(bench, config)
    batches = _batches(bench, config, STEPS)
    losses = _steps(model, hyper.optimizer(model), batches)
    _follow(bench, config, hyper, weights, batches, losses)


def _bit_equal(bench: Bench, config: Config) -> None:
    """Through the file, back onto the device, and off it again: no bit of parameters or moments changes."""
    model, _ = drawn_model(bench, config)
    optimizer = HYPERS["plain"].optimizer(model)
    _steps(model, optimizer, _batches(bench, config, 2))
    parameters, moments = model.state_dict(), optimizer.state_dict()
    read = _through_file(model, optimizer)
    again, other = _resumed(read, bench.opened, HYPERS["plain"])
    for label, found, wanted in (
        ("in the file", (read.parameters, read.optimizer), (parameters, moments)),
        ("on the device again", (again.state_dict(), other.state_dict()), (parameters, moments)),
    ):
        for got, want in zip(found, wanted, strict=True):
            bench.require(got.keys() == want.keys(), f"{label}: names {sorted(got)}, wanted {sorted(want)}")
            for name, value in want.items():
                bench.same(f"{name} {label}", got[name], value)


def _resumes(bench: Bench, config: Config, route: str) -> None:
    """A run that stopped goes on as if it had not: here, on core's plain backend, or coming from there."""
    hyper, batches = HYPERS["decay-and-clipping"], _batches(bench, config, BEFORE + AFTER)
    plain = _plain_backend()
    first, second = {
        "here": (bench.opened, bench.opened),
        "there": (bench.opened, plain),
        "back": (plain, bench.opened),
    }[route]
    with use_backend(first):
        model, weights = drawn_model(bench, config)
    optimizer = hyper.optimizer(model)
    _steps(model, optimizer, batches[:BEFORE])
    resumed, its_optimizer = _resumed(_through_file(model, optimizer), second, hyper)
    losses = _steps(resumed, its_optimizer, batches[BEFORE:])
    _follow(bench, config, hyper, weights, batches, losses, since=BEFORE)


def _through_file(model: LanguageModel, optimizer: Adam) -> Any:
    """The state written as a checkpoint and read back."""
    from turret.train.checkpoint import CheckpointContent, read_checkpoint, write_checkpoint

    place = {"step": optimizer.steps, "tokens_seen": optimizer.steps * SIZE[0] * SIZE[1]}
    content = CheckpointContent(
        model={"kind": model.kind, "config": model.config_dict()},
        train={},
        tokenizer="bytes",
        data={},
        position=place,
        random={},
        parameters=model.state_dict(),
        optimizer=optimizer.state_dict(),
        **place,  # type: ignore[arg-type]  # ints all
    )
    with tempfile.TemporaryDirectory() as folder:
        return read_checkpoint(write_checkpoint(Path(folder), content))


def _resumed(content: Any, backend: OpenBackend, hyper: Hyper) -> tuple[LanguageModel, Adam]:
    with use_backend(backend):
        model = build_model(model_config(content.model["kind"], content.model["config"]))
    model.load_state_dict(content.parameters)
    optimizer = hyper.optimizer(model)
    optimizer.load_state_dict(content.optimizer, steps=content.step)
    return model, optimizer


class _Plain:
    """The required slots over the namespace of host arrays, nothing native."""

    def __init__(self) -> None:
        self._table = Capabilities(required=required_from(np))

    def capabilities(self) -> Capabilities[Any]:
        return self._table

    def close(self) -> None:
        """Holds nothing."""


def _plain_backend() -> OpenBackend:
    info = BackendInfo(name="plain", distribution="core", spi=">=1.0,<2", target=f"{__name__}:_Plain", probe="")
    return OpenBackend.wrap(info, _Plain())
