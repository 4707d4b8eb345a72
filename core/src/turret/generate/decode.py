"""The decode loop: prompt in, token ids out, with a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from turret.data import Tokenizer
from turret.kv import ContiguousCache, StaticCache
from turret.models import LanguageModel
from turret.spi import DataError, Host
from turret.tensor import Tensor, capture, no_grad, tensor

from .sampling import Sampler, SamplingConfig
from .stop import Completion, StopRules

PREFILL = 32
"""Tokens of a prompt that one captured program takes at once; the rest goes in one by one."""
CHUNK = 512
"""Tokens of a prompt that go in at once where steps are not captured: so many query rows of probabilities in memory."""
ROOM = 256
"""Tokens that a cache has room for at least, as far as the context goes."""


class Decoding:
    """Logits of the next token for one growing sequence.

    The cache holds the last tokens from position 0 on, with room for `expected` tokens at first; more make a larger one
    and are replayed. When the context is full, positions cannot move on: the cache is reset and the newest half of the
    context replayed, so that logits always equal a full forward over `held`. Where the backend compiles, steps are
    captured: of `PREFILL` tokens and of one, two programs for every size of the cache. What is held was computed with
    the weights of then: `reset` after a model is changed.
    """

    def __init__(self, model: LanguageModel, *, expected: int = 0) -> None:
        self._model, self._backend = model, model.parameters()[0].backend
        self._make_room(min(max(expected, ROOM), model.context))
        self.held: list[int] = []

    def _make_room(self, capacity: int) -> None:
        model = self._model
        compiles = "compile" in self._backend.tools.native
        self._cache = (StaticCache if compiles else ContiguousCache)(
            self._backend,
            layers=model.blocks_count,
            batch=1,
            capacity=capacity,
            kv_heads=model.kv_heads,
            head_size=model.head_size,
        )
        # Capturing what no compiler takes would look at every parameter for each token.
        self._step: Callable[[Tensor], Tensor] = self._logits
        if isinstance(self._cache, StaticCache):
            self._step = capture(self._logits, state=[model, self._cache])

    def push(self, ids: Sequence[int]) -> Host:
        """Appends tokens; returns the logits (V,) after the last one. Whatever interrupts it, `held` is empty then.

        Raises: DataError for no token or an id outside the model's vocabulary; nothing is changed then.
        """
        kept, fresh = self._placed(self._checked(ids))
        self.held = kept + fresh
        try:
            with no_grad():
                host: Host = self._advance(fresh).numpy()[0, 0]
        except BaseException:  # some of the tokens may be in the cache
            self.reset()
            raise
        return host

    def replace(self, ids: Sequence[int]) -> Host:
        """Holds `ids` and nothing else, reusing what is held as far as it is the same; returns as `push` does."""
        wanted, same = self._checked(ids), 0
        while same < min(len(self.held), len(wanted) - 1) and self.held[same] == wanted[same]:
            same += 1
        self._cache.rewind(same)
        self.held = self.held[:same]
        return self.push(wanted[same:])

    def reset(self) -> None:
        """Forgets every token; memory is kept."""
        self.held = []
        self._cache.reset()

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if isinstance(ids, str) or not hasattr(ids, "__len__") or len(ids) == 0:
            got = "no token" if hasattr(ids, "__len__") else type(ids).__name__
            raise DataError(f"nothing to decode: got {got}; give a prompt of at least one token id")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
                raise DataError(f"token id {token!r:.40} is {type(token).__name__}; wanted a whole number")
            if not 0 <= token < self._model.vocabulary:
                raise DataError(f"token id {token} is outside the model's vocabulary of {self._model.vocabulary}")
        return [int(token) for token in ids]

    def _placed(self, fresh: list[int]) -> tuple[list[int], list[int]]:
        """What stays in the cache, and what goes into it."""
        context, count = self._model.context, len(self.held) + len(fresh)
        if count <= self._cache.capacity:
            return self.held, fresh
        everything = self.held + fresh
        self.reset()
        if count > context:
            everything = everything[-max(1, context // 2) :]
        if len(everything) > self._cache.capacity:
            self._make_room(min(max(len(everything), 2 * self._cache.capacity), context))
        return [], everything

    def _advance(self, fresh: list[int]) -> Tensor:
        cache = self._cache
        if isinstance(cache, StaticCache):
            whole = len(fresh) - len(fresh) % PREFILL
            chunks = [fresh[i : i + PREFILL] for i in range(0, whole, PREFILL)] + [[token] for token in fresh[whole:]]
        else:
            chunks = [fresh[i : i + CHUNK] for i in range(0, len(fresh), CHUNK)]
        for chunk in chunks:
            if isinstance(cache, StaticCache):
                cache.begin(len(chunk))
            logits = self._step(self._row(chunk))
        return logits

    def _row(self, ids: list[int]) -> Tensor:
        return tensor(np.array([ids], np.int32), backend=self._backend)

    def _logits(self, rows: Tensor) -> Tensor:
        return self._model(rows, self._cache, last=True)


def generate_ids(
    model: LanguageModel,
    prompt: Sequence[int],
    sampling: SamplingConfig,
    *,
    allowed: int | None = None,
    expected: int = 0,
    decoding: Decoding | None = None,
) -> Iterator[int]:
    """Token ids after the prompt, without end; the caller stops. The same seed gives the same ids on one backend.

    allowed: ids below it may be chosen, by default all of the vocabulary. expected: tokens to have room for, prompt and
    all. decoding: goes on with what an earlier call held, as far as the prompt begins with it.
    Raises: DataError for an empty prompt or ids outside the vocabulary, NonFiniteError for damaged weights.
    """
    decoding = Decoding(model, expected=expected) if decoding is None else decoding
    sampler = Sampler(sampling, allowed=model.vocabulary if allowed is None else allowed)
    chosen, n = sampler.pick(decoding.replace(list(prompt)), 0), 0
    while True:
        yield chosen
        n += 1
        chosen = sampler.pick(decoding.push([chosen]), n)


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    *,
    sampling: SamplingConfig,
    rules: StopRules,
    decoding: Decoding | None = None,
) -> Iterator[str]:
    """The continuation of a prompt, text or ids, in pieces that never cut a character; ends by `rules`.

    A text begins with the tokenizer's prefix. An empty one without begins with the end-of-sequence id, or with a
    newline where there is none.
    """
    ids = [*tokenizer.prefix, *tokenizer.encode(prompt).tolist()] if isinstance(prompt, str) else list(prompt)
    if not ids:
        ids = tokenizer.encode("\n").tolist() if tokenizer.eos_id is None else [tokenizer.eos_id]
    completion = Completion(tokenizer, rules)
    allowed = min(model.vocabulary, tokenizer.vocabulary_size)
    expected = len(ids) + rules.max_new_tokens
    for token in generate_ids(model, ids, sampling, allowed=allowed, expected=expected, decoding=decoding):
        if piece := completion.push(token):
            yield piece
        if completion.reason is not None:
            return
