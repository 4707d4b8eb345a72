"""Training on the emulated device: a step without room, arrays of other backends, and what becomes of the state."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

import turret
from turret.data import BatchSampler, ByteTokenizer, Split, open_corpus
from turret.models import DecoderConfig, build_model
from turret.nn import Init, Linear
from turret.optim import Adam
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import BackendMismatch, BackendUnavailable, DataError, DTypeError, OutOfMemory
from turret.tensor import Parameter, Tensor, ops
from turret.train import Engine
from turret.train.objective import NextToken
from turret_cuda import library
from turret_cuda.place import place_of

CONFIG = DecoderConfig(vocabulary=256, context=8, width=16, heads=2, blocks=1, feed_forward=32)
MIB = 1 << 20


@pytest.fixture(scope="module")
def cuda() -> OpenBackend:
    return open_backend("cuda:emulated")


@pytest.fixture
def room() -> Iterator[Callable[[int], None]]:
    """Leaves so many bytes of the device free; all of it afterwards."""
    total = cupy.cuda.runtime.memGetInfo()[1]

    def leave(nbytes: int) -> None:
        gc.collect()
        place_of("emulated").release()
        free, whole = cupy.cuda.runtime.memGetInfo()
        cupy.emulated.set_total_memory(whole - free + nbytes)

    yield leave
    cupy.emulated.set_total_memory(total)


def engine_on(cuda: OpenBackend, folder: Path, *, captured: bool, batch: int = 2) -> Engine:
    path = folder / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}; " for n in range(300)))
    corpus = open_corpus([path])
    split = Split.cut(len(corpus), val_fraction=0.1, context=8)
    with use_backend(cuda):
        model = build_model(CONFIG, seed=1)
    sampler = BatchSampler(corpus, ByteTokenizer(), split.train, 8, batch, 0)
    optimizer = Adam(model.named_parameters())
    return Engine(model, optimizer, sampler, lambda step: 1e-3, objective=NextToken(), captured=captured)


def state_of(engine: Engine) -> dict[str, Any]:
    arrays = {**engine.model.state_dict(), **engine.optimizer.state_dict()}
    grads = [p.grad is None for p in engine.model.parameters()]
    return {name: x.tobytes() for name, x in arrays.items()} | {"steps": engine.optimizer.steps, "no grads": all(grads)}


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_a_step_without_room_leaves_everything_as_it_was_and_training_goes_on(
    cuda: OpenBackend, tmp_path: Path, room: Callable[[int], None], captured: bool
) -> None:
    batch = 96  # logits of 96 x 8 tokens over 256 classes are 0.75 MiB
    undisturbed = engine_on(cuda, tmp_path, captured=captured, batch=batch)
    want = [undisturbed.step(n).loss for n in (1, 2)]
    engine = engine_on(cuda, tmp_path, captured=captured, batch=batch)
    losses: list[float] = []
    before, refused, nbytes = state_of(engine), 0, 0
    while not losses:
        room(nbytes)
        try:
            losses.append(engine.step(1).loss)
        except OutOfMemory as error:
            assert "make the batch smaller" in str(error) and "checkpointing" in str(error)
            refused, nbytes = refused + 1, nbytes + MIB // 2
            room(64 * MIB)
            assert state_of(engine) == before
    assert refused > 3
    room(64 * MIB)
    losses.append(engine.step(2).loss)
    assert losses == want


def test_a_program_without_room_for_its_results_says_to_load_the_last_checkpoint_and_has_changed_nothing(
    cuda: OpenBackend, tmp_path: Path, room: Callable[[int], None]
) -> None:
    engine = engine_on(cuda, tmp_path, captured=True)

    def step(ids: Tensor, targets: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
        loss = ops.cross_entropy(engine.model(ids), targets)
        engine.optimizer.step(turret.backward(loss))
        return loss, ops.broadcast_to(one, (MIB,))

    program = turret.capture(step, state=[engine.model, engine.optimizer])
    batch = engine.sampler.batch(0, 0)
    given = [turret.tensor(x, backend=cuda) for x in (batch.inputs, batch.targets, np.ones(1, np.float32))]
    first = program(*given)[0].item()
    before = state_of(engine)
    room(MIB)
    with pytest.raises(OutOfMemory, match=r"make the batch smaller.*load the last checkpoint"):
        program(*given)
    room(64 * MIB)
    assert state_of(engine) == before
    assert program(*given)[0].item() < first
    assert engine.optimizer.steps == 2


def test_a_model_without_room_is_no_model(cuda: OpenBackend, room: Callable[[int], None]) -> None:
    room(MIB)
    with use_backend(cuda), pytest.raises(OutOfMemory, match="make the batch smaller"):
        Linear(2048, 2048, init=Init(1))
    room(64 * MIB)
    with use_backend(cuda):
        assert Linear(2048, 2048, init=Init(1)).weight.shape == (2048, 2048)


def test_arrays_of_other_backends_are_refused_at_the_door(cuda: OpenBackend, tmp_path: Path) -> None:
    ours = turret.tensor(np.ones((2, 2), np.float32), backend=cuda)
    theirs = turret.tensor(np.ones((2, 2), np.float32), backend=open_backend("cpu"))
    weight = Parameter(np.ones((2, 2), np.float32), backend=cuda)
    engine = engine_on(cuda, tmp_path, captured=True)
    ids = turret.tensor(np.zeros((1, 4), np.int32), backend=open_backend("cpu"))
    mixed: dict[str, Callable[[], object]] = {
        "add": lambda: ours + theirs,
        "the other way": lambda: theirs + ours,
        "matmul": lambda: ours @ theirs,
        "where": lambda: ops.where(ops.less(ours, 2.0), ours, theirs),
        "concatenate": lambda: ops.concatenate([ours, theirs], 0),
        "a loss": lambda: ops.cross_entropy(ours, ids[0, :2]),
        "a model": lambda: engine.model(ids),
        "a captured step": lambda: turret.capture(engine.model, state=[engine.model])(ids),
        "a seed": lambda: (weight * 2.0).backward(theirs),
        "a value": lambda: weight.assign(theirs.value),
        "a Tensor for a value": lambda: weight.assign(theirs),
        "another one": lambda: weight.assign(ours),
    }
    for name, call in mixed.items():
        with pytest.raises(BackendMismatch, match=r"cuda:emulated") as caught:
            print(name, call())
        assert "move" in str(caught.value) or "bring" in str(caught.value) or "on cpu" in str(caught.value), name
    assert weight.numpy().tolist() == [[1, 1], [1, 1]]
    assert weight.version == 0


def test_host_arrays_and_foreign_ones_are_refused_with_what_to_do(cuda: OpenBackend) -> None:
    ours, host = turret.tensor(np.ones(2, np.float32), backend=cuda), np.ones(2, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: ops.add(ours, host),  # type: ignore[arg-type]
        "its reverse": lambda: host + ours,
        "matmul": lambda: ours @ host,
        "where": lambda: ops.where(host, ours, ours),  # type: ignore[arg-type]
        "a tensor of CuPy's": lambda: turret.tensor(ours.value, backend=open_backend("cpu")),
        "a tensor of a list of them": lambda: turret.tensor([ours.value], backend=cuda),
        "a parameter of CuPy's": lambda: Parameter(ours.value, backend=cuda),
    }
    for name, call in calls.items():
        with pytest.raises(DTypeError, match=r"wanted .*(Tensor|NumPy array|numbers)"):
            print(name, call())
    with use_backend(cuda), pytest.raises(DataError, match=r"use turret\.tensor"):
        build_model(CONFIG, seed=0)(np.zeros((1, 4), np.int32))  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_refused_with_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match=r"emulator .* ask for `cuda:emulated`"):
        open_backend("cuda:9")
    monkeypatch.setattr(library, "emulated", lambda: False)  # it passes for CuPy itself
    with pytest.raises(BackendUnavailable, match=r"no GPU number 9 here: CUDA finds 1, counted from 0; `cuda` is the"):
        open_backend("cuda:9")
