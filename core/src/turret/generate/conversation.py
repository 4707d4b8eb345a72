"""A conversation with a chat model: its messages, the context they have to fit in, and the cache they share."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Literal

from turret.data.chat_template import ChatTemplate
from turret.data.counter import WORD
from turret.data.subword import SubwordTokenizer
from turret.models import LanguageModel
from turret.spi.errors import DataError

from .decode import Decoding, generate_ids
from .sampling import SamplingConfig
from .stop import Completion, StopReason, StopRules

Ending = StopReason | Literal["stopped"]
"""How an answer ended: by the model, by its length, or because the caller stopped it."""

Turn = tuple[str, str]
"""What the user said, and the answer."""


class Conversation:
    """Turns of a user and a model, and the system message before them.

    Every answer reads the whole conversation through the model's template; keys and values of what was read before are
    reused. Where a conversation no longer fits, with room for an answer, its oldest turns are dropped for good, whole;
    the system message stays. Answer n draws with `sampling.seed` + n, so the same messages give the same conversation.

    After an answer: `ended` says how, `dropped` how many turns had to go for it, and `forgotten` whether the exchange
    is left out because the answer spells a control token, which no later message could be sent after.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: SubwordTokenizer,
        template: ChatTemplate,
        *,
        sampling: SamplingConfig,
        max_new_tokens: int = 512,
        eos_ids: Sequence[int] = (),
        system: str | None = None,
    ) -> None:
        """Raises: ConfigError for rules that make no sense; DataError for a system message as `set_system`."""
        self._model, self._tokenizer, self._template = model, tokenizer, template
        self._sampling = sampling
        self._rules = StopRules(max_new_tokens=max_new_tokens, eos_ids=tuple(eos_ids))
        self._decoding = Decoding(model, expected=max_new_tokens)
        self._turns: list[Turn] = []
        self._answers = 0
        self._running: Generator[str, None, None] | None = None
        self._system: str | None = None
        self.ended: Ending | None = None
        self.dropped = 0
        self.forgotten = False
        if system is not None:
            self.set_system(system)

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """What the model will have read before the next message."""
        return tuple(_messages(self._system, self._turns))

    @property
    def context(self) -> int:
        """Tokens that the model sees at once."""
        return self._model.context

    def set_system(self, text: str | None) -> None:
        """Puts a system message before all turns, or takes it away with None; the turns stay.

        Raises: DataError for one that the template refuses, that holds a control token, or that leaves no room for a
            message; the old one stays then.
        """
        self._end_running()
        if text is not None:
            self._require_room(self._encoded(text, [], "?"), "the system message")
        self._system = text

    def reset(self) -> None:
        """Forgets every turn; the system message stays, and answers draw as they did at first."""
        self._end_running()
        self._turns, self._answers = [], 0
        self.ended, self.dropped, self.forgotten = None, 0, False

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer to a message, piece by piece as tokens come; a piece may be empty and never cuts a character.

        The exchange is kept once the answer ends. Closing the generator stops the answer: it is kept as far as it came,
        and the message without an answer is taken back where nothing did.
        Raises: DataError, before anything is generated or changed, for an empty message, one that holds a control token
            or is refused by the template, and one that does not fit into the context even alone.
        """
        self._end_running()
        if not text.strip():
            raise DataError("an empty message; want text")
        turns = list(self._turns)
        reserve = min(self._rules.max_new_tokens, self.context // 2)
        ids = self._encoded(self._system, turns, text)
        while turns and len(ids) + reserve > self.context:
            del turns[0]
            ids = self._encoded(self._system, turns, text)
        self._require_room(ids, "the message")
        self.dropped, self._turns = len(self._turns) - len(turns), turns
        self.ended, self.forgotten = None, False
        self._running = self._answer(text, ids)
        return self._running

    def _answer(self, text: str, ids: list[int]) -> Generator[str, None, None]:
        room = min(self._rules.max_new_tokens, self.context - len(ids))
        completion = Completion(self._tokenizer, replace(self._rules, max_new_tokens=room))
        sampling = replace(self._sampling, seed=(self._sampling.seed + self._answers) % WORD)
        allowed = min(self._model.vocabulary, self._tokenizer.vocabulary_size)
        self._answers += 1
        answer = ""
        try:
            for token in generate_ids(self._model, ids, sampling, allowed=allowed, decoding=self._decoding):
                piece = completion.push(token)
                answer += piece
                yield piece
                if completion.reason is not None:
                    break
        finally:
            self._keep(text, answer, completion.reason or "stopped")

    def _keep(self, text: str, answer: str, ended: Ending) -> None:
        self._running, self.ended = None, ended
        if ended == "stopped" and not answer:
            return
        turns = [*self._turns, (text, answer)]
        try:
            self._template.encode(self._tokenizer, _messages(self._system, turns), add_generation_prompt=False)
        except DataError:
            # A token's text can be spelled with other tokens, and would be read as that token from now on.
            self.forgotten = True
            return
        self._turns = turns

    def _end_running(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _encoded(self, system: str | None, turns: Sequence[Turn], text: str) -> list[int]:
        messages = [*_messages(system, turns), {"role": "user", "content": text}]
        ids: list[int] = self._template.encode(self._tokenizer, messages, add_generation_prompt=True).tolist()
        return ids

    def _require_room(self, ids: Sequence[int], what: str) -> None:
        if len(ids) >= self.context:
            raise DataError(
                f"{what} makes {len(ids)} tokens, and the model reads {self.context} with the answer; shorten it"
            )


def _messages(system: str | None, turns: Sequence[Turn]) -> list[dict[str, str]]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages
