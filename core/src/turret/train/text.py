"""What a run reads: its corpus, its tokenizer, and the ids that the one makes of the other."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from turret.data import ByteLevelTokenizer, ByteTokens, Manifest, TokenCorpus, kept_tokens, open_corpus, tokenizer_for
from turret.data.subword import SubwordTokenizer
from turret.spi import CheckpointError, ConfigError, DataError, Unsupported

from .checkpoint import CheckpointContent
from .config import RunConfig

TOKENS = "tokens"
"""Where a checkpoint's extra values say which subword ids the run was trained on."""
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""What tokenizers call the token between texts: a tokenizer.json does not say which of its tokens it is."""

RunTokenizer = ByteLevelTokenizer | SubwordTokenizer

_LOGGER = logging.getLogger("turret")


class RunText:
    """The corpus of a run as ids, opened; subword ids are kept in the run folder and encoded only once.

    Raises: DataError, ConfigError; CheckpointError where a checkpoint does not say what it was trained on.
    """

    def __init__(self, config: RunConfig, tokenizer: RunTokenizer, out: Path, resume: CheckpointContent | None) -> None:
        self.tokenizer = tokenizer
        self.corpus = open_corpus(config.corpus, keep_in=out)
        self.provenance = Manifest.of(self.corpus)
        if resume is not None:
            Manifest.from_dict(resume.data).require_same(self.provenance)
        self.source: ByteTokens | TokenCorpus
        if isinstance(tokenizer, SubwordTokenizer):
            _LOGGER.info("making tokens of %d bytes, or checking those that are kept", len(self.corpus))
            self.source = kept_tokens(out, self.corpus, tokenizer)
            if resume is not None:
                _require_same_tokens(resume, self.source)
        else:
            self.source = ByteTokens(self.corpus, tokenizer)

    @property
    def bytes_per_token(self) -> float:
        """Of the whole corpus."""
        return len(self.corpus) / len(self.source)

    @property
    def tokenizer_json(self) -> str | None:
        """The tokenizer as checkpoints store it; None for bytes, whose name says all."""
        return self.tokenizer.to_json() if isinstance(self.tokenizer, SubwordTokenizer) else None

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of the ids, so that a resumed run draws from the same ones."""
        return {TOKENS: _fact(self.source)} if isinstance(self.source, TokenCorpus) else {}

    def close(self) -> None:
        """Unmaps the files; reading maps them again."""
        self.corpus.close()
        if isinstance(self.source, TokenCorpus):
            self.source.close()


def tokenizer_of(config: RunConfig, resume: CheckpointContent | None) -> RunTokenizer:
    """The tokenizer of a run: that of its checkpoint, else that of its file, else bytes.

    Raises: DataError for a file that is no tokenizer, MissingExtra, CheckpointError, ConfigError.
    """
    if resume is None:
        return config.byte_tokenizer if config.tokenizer_file is None else read_tokenizer(Path(config.tokenizer_file))
    stored = stored_tokenizer(resume)
    if isinstance(stored, SubwordTokenizer) == (config.tokenizer_file is None):
        raise ConfigError(f"{resume.path} has the tokenizer {stored.name!r}, and the configuration another; resume it")
    return stored


def read_tokenizer(path: Path) -> SubwordTokenizer:
    """The tokenizer of a tokenizer.json, with its end-of-text token. Raises: DataError, Unsupported, MissingExtra."""
    return _ended(SubwordTokenizer.from_file(path))


def stored_tokenizer(content: CheckpointContent) -> RunTokenizer:
    """The tokenizer that a checkpoint names and, for subwords, holds. Raises: CheckpointError, MissingExtra."""
    where, text = content.path or "the checkpoint", content.tokenizer_json
    if (content.tokenizer == SubwordTokenizer.name) == (text is None):
        lacks = "lacks its tokenizer.json" if text is None else "has a tokenizer.json"
        raise CheckpointError(f"{where}: its tokenizer is {content.tokenizer!r:.80} and it {lacks}; use another one")
    try:
        return tokenizer_for(content.tokenizer) if text is None else _ended(SubwordTokenizer.from_json(text))
    except (ConfigError, DataError, Unsupported) as error:
        raise CheckpointError(f"{where}: its tokenizer cannot be used: {error}") from error


def require_same_tokenizer(checkpoint: CheckpointContent, path: Path) -> None:
    """Raises: ConfigError unless the file at `path` is the checkpoint's tokenizer; DataError, CheckpointError."""
    stored = stored_tokenizer(checkpoint)
    if not isinstance(stored, SubwordTokenizer):
        raise ConfigError(f"a resumed run keeps its {stored.name}, got the tokenizer {path}; leave it out")
    if read_tokenizer(path).fingerprint != stored.fingerprint:
        raise ConfigError(
            f"{path} is not the tokenizer of this run; leave --tokenizer out, the checkpoint has its own, or start a "
            "new run"
        )


def _ended(tokenizer: SubwordTokenizer) -> SubwordTokenizer:
    eos = next((text for text in END_OF_TEXT if tokenizer.token_id(text) is not None), None)
    return tokenizer if eos is None else SubwordTokenizer.from_json(tokenizer.to_json(), eos_id=eos)


def _fact(tokens: TokenCorpus) -> dict[str, Any]:
    return {"count": len(tokens), "sha256": tokens.record.sha256}


def _require_same_tokens(resume: CheckpointContent, tokens: TokenCorpus) -> None:
    trained = resume.extra.get(TOKENS)
    if not isinstance(trained, dict):
        raise CheckpointError(f"{resume.path}: it does not say which '{TOKENS}' it was trained on; use another one")
    if trained != _fact(tokens):
        raise DataError(
            f"the corpus gives {len(tokens)} tokens with SHA-256 {tokens.record.sha256[:12]}..., this run was trained "
            f"on {trained.get('count')!r:.20} with {trained.get('sha256')!r:.14}...; use the release of tokenizers it "
            "was begun with, or start a new run"
        )
