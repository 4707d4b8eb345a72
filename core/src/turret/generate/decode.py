"""The decode loop: prompt in, token ids out, with a key-value cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


class Decoding:
    """Logits of the next token for one growing sequence.

    The cache holds the last tokens from position 0 on. When the context is full, positions cannot move on: the cache is
    reset and the newest half of the context replayed, so that logits always equal a full forward over `held`. Where the
    backend compiles, steps are captured: of `PREFILL` tokens and of one, two programs in all.
    """

    def __init__(self, model: LanguageModel) -> None:
        backend = model.parameters()[0].backend
        self._model, self._backend = model, backend
        compiles = "compile" in backend.tools.native
        self._cache = (StaticCache if compiles else ContiguousCache)(
            backend,
            layers=model.blocks_count,
            batch=1,
            capacity=model.context,
            kv_heads=model.kv_heads,
            head_size=model.head_size,
        )
        self._step = capture(self._logits, state=[model, self._cache]) if isinstance(self._cache, StaticCache) else None
        self.held: list[int] = []

    def push(self, ids: Sequence[int]) -> Host:
        """Appends tokens; returns the logits (V,) after the last one. Whatever interrupts it, `held` is empty then.

        Raises: DataError for no token or an id outside the model's vocabulary; nothing is changed then.
        """
        if not ids:
            raise DataError("nothing to decode: got no token; give a prompt of at least one")
        for token in ids:
            if not 0 <= token < self._model.vocabulary:
                raise DataError(f"token id {token} is outside the model's vocabulary of {self._model.vocabulary}")
        fresh = list(ids)
        if len(self.held) + len(fresh) > self._model.context:
            fresh = (self.held + fresh)[-max(1, self._model.context // 2) :]
            self.held = []
            self._cache.reset()
        self.held += fresh
        try:
            with no_grad():
                host: Host = self._advance(fresh).numpy()[0, 0]
        except BaseException:  # some of the tokens may be in the cache
            self.held = []
            self._cache.reset()
            raise
        return host

    def _advance(self, fresh: list[int]) -> Tensor:
        if self._step is None:
            return self._logits(self._row(fresh))
        assert isinstance(self._cache, StaticCache)
        whole = len(fresh) - len(fresh) % PREFILL
        chunks = [fresh[i : i + PREFILL] for i in range(0, whole, PREFILL)] + [[token] for token in fresh[whole:]]
        for chunk in chunks:
            self._cache.begin(len(chunk))
            logits = self._step(self._row(chunk))
        return logits

    def _row(self, ids: list[int]) -> Tensor:
        return tensor(np.array([ids], np.int32), backend=self._backend)

    def _logits(self, rows: Tensor) -> Tensor:
        return self._model(rows, self._cache, last=True)


def generate_ids(model: LanguageModel, prompt: Sequence[int], sampling: SamplingConfig) -> Iterator[int]:
    """Token ids after the prompt, without end; the caller stops. The same seed gives the same ids on one backend.

    Raises: DataError for an empty prompt or ids outside the vocabulary, NonFiniteError for damaged weights.
    """
    decoding, sampler = Decoding(model), Sampler(sampling, allowed=model.vocabulary)
    fresh, n = list(prompt), 0
    while True:
        chosen = sampler.pick(decoding.push(fresh), n)
        yield chosen
        fresh, n = [chosen], n + 1


def generate_text(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, *, sampling: SamplingConfig, rules: StopRules
) -> Iterator[str]:
    """The continuation of a prompt in pieces that never cut a character; ends by `rules`.

    An empty prompt begins with the tokenizer's end-of-sequence id, or with a newline where it has none.
    """
    ids = tokenizer.encode(prompt).tolist()
    if not ids:
        ids = tokenizer.encode("\n").tolist() if tokenizer.eos_id is None else [tokenizer.eos_id]
    completion = Completion(tokenizer, rules)
    for token in generate_ids(model, ids, sampling):
        if piece := completion.push(token):
            yield piece
        if completion.reason is not None:
            return
