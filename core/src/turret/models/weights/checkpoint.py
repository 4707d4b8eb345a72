"""A model file that is open: its tensors, what it says of its model, and where each parameter lies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turret.data.chat_template import ChatTemplate
from turret.data.gguf_vocabulary import chat_template_from_gguf, tokenizer_from_gguf
from turret.data.subword import SubwordTokenizer
from turret.spi import DataError, Host, Unsupported

from .config_json import Described
from .gguf_file import GgufFile
from .gguf_layout import ROPE_FACTORS, gguf_plan, read_metadata
from .names import Plan
from .pretrained import Form
from .source import TensorSource

Words = tuple[SubwordTokenizer | None, ChatTemplate | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """plan: from the names of the model's parameters. ignored: tensors that are no parameter, and may be there.

    arrays: everything as it is stored, where linear weights may have 4 bits.
    """

    source: TensorSource
    described: Described
    form: Form
    plan: Callable[[Sequence[str]], Plan]
    ignored: Sequence[str] = ()
    arrays: Mapping[str, Host] | None = None
    words: Words = field(default=(None, None))


def open_gguf(place: Path, *, tokenizer: bool) -> Checkpoint:
    """A GGUF file; the caller closes its source. Raises: as `load_pretrained`."""
    source = GgufFile(place)
    described = read_metadata(source.metadata, source)
    return Checkpoint(
        source=source,
        described=described,
        form="gguf",
        plan=lambda names: gguf_plan(described.config, described.architecture),
        ignored=[name for name in source.names() if name == ROPE_FACTORS],
        words=_words(source) if tokenizer else (None, None),
    )


def _words(source: GgufFile) -> Words:
    if "tokenizer.ggml.model" not in source.metadata:
        return None, None
    with naming_the_way_out(source.path):
        return tokenizer_from_gguf(source.metadata), chat_template_from_gguf(source.metadata)


@contextlib.contextmanager
def naming_the_way_out(path: Path) -> Iterator[None]:
    """Says with a refused tokenizer that the weights can be had without it."""
    try:
        yield
    except (DataError, Unsupported) as error:
        raise type(error)(f"{path}: {error}; tokenizer=False loads the weights alone") from error
