"""The loss of packed examples is the mean over what is learned, as if every example was alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tuning_bases import CONTEXT, conversation, eos, mini, template, tokenizer

from turret.data.example_batches import ExampleBatch, ExampleSampler
from turret.data.instructions import Example, Message
from turret.data.packing import Packing, pack
from turret.data.supervision import TokenizedExample, tokenize_examples
from turret.models import Mini
from turret.optim import Adam
from turret.registry import OpenBackend, open_backend, use_backend
from turret.tensor import Tensor, backward, no_grad, tensor
from turret.train.engine import Engine
from turret.train.objective import LearnedTokens

Floats = npt.NDArray[np.float64]
TALKS = (
    ("one", "red blue"),
    ("one two three four", "green", "and the sky", "blue stone water fire"),
    ("cat", "dog"),
    ("tree " * 12, "x"),
    ("", "light light light light"),
)


@pytest.fixture(scope="module")
def packing() -> Packing:
    """Rows of several examples, one of them with two answers, and of padding."""
    made = [
        Example(messages=tuple(Message(**each) for each in conversation(*talk)["messages"]), chat=True, line=n)
        for n, talk in enumerate(TALKS, 1)
    ]
    tokenized = tokenize_examples(made, tokenizer(), context=CONTEXT, template=template(), end_ids=(eos(),))
    return pack(tokenized.examples, CONTEXT)


@pytest.fixture(scope="module", params=["cpu", "minimal", "tpu:cpu", "metal:cpu"])
def there(request: pytest.FixtureRequest) -> Iterator[OpenBackend]:
    with use_backend(open_backend(request.param)) as opened:
        yield opened


def on(backend: OpenBackend) -> Mini:
    """The same weights everywhere."""
    with use_backend(backend):
        made = Mini(mini().config)
    made.load_state_dict(mini().state_dict())
    return made


def whole(packing: Packing) -> ExampleBatch:
    (batch,) = ExampleSampler(packing, len(packing) + 1, 0).fixed_batches()  # and one row of padding alone
    return batch


def alone(model: Mini, example: TokenizedExample) -> Floats:
    """Minus the log probability of every learned token, in float64 from the logits of this example alone."""
    with no_grad():
        logits = model(tensor([example.ids[:-1].tolist()], backend=model.parameters()[0].backend)).numpy()[0]
    wide = logits.astype(np.float64)
    log = wide - wide.max(1, keepdims=True)
    log -= np.log(np.exp(log).sum(1, keepdims=True))
    learned = np.flatnonzero(example.learned[1:])
    nats: Floats = -log[learned, example.ids[1:][learned]]
    return nats


def taken(batch: ExampleBatch, rows: npt.ArrayLike) -> ExampleBatch:
    """A batch of some of the rows."""
    return batch._replace(**{name: part[np.asarray(rows)] for name, part in batch._asdict().items()})


def loss_of(model: Any, batch: ExampleBatch, backend: OpenBackend) -> Tensor:
    objective = LearnedTokens()
    placed = objective.place(batch, backend)
    return objective.loss(objective.logits(model, placed), placed)


def test_the_loss_is_the_mean_of_examples_alone(packing: Packing, there: OpenBackend) -> None:
    model = on(there)
    nats = np.concatenate([alone(model, example) for example in packing.examples])
    assert len(packing) > 1 and len(packing.examples) > len(packing) and np.ptp(nats) > 1
    batch = whole(packing)
    assert LearnedTokens().weight(batch) == len(nats)
    assert loss_of(model, batch, there).item() == pytest.approx(nats.mean(), rel=3e-6)


def test_what_is_not_learned_has_no_part_in_the_loss(packing: Packing, there: OpenBackend) -> None:
    model, batch = on(there), whole(packing)
    others = np.where(batch.weights > 0, batch.targets, (batch.targets + 7) % 250).astype(np.int32)
    assert (others != batch.targets).any()
    before, after = (loss_of(model, batch._replace(targets=each), there).item() for each in (batch.targets, others))
    assert before == after


def test_logits_before_prompts_and_padding_get_no_gradient(packing: Packing) -> None:
    """Where all of a row goes through the head, and the loss alone tells what is learned."""
    backend, batch, objective = open_backend("tpu:cpu"), whole(packing), LearnedTokens()
    placed = objective.place(batch, backend)
    drawn = np.random.default_rng(0).normal(size=(*batch.inputs.shape, 290)).astype(np.float32)
    logits = tensor(drawn, backend=backend, requires_grad=True)
    gradient = backward(objective.loss(logits, placed))[logits].numpy()
    assert (gradient[batch.weights == 0] == 0).all()
    assert (np.abs(gradient[batch.weights > 0]).sum(-1) > 0).all()


def test_an_example_sees_no_other_one(packing: Packing, there: OpenBackend) -> None:
    """What stands before it in the row may be anything, bit for bit."""
    model, batch = on(there), whole(packing)
    row = next(n for n, ids in enumerate(packing.rows) if len(ids) > 1)
    last = batch.segments[row] == len(packing.rows[row]) - 1
    weights = np.zeros_like(batch.weights)
    weights[row, last] = batch.weights[row, last]
    others = batch.inputs.copy()
    others[row, : np.flatnonzero(last)[0]] = 77
    assert weights.any() and (others != batch.inputs).any()
    asked = batch._replace(weights=weights)
    before, after = (loss_of(model, asked._replace(inputs=each), there).item() for each in (batch.inputs, others))
    assert before == after


class Given:
    """Batches in the order of steps."""

    def __init__(self, batches: list[ExampleBatch]) -> None:
        self.batches = batches

    def batch(self, step: int, micro: int = 0) -> ExampleBatch:
        return self.batches[step + micro]


def test_batches_of_a_step_weigh_by_their_learned_tokens(packing: Packing) -> None:
    """Gradients of two unlike batches, added up, are those of one batch of both."""
    batch = whole(packing)
    rows = np.flatnonzero(batch.weights.any(1))
    one, rest = taken(batch, rows[:1]), taken(batch, rows[1:])
    assert one.weights.sum() != rest.weights.sum()
    results = []
    for batches in ([one, rest], [taken(batch, rows)]):
        model = on(open_backend("cpu"))
        optimizer = Adam(model.named_parameters(), lr=1e-3)
        engine = Engine(
            model, optimizer, Given(batches), lambda _: 1e-3, objective=LearnedTokens(), accumulate=len(batches)
        )
        step = engine.step(1)
        assert step.stats is not None
        results.append((step.loss, step.stats.gradient_norm))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tpu:cpu", "metal:cpu"])
def test_one_program_serves_every_layout(packing: Packing, backend: str) -> None:
    model = on(open_backend(backend))
    batch = whole(packing)
    order = [
        next(n for n, row in enumerate(batch.inputs) if (row == packing.row(each).inputs).all())
        for each in range(len(packing))
    ]
    rows = [taken(batch, [n]) for n in order]
    engine = Engine(
        model, Adam(model.named_parameters(), lr=1e-3), Given(rows), lambda _: 0.0, objective=LearnedTokens()
    )
    losses = [engine.step(n).loss for n in range(1, len(rows) + 1)]
    assert engine.compiles == 1 and len(rows) > 1
    reference = on(open_backend("cpu"))
    for ids, loss in zip(packing.rows, losses, strict=True):
        nats = np.concatenate([alone(reference, packing.examples[each]) for each in ids])
        assert loss == pytest.approx(nats.mean(), rel=1e-5)
