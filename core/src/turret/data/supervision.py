"""Examples as token ids, with the tokens that the loss is taken of, cut to the context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from turret.data.instructions import Example
from turret.data.tokenizers import Ids, SomeIds
from turret.spi.errors import ConfigError, DataError

Learned = npt.NDArray[np.bool_]
Learn = Literal["response", "all"]
Long = Literal["truncate", "drop", "refuse"]


class ExampleTokenizer(Protocol):
    """What examples need of a tokenizer."""

    @property
    def eos_id(self) -> int | None:
        """The id that ends a generation, None where there is none."""
        ...

    def encode(self, text: str, /) -> Ids:
        """Ids (T,) int32, without any in front or behind."""
        ...


@runtime_checkable
class PrefixedTokenizer(Protocol):
    """A tokenizer whose models want some ids in front of every text."""

    @property
    def prefix(self) -> Sequence[int] | Ids:
        """The ids in front, such as a beginning-of-sequence id."""
        ...


T = TypeVar("T", bound=ExampleTokenizer)
T_contra = TypeVar("T_contra", bound=ExampleTokenizer, contravariant=True)


class ExampleTemplate(Protocol[T_contra]):
    """A chat template: how a conversation becomes ids."""

    def encode(
        self, tokenizer: T_contra, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> SomeIds:
        """Ids of messages with `role` and `content`; a generation prompt is what stands before the next answer.

        Raises: DataError for messages that the template refuses.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedExample:
    """Ids (n,) int32 and learned (n,) bool: whether the loss is taken of predicting that id from those before it.

    `learned[0]` is False, as nothing is before it. `response` is where the last answer begins, n when all is learned
    alike; `line` is the example's.
    """

    ids: Ids
    learned: Learned
    response: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCounts:
    """What became of the examples: `read` is the sum of kept, dropped, response_too_long and nothing_learned.

    `truncated` ones are among the kept; `tokens` and `learned_tokens` are those of the kept; `bad` lines are no
    examples.
    """

    read: int
    bad: int
    kept: int
    truncated: int
    dropped: int
    response_too_long: int
    nothing_learned: int
    tokens: int
    learned_tokens: int


class Tokenized(NamedTuple):
    """The examples that are left, in order, and what became of all."""

    examples: tuple[TokenizedExample, ...]
    counts: ExampleCounts


def tokenize_examples(
    examples: Sequence[Example],
    tokenizer: T,
    *,
    context: int,
    template: ExampleTemplate[T] | None = None,
    learn: Learn = "response",
    long: Long = "refuse",
    end_ids: Collection[int] | None = None,
    bad: int = 0,
) -> Tokenized:
    """Tokenizes as `tokenize_example` and deals with examples that do not fit.

    The last token is only a target, so `context + 1` tokens fit. Of longer ones "truncate" keeps the newest
    `context + 1`; where these would not hold the whole last answer and a token before it, the example is left out and
    counted in `response_too_long`. With learn="all" no token is worth more than another, so that cannot happen. "drop"
    leaves longer ones out, "refuse" raises. An example without a learned token is left out too, or refused. `bad` is
    copied to the counts.

    Raises: DataError naming the line, as `tokenize_example` and as said above, also when no example is left;
    ConfigError for an unknown word or a context below 1.
    """
    _require_word("learn", learn, get_args(Learn))
    _require_word("long", long, get_args(Long))
    if type(context) is not int or context < 1:
        raise ConfigError(f"got context {context!r:.80}, want an integer of at least 1")
    kept: list[TokenizedExample] = []
    count = dict.fromkeys(("truncated", "dropped", "response_too_long", "nothing_learned"), 0)
    for example in examples:
        try:
            whole = tokenize_example(example, tokenizer, template=template, learn=learn, end_ids=end_ids)
            if long == "refuse":
                _require_fit(whole, context)
        except DataError as error:
            raise DataError(f"the example of line {example.line}: {error}") from error
        fitted, fate = _fitted(whole, context, long)
        if fate is not None:
            count[fate] += 1
        if fitted is not None:
            kept.append(fitted)
    if examples and not kept:
        lost = ", ".join(f"{number} {word.replace('_', ' ')}" for word, number in count.items() if number)
        raise DataError(f"none of {len(examples)} examples is left at context {context}: {lost}; use a larger context")
    counts = ExampleCounts(
        read=len(examples),
        bad=bad,
        kept=len(kept),
        tokens=sum(len(example.ids) for example in kept),
        learned_tokens=sum(int(np.count_nonzero(example.learned)) for example in kept),
        **count,
    )
    return Tokenized(tuple(kept), counts)


def tokenize_example(
    example: Example,
    tokenizer: T,
    *,
    template: ExampleTemplate[T] | None = None,
    learn: Learn = "response",
    end_ids: Collection[int] | None = None,
) -> TokenizedExample:
    """All ids of one example and which of them are learned: the answers with what ends them, or all.

    Without a template: the tokenizer's prefix if it has one, the prompt, the response and the end-of-sequence id;
    prompt and response are encoded apart, so that the border is exact. With one: the conversation as the template
    writes it; an answer is what follows its generation prompt, up to the first of `end_ids`, by default the
    tokenizer's end-of-sequence id. What follows the last learned id is left out.

    Raises: DataError for a conversation without a template, and where the template leaves no border between an answer
    and what is before it; ConfigError for a tokenizer without an end-of-sequence id where it is needed.
    """
    if template is None:
        ids, answers = _plain(example, tokenizer)
    elif learn == "all":
        ids, answers = _encoded(template, tokenizer, example, len(example.messages), prompt=False), []
    else:
        ids, answers = _chat(example, tokenizer, template, _ends(tokenizer, end_ids))
    if learn == "all":
        learned, response = np.ones(len(ids), np.bool_), len(ids)
    else:
        response, stop = answers[-1]
        ids, learned = ids[:stop], np.zeros(stop, np.bool_)
        for start, end in answers:
            learned[start:end] = True
    learned[:1] = False
    return TokenizedExample(ids=ids, learned=learned, response=response, line=example.line)


def _plain(example: Example, tokenizer: ExampleTokenizer) -> tuple[Ids, list[tuple[int, int]]]:
    if example.chat:
        raise DataError("it has messages, which need a chat template; use a tokenizer with one, or prompt and response")
    end = _required_eos(tokenizer)
    prefix = tokenizer.prefix if isinstance(tokenizer, PrefixedTokenizer) else ()
    prompt, response = (tokenizer.encode(message.content) for message in example.messages)
    ids = np.concatenate([np.asarray(prefix, np.int32), prompt, response, np.array([end], np.int32)])
    return ids, [(len(prefix) + len(prompt), len(ids))]


def _chat(
    example: Example, tokenizer: T, template: ExampleTemplate[T], ends: Collection[int]
) -> tuple[Ids, list[tuple[int, int]]]:
    """Ids of the whole conversation and where in it each answer begins and ends."""
    whole = _encoded(template, tokenizer, example, len(example.messages), prompt=False)
    answers = []
    for turn in (index for index, message in enumerate(example.messages) if message.role == "assistant"):
        before = _encoded(template, tokenizer, example, turn, prompt=True)
        is_last = turn + 1 == len(example.messages)
        after = whole if is_last else _encoded(template, tokenizer, example, turn + 1, prompt=False)
        start = len(before)
        endings = np.flatnonzero(np.isin(after[start:], list(ends)))
        if not _begins_with(after, before):
            raise DataError(f"{_no_border(turn)}: the ids of the generation prompt change when the answer follows")
        if not endings.size:
            raise DataError(
                f"no id of {sorted(ends)} ends the answer in message {turn}; name the end ids of the template"
            )
        stop = start + int(endings[0]) + 1
        if not _begins_with(whole, after[:stop]):
            raise DataError(f"{_no_border(turn)}: its ids change when more messages follow")
        answers.append((start, stop))
    return whole, answers


def _no_border(turn: int) -> str:
    return f"the chat template does not allow a loss of responses only (use learn='all'), see message {turn}"


def _encoded(template: ExampleTemplate[T], tokenizer: T, example: Example, turns: int, *, prompt: bool) -> Ids:
    messages = [message._asdict() for message in example.messages[:turns]]
    return np.array(template.encode(tokenizer, messages, add_generation_prompt=prompt), np.int32)


def _begins_with(ids: Ids, start: Ids) -> bool:
    return np.array_equal(ids[: len(start)], start)


def _ends(tokenizer: ExampleTokenizer, end_ids: Collection[int] | None) -> Collection[int]:
    if end_ids is None:
        return (_required_eos(tokenizer),)
    if not end_ids:
        raise ConfigError("got no end ids, want at least one, or None for the tokenizer's own")
    if isinstance(end_ids, str) or not isinstance(end_ids, Collection):
        raise ConfigError(f"got end ids {end_ids!r:.80}, want several ids, or None for the tokenizer's own")
    return end_ids


def _required_eos(tokenizer: ExampleTokenizer) -> int:
    if tokenizer.eos_id is None:
        raise ConfigError("the tokenizer has no end-of-sequence id to end an answer with; use one that has")
    return tokenizer.eos_id


def _fitted(example: TokenizedExample, context: int, long: Long) -> tuple[TokenizedExample | None, str | None]:
    """The example as it is kept, if it is, and the count it adds to, if there is one."""
    is_long = len(example.ids) > context + 1
    if is_long and long == "drop":
        return None, "dropped"
    fitted = _newest(example, context + 1) if is_long else example
    if fitted is None:
        return None, "response_too_long"
    if not fitted.learned.any():
        return None, "nothing_learned"
    return fitted, "truncated" if is_long else None


def _newest(example: TokenizedExample, count: int) -> TokenizedExample | None:
    """The last `count` tokens, None where they hold no token before the last answer."""
    start = len(example.ids) - count
    if example.response <= start:
        return None
    learned = example.learned[start:].copy()
    learned[0] = False
    return TokenizedExample(
        ids=example.ids[start:].copy(), learned=learned, response=example.response - start, line=example.line
    )


def _require_fit(example: TokenizedExample, context: int) -> None:
    if len(example.ids) > context + 1:
        raise DataError(
            f"it has {len(example.ids)} tokens, context {context} holds {context + 1}; "
            "use a larger context, or long='truncate' or 'drop'"
        )
    if not example.learned.any():
        raise DataError("it has no token to learn; correct the line, or use long='truncate' or 'drop'")


def _require_word(name: str, word: object, words: tuple[str, ...]) -> None:
    if word not in words:
        raise ConfigError(f"got {name} {word!r:.80}, want one of {', '.join(map(repr, words))}")
