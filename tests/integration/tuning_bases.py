"""Small bases and examples to tune, made as users make them: saved models, and runs of turret."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from turret.cli import main
from turret.data.chat_template import ChatTemplate
from turret.data.subword import SubwordTokenizer
from turret.models import Decoder, DecoderConfig, Mini, MiniConfig, save_pretrained
from turret.registry import open_backend, use_backend
from turret.spi import ConfigError
from turret.train.finetune import FinetuneConfig, FinetuneResult, run_finetuning
from turret.train.finetune.resume import plan
from turret.train.metrics import StepMetrics

BEGIN, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = "red blue green one two three four cat dog bird sky tree stone water fire light".split()
CONTEXT = 64


@functools.cache
def tokenizer() -> SubwordTokenizer:
    """Byte pairs of `WORDS`; answers end with `END`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([" ".join(WORDS), "user assistant system\n"] * 3, trainer)
    return SubwordTokenizer(made, eos_id=END)


def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE, special={"eos_token": END})


def mini(*, seed: int = 0, width: int = 16, context: int = CONTEXT, sharp: int = 8) -> Mini:
    """A random model of two blocks on cpu, with weights so large that every token it sees changes its logits.

    sharp: how large its embeddings are, which bounds what it can be sure of while they are frozen.
    """
    size = tokenizer().vocabulary_size
    config = MiniConfig(
        vocabulary=size, context=context, width=width, heads=2, kv_heads=1, blocks=2, feed_forward=2 * width
    )
    with use_backend(open_backend("cpu")):
        made = Mini(config, seed=seed)
    factors = {name: 1 if name.endswith(".scale") else 8 for name in made.state_dict()}
    factors["token_embedding.weight"] = sharp
    made.load_state_dict({name: value * np.float32(factors[name]) for name, value in made.state_dict().items()})
    return made


def save_base(folder: Path, **sizes: int) -> Path:
    """A folder as published models have it."""
    return save_pretrained(mini(**sizes), folder, tokenizer=tokenizer(), template=template(), eos_ids=(eos(),))


def save_decoder(folder: Path) -> Path:
    """The other family, in the layout of GPT-2, without a chat template."""
    config = DecoderConfig(
        vocabulary=tokenizer().vocabulary_size,
        context=CONTEXT,
        width=16,
        heads=2,
        blocks=2,
        feed_forward=32,
        gelu="tanh",
        tied_head=True,
        head_bias=False,
    )
    with use_backend(open_backend("cpu")):
        return save_pretrained(Decoder(config, seed=1), folder, tokenizer=tokenizer(), eos_ids=(eos(),))


def eos() -> int:
    found = tokenizer().eos_id
    assert found is not None
    return found


def train_base(folder: Path, *options: str, model: str = "mini") -> Path:
    """A run of `turret train`: without a tokenizer, mini is on reserved bytes, which have an end, and decoder not."""
    text = folder.with_suffix(".txt")
    text.write_text(" ".join(WORDS * 60))
    sizes = ("--layers", "1", "--heads", "2", "--width", "16", "--context", str(CONTEXT), "--batch", "2")
    course = ("--steps", "2", "--eval-batches", "1", "--log", "json", "--backend", "cpu", "--model", model)
    status = main(["train", "--out", str(folder), "--corpus", str(text), *sizes, *course, *options])
    if status:
        raise ConfigError(f"the base was not trained: exit status {status}")
    return folder


def examples(count: int = 24, *, seed: int = 0) -> list[dict[str, str]]:
    """Different prompts and answers of different lengths."""
    draw = np.random.default_rng(seed)
    return [
        {
            "prompt": " ".join([f"{n}", *draw.choice(WORDS, draw.integers(1, 5))]),
            "response": " ".join(draw.choice(WORDS, draw.integers(1, 6))),
        }
        for n in range(count)
    ]


def write_lines(path: Path, lines: Iterable[Mapping[str, Any] | str]) -> Path:
    """JSON lines; a text is written as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def settings(base: Path, data: Path, **changed: Any) -> FinetuneConfig:
    """A short run on every second of whose steps there is a validation and a checkpoint."""
    short: dict[str, Any] = {"steps": 4, "context": CONTEXT, "eval_every": 2, "checkpoint_every": 2, "backend": "cpu"}
    return FinetuneConfig(**{"base": str(base), "data": str(data), **short, **changed})


def tune(base: Path, data: Path, out: Path, **changed: Any) -> FinetuneResult:
    """A new run, from its beginning to its end."""
    observers = changed.pop("observers", ())
    config = settings(base, data, **changed)
    return run_finetuning(config, out, open_backend(config.backend), observers=observers)


def go_on(run: Path, *, out: Path | None = None, **changed: Any) -> FinetuneResult:
    """A run from its last checkpoint, or from the checkpoint `run`."""
    planned = plan(out, str(run), changed)
    assert planned.checkpoint is not None
    backend = open_backend(planned.config.backend)
    return run_finetuning(planned.config, planned.out, backend, resume=planned.checkpoint)


class StopAt:
    """An observer that asks for an end as a user's Ctrl-C does, in the course of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, event: StepMetrics) -> None:
        if event.step == self.step:
            signal.raise_signal(signal.SIGINT)

    def __getattr__(self, name: str) -> Callable[[object], None]:
        return lambda event: None


def conversation(*texts: str) -> dict[str, Any]:
    """User and assistant in turn."""
    roles: Sequence[str] = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]}
