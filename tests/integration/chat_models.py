"""Small models in folders, made as users make them: a tokenizer of the library, random weights, a chat template."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from turret.data.chat_template import ChatTemplate
from turret.data.subword import SubwordTokenizer
from turret.models import LanguageModel, MiniConfig, build_model, save_pretrained
from turret.registry import open_backend, use_backend

BEGIN, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@functools.cache
def tokenizer() -> SubwordTokenizer:
    """All bytes, a few pairs, and the two tokens around a message; answers end with `END`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["user assistant system\n", "red blue green one two three", "<| |>"] * 3, trainer)
    return SubwordTokenizer(made, eos_id=END)


def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE, special={"eos_token": END})


def random_mini(*, context: int, seed: int = 0) -> LanguageModel:
    """Weights so large that every token it sees changes what comes next."""
    config = MiniConfig(
        vocabulary=tokenizer().vocabulary_size,
        context=context,
        width=16,
        heads=2,
        kv_heads=1,
        blocks=2,
        feed_forward=32,
    )
    with use_backend(open_backend("cpu")):
        made = build_model(config, seed=seed)
    random = np.random.default_rng(seed)
    state = made.state_dict()
    made.load_state_dict(
        {
            name: value if name.endswith(".scale") else random.normal(size=value.shape).astype(np.float32)
            for name, value in state.items()
        }
    )
    return made


def parrot(text: str, *, context: int, ends: bool) -> LanguageModel:
    """Says `text`, then ends or says it again, whatever it reads: the last token alone decides the next one.

    Blocks add nothing, embeddings are unit vectors, and the head maps each token of the text to the one after it,
    every other token to the first.
    """
    end = tokenizer().eos_id
    assert end is not None
    ids = [*tokenizer().encode(text).tolist(), *([end] if ends else [])]
    assert len(set(ids)) == len(ids), "a token with two successors"
    size = tokenizer().vocabulary_size
    config = MiniConfig(
        vocabulary=size, context=context, width=size, heads=1, kv_heads=1, blocks=1, feed_forward=2, tied_head=False
    )
    with use_backend(open_backend("cpu")):
        made = build_model(config)
    state = {name: np.zeros_like(value) for name, value in made.state_dict().items()}
    state["final_norm.scale"] += 1
    state["token_embedding.weight"] = np.eye(size, dtype=np.float32)
    head = np.zeros((size, size), np.float32)
    head[ids[0]] = 1
    for this, following in itertools.pairwise([*ids, ids[0]]):
        head[:, this] = 0
        head[following, this] = 1
    state["language_model_head.weight"] = head
    made.load_state_dict(state)
    return made


def saved(model: LanguageModel, folder: Path, *, chat: bool = True) -> Path:
    """The folder of a model, with the template or without."""
    words = template() if chat else None
    end = tokenizer().eos_id
    assert end is not None
    return save_pretrained(model, folder, tokenizer=tokenizer(), template=words, eos_ids=[end])
