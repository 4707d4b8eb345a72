"""Making a tokenizer: byte-level byte-pair encoding, learned from a corpus in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turret.data.corpora import Corpus
from turret.data.subword import SubwordTokenizer
from turret.data.token_corpus import corpus_pieces
from turret.spi.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
LARGEST_VOCABULARY = 1_000_000
LONGEST_SPECIAL = 100
"""Characters of a special token."""
LONGEST_TOKEN = 128
"""Bytes of a learned token: a ruler of ten thousand dashes is no word."""


def train_byte_pairs(corpus: Corpus, vocabulary: int, special: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of at most `vocabulary` tokens: `<|endoftext|>`, those of `special`, 256 bytes, and learned pairs.

    Any text can be encoded and comes back exactly. The same corpus gives the same tokenizer. There are fewer tokens
    where the corpus has no more pairs that occur twice.

    Raises: ConfigError for a vocabulary that has no room for bytes and special tokens or is over a million, and for
    special tokens that are empty, too long or given twice; MissingExtra; DataError for a corpus that cannot be read.
    """
    specials = _checked_specials(special)
    least = 256 + len(specials)
    if type(vocabulary) is not int or not least <= vocabulary <= LARGEST_VOCABULARY:
        raise ConfigError(
            f"vocabulary {vocabulary!r:.40}; wanted {least} (256 bytes and {len(specials)} special tokens) to "
            f"{LARGEST_VOCABULARY}"
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtra('making a tokenizer needs tokenizers; install it with: pip install "core[hub]"') from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        show_progress=False,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=LONGEST_TOKEN,
    )
    tokenizer.train_from_iterator(corpus_pieces(corpus), trainer)
    return tokenizer


def _checked_specials(special: Sequence[str]) -> list[str]:
    specials = [END_OF_TEXT, *special]
    for text in specials:
        if not 2 <= len(text) <= LONGEST_SPECIAL or text != text.strip() or not text.isprintable():
            raise ConfigError(
                f"special token {text!r:.80}; wanted 2 to {LONGEST_SPECIAL} printable characters, no blank at the ends"
            )
        if specials.count(text) > 1:
            raise ConfigError(
                f"special token {text!r:.80} is given twice ({END_OF_TEXT} is always there); give it once"
            )
    return specials


def bytes_per_token(corpus: Corpus, tokenizer: Tokenizer) -> float:
    """How long the tokens are that the files of a corpus become.

    Raises: DataError where a special token is a word of the corpus, which could not be told from it.
    """
    subwords = SubwordTokenizer(tokenizer)
    return len(corpus) / sum(len(subwords.encode(piece)) for piece in corpus_pieces(corpus))
