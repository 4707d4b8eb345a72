"""The loss is taken of the answers and of what ends them, exactly, and of nothing else unless all is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.data.instructions import Example, Message
from turret.data.supervision import TokenizedExample, tokenize_example, tokenize_examples
from turret.data.tokenizers import ByteTokenizer, Ids, ReservedByteTokenizer
from turret.spi.errors import ConfigError, DataError

BYTES = ReservedByteTokenizer()
EOS, TOOL, PYTHON, SHELL = 1, 3, 4, 5


def plain(prompt: str, response: str, line: int = 1) -> Example:
    return Example(messages=(Message("user", prompt), Message("assistant", response)), chat=False, line=line)


def talk(*contents: str, system: str | None = None) -> Example:
    turns = [Message(("user", "assistant")[index % 2], content) for index, content in enumerate(contents)]
    first = [] if system is None else [Message("system", system)]
    return Example(messages=(*first, *turns), chat=True, line=1)


@dataclass
class Marked:
    """Each turn is a marker of its role, its text, the end id and a newline, as ChatML has it."""

    end: int = EOS

    def encode(
        self, tokenizer: ReservedByteTokenizer, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> list[int]:
        mark = {"system": TOOL, "user": PYTHON, "assistant": SHELL}
        ids: list[int] = []
        for message in messages:
            ids += [mark[message["role"]], *tokenizer.encode(message["content"]), self.end, *tokenizer.encode("\n")]
        return [*ids, SHELL] if add_generation_prompt else ids


class Prefixed(ReservedByteTokenizer):
    prefix = (TOOL, PYTHON)


def learned_runs(example: TokenizedExample) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], example.learned.astype(int), [0]])))
    return [example.ids[start:stop].tolist() for start, stop in edges.reshape(-1, 2)]


def ids(text: str) -> list[int]:
    return BYTES.encode(text).tolist()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(texts, texts)
def test_of_prompt_and_response_the_response_and_its_end_are_learned(prompt: str, response: str) -> None:
    got = tokenize_example(plain(prompt, response), Prefixed())
    assert got.ids.dtype == np.int32 and got.learned.dtype == np.bool_
    assert got.ids.tolist() == [TOOL, PYTHON, *ids(prompt), *ids(response), EOS]
    assert learned_runs(got) == [[*ids(response), EOS]]
    assert got.response == 2 + len(ids(prompt))


def test_all_is_learned_but_the_first_token_which_nothing_predicts() -> None:
    got = tokenize_example(plain("ab", "c"), BYTES, learn="all")
    assert got.ids.tolist() == [*ids("abc"), EOS]
    assert got.learned.tolist() == [False, True, True, True]


def test_without_a_prompt_the_first_token_of_the_response_has_nothing_to_be_predicted_from() -> None:
    assert tokenize_example(plain("", "ab"), BYTES).learned.tolist() == [False, True, True]


@given(st.lists(st.tuples(texts, texts.filter(str.strip)), min_size=1, max_size=4), st.none() | texts)
def test_of_a_conversation_each_answer_and_its_end_are_learned(
    turns: list[tuple[str, str]], system: str | None
) -> None:
    example = talk(*(text for turn in turns for text in turn), system=system)
    got = tokenize_example(example, BYTES, template=Marked())
    assert learned_runs(got) == [[*ids(answer), EOS] for _, answer in turns]
    whole = Marked().encode(BYTES, [message._asdict() for message in example.messages], add_generation_prompt=False)
    assert got.ids.tolist() == whole[:-1]  # the newline behind the last end id has no learned token after it
    assert got.response == len(got.ids) - len(ids(turns[-1][1])) - 1
    everything = tokenize_example(example, BYTES, template=Marked(), learn="all")
    assert everything.ids.tolist() == whole
    assert learned_runs(everything) == [whole[1:]]


def test_a_template_also_serves_prompt_and_response() -> None:
    got, want = (tokenize_example(kind("q", "a"), BYTES, template=Marked()) for kind in (plain, talk))
    assert got.ids.tolist() == want.ids.tolist() and got.learned.tolist() == want.learned.tolist()


def test_the_end_of_an_answer_can_be_another_id_than_that_of_the_sequence() -> None:
    got = tokenize_example(talk("q", "a"), BYTES, template=Marked(end=TOOL), end_ids={TOOL, EOS})
    assert learned_runs(got) == [[*ids("a"), TOOL]]
    with pytest.raises(DataError, match=r"no id of \[1\] ends the answer in message 1; name the end ids"):
        tokenize_example(talk("q", "a"), BYTES, template=Marked(end=TOOL))
    with pytest.raises(ConfigError, match="got no end ids"):
        tokenize_example(talk("q", "a"), BYTES, template=Marked(), end_ids=())
    for wrong in (EOS, "1"):
        with pytest.raises(ConfigError, match="want several ids"):
            tokenize_example(talk("q", "a"), BYTES, template=Marked(), end_ids=wrong)  # type: ignore[arg-type]


class WithoutThoughts(Marked):
    """Rewrites earlier answers when more messages follow, as templates of reasoning models do."""

    def encode(
        self, tokenizer: ReservedByteTokenizer, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> list[int]:
        shown = [
            {**message, "content": message["content"].split("|")[-1]} if index < len(messages) - 1 else message
            for index, message in enumerate(messages)
        ]
        return super().encode(tokenizer, shown, add_generation_prompt=add_generation_prompt)


class OtherPrompt(Marked):
    """Writes another beginning when it asks for an answer than before the answer itself."""

    def encode(
        self, tokenizer: ReservedByteTokenizer, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> list[int]:
        own = super().encode(tokenizer, messages, add_generation_prompt=add_generation_prompt)
        return [*own, TOOL] if add_generation_prompt else own


@pytest.mark.parametrize(
    ("template", "message"),
    [(WithoutThoughts(), "its ids change when more"), (OtherPrompt(), "ids of the generation prompt change")],
)
def test_a_template_without_borders_allows_only_a_loss_of_all(template: Marked, message: str) -> None:
    example = talk("q", "think|a", "r", "b")
    with pytest.raises(DataError, match=rf"does not allow a loss of responses only \(use learn='all'\).*{message}"):
        tokenize_example(example, BYTES, template=template)
    assert tokenize_example(example, BYTES, template=template, learn="all").learned[1:].all()


def test_what_lacks_a_template_or_an_end_id_is_refused() -> None:
    with pytest.raises(DataError, match="it has messages, which need a chat template"):
        tokenize_example(talk("q", "a"), BYTES)
    with pytest.raises(ConfigError, match="no end-of-sequence id"):
        tokenize_example(plain("q", "a"), ByteTokenizer())


def test_an_error_names_the_line_of_its_example() -> None:
    with pytest.raises(DataError, match="the example of line 1: it has messages"):
        tokenize_examples([plain("q", "a", line=7), talk("q", "a")], BYTES, context=9)
    with pytest.raises(DataError, match="the example of line 8: it has 4 tokens, context 2 holds 3; use a larger"):
        tokenize_examples([plain("", "ab", line=7), plain("q", "ab", line=8)], BYTES, context=2)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1), st.integers(1, 14))
def test_truncation_keeps_the_newest_tokens_and_every_response_whole(
    sizes: list[tuple[int, int]], context: int
) -> None:
    examples = [plain("p" * prompt, "r" * response, line) for line, (prompt, response) in enumerate(sizes, 1)]
    whole = {example.line: tokenize_example(example, BYTES) for example in examples}
    fits = {n for n, (p, r) in enumerate(sizes, 1) if p + r <= context}
    can_be_cut = {n for n, (p, r) in enumerate(sizes, 1) if p + r > context and r + 1 <= context}
    if not fits | can_be_cut:
        with pytest.raises(DataError, match="response too long; use a larger context"):
            tokenize_examples(examples, BYTES, context=context, long="truncate")
        return
    kept, counts = tokenize_examples(examples, BYTES, context=context, long="truncate", bad=3)
    assert [example.line for example in kept] == sorted(fits | can_be_cut)
    for example in kept:
        full = whole[example.line]
        assert example.ids.tolist() == full.ids[-context - 1 :].tolist()
        assert example.learned.tolist() == full.learned[-context - 1 :].tolist()
        assert example.ids[example.response :].tolist() == full.ids[full.response :].tolist()
    assert (counts.read, counts.bad, counts.kept) == (len(sizes), 3, len(kept))
    assert (counts.truncated, counts.dropped, counts.nothing_learned) == (len(can_be_cut), 0, 0)
    assert counts.response_too_long == counts.read - counts.kept
    assert counts.tokens == sum(len(example.ids) for example in kept)
    assert counts.learned_tokens == sum(example.learned.sum() for example in kept)


def test_dropping_leaves_out_what_does_not_fit_and_counts_it() -> None:
    examples = [plain("p" * size, "r", size) for size in range(6)]
    kept, counts = tokenize_examples(examples, BYTES, context=3, long="drop")
    assert [example.line for example in kept] == [0, 1, 2]
    assert (counts.dropped, counts.response_too_long, counts.truncated) == (3, 0, 0)


def test_where_all_is_learned_a_long_response_is_cut_like_any_text() -> None:
    kept, counts = tokenize_examples([plain("p", "abcdef")], BYTES, context=3, learn="all", long="truncate")
    assert kept[0].ids.tolist() == [*ids("def"), EOS] and kept[0].learned.tolist() == [False, True, True, True]
    assert (counts.truncated, counts.learned_tokens) == (1, 3)


class Silent(ReservedByteTokenizer):
    """Drops spaces, so that some texts have no ids."""

    def encode(self, text: str | bytes) -> Ids:
        assert isinstance(text, str)
        return super().encode(text.replace("_", ""))


def test_an_example_without_a_learned_token_is_counted_or_refused() -> None:
    examples = [plain("", "_", line=4), plain("a", "b", line=5)]
    kept, counts = tokenize_examples(examples, Silent(), context=9, long="drop")
    assert [example.line for example in kept] == [5] and counts.nothing_learned == 1
    with pytest.raises(DataError, match="line 4: it has no token to learn"):
        tokenize_examples(examples, Silent(), context=9)
    with pytest.raises(DataError, match="none of 1 examples is left at context 9: 1 nothing learned"):
        tokenize_examples(examples[:1], Silent(), context=9, long="drop")


def test_no_examples_are_no_error() -> None:
    kept, counts = tokenize_examples((), BYTES, context=4)
    assert kept == () and counts.read == counts.tokens == 0


@pytest.mark.parametrize("change", [{"learn": "prompt"}, {"long": "cut"}, {"context": 0}, {"context": True}])
def test_words_and_context_are_checked(change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=f"got {name} "):
        tokenize_examples([plain("q", "a")], BYTES, **({"context": 8} | change))  # type: ignore[arg-type]
