"""Chat templates: messages to the text and the ids that a chat model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from turret.data.tokenizers import Ids
from turret.spi.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from turret.data.subword import SubwordTokenizer

Messages = Sequence[Mapping[str, str]]

ROLES = ("system", "user", "assistant", "tool")
_LONGEST_SOURCE = 1 << 16
_MOST_MESSAGES, _MOST_CHARACTERS = 1 << 16, 1 << 26
_UNITS, _UNITS_A_MESSAGE, _UNITS_A_CHARACTER = 1_000_000, 2_000, 4


class ChatTemplate:
    """A Jinja chat template, rendered as transformers does, but of any origin: its time and memory have a limit."""

    def __init__(self, source: str, *, special: Mapping[str, str]) -> None:
        """Compile a template.

        special: the variables that hold control tokens, such as bos_token and eos_token.

        Raises: MissingExtra without Jinja2; DataError for what is no template, over 64 KiB, or uses parts of Jinja
            that no chat template needs.
        """
        try:
            from turret.data import template_sandbox
        except ImportError as error:
            raise MissingExtra('a chat template needs Jinja2; install it with: pip install "core[hub]"') from error
        if not isinstance(source, str) or len(source) > _LONGEST_SOURCE:
            raise DataError(f"a chat template is text of at most {_LONGEST_SOURCE} characters; got another one")
        self.source = source
        self.special = dict(special)
        self._sandbox = template_sandbox
        with template_sandbox.refusing("the chat template cannot be used"):
            self._render = template_sandbox.ChatEnvironment().compiled(source)

    def render(self, messages: Messages, *, add_generation_prompt: bool) -> str:
        """The text of a conversation; with `add_generation_prompt` it ends where the assistant begins to write.

        messages: each of a `role` (system, user, assistant or tool) and a text `content`.

        Raises: DataError for other messages, for messages that the template refuses, and for a template that fails or
            does far more work than its messages need.
        """
        plain = _checked(messages)
        characters = sum(len(each["content"]) for each in plain)
        units = _UNITS + _UNITS_A_MESSAGE * len(plain) + _UNITS_A_CHARACTER * characters
        variables = {
            **self.special,
            "messages": plain,
            "tools": None,
            "documents": None,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        with self._sandbox.refusing("the chat template failed"):
            return self._render({**variables, self._sandbox.BUDGET: self._sandbox.Budget(units)})

    def encode(self, tokenizer: SubwordTokenizer, messages: Messages, *, add_generation_prompt: bool) -> Ids:
        """Ids (T,) int32 of a conversation, with the control tokens that the template writes.

        Raises: DataError as `render` does, and for a message that holds the text of a control token: it would forge a
            turn. Control tokens are the tokenizer's and those in `special`; for messages that are not the assistant's
            also every added token that the template itself writes.
        """
        plain = _checked(messages)
        control = {text for each in tokenizer.special_ids if (text := tokenizer.token_text(each))}
        control |= {text for text in self.special.values() if text}
        written = {text for text in tokenizer.added_tokens if text in self.source}
        for nth, message in enumerate(plain):
            texts = control if message["role"] == "assistant" else control | written
            ids = {tokenizer.token_id(text) for text in texts}
            read = tokenizer.encode(message["content"], special=True).tolist()
            wrong = [text for text in texts if text in message["content"]]
            # A tokenizer that normalizes can find a control token where its text does not stand.
            wrong += [str(tokenizer.token_text(each)) for each in read if each in ids and each != tokenizer.unknown_id]
            if wrong:
                raise DataError(
                    f"message {nth} ({message['role']}) holds the control token {wrong[0]!r:.80}, which would forge a "
                    "turn; take it out of the text"
                )
        return tokenizer.encode(self.render(plain, add_generation_prompt=add_generation_prompt), special=True)


def _checked(messages: Messages) -> list[dict[str, str]]:
    """The messages as plain dictionaries.

    Raises: DataError for another form, role or size.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or len(messages) > _MOST_MESSAGES:
        raise DataError(f"messages are a sequence of at most {_MOST_MESSAGES} {{role, content}}; got something else")
    plain: list[dict[str, str]] = []
    for nth, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise DataError(f"message {nth} is {message!r:.80}; want exactly role and content")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise DataError(f"message {nth} has the role {role!r:.40}; want one of {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise DataError(f"message {nth} has a content of type {type(content).__name__}; want text")
        plain.append({"role": role, "content": content})
    if (total := sum(len(each["content"]) for each in plain)) > _MOST_CHARACTERS:
        raise DataError(f"messages hold {total} characters, want at most {_MOST_CHARACTERS}; cut the conversation")
    return plain
