"""`turret tokenizer`: making the tokenizer that a model is trained with."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import click

from .notices import notice
from .options import NamedPath


@click.group()
def command() -> None:
    """Make the tokenizer that a model is trained with."""


@command.command()
@click.option(
    "--corpus", multiple=True, required=True, metavar="PATH", help="File or folder of UTF-8 text, repeatable."
)
@click.option("--vocabulary", type=int, required=True, metavar="N", help="Tokens, special ones and 256 bytes included.")
@click.option(
    "--out", type=NamedPath(), required=True, metavar="FILE", help="The tokenizer.json to write; must be new."
)
@click.option("--special", multiple=True, metavar="TEXT", help="One more special token, as in <|user|>; repeatable.")
def train(corpus: tuple[str, ...], vocabulary: int, out: Path, special: tuple[str, ...]) -> None:
    """Learn a byte-level byte-pair encoding from text.

    Any text can be encoded with it and comes back exactly. <|endoftext|> ends a text. The same text gives the same
    file. stdout carries one JSON object.
    """
    from turret.data import open_corpus
    from turret.data.tokenizer_training import bytes_per_token, train_byte_pairs

    _require_new(out)
    text = open_corpus(corpus)
    made = train_byte_pairs(text, vocabulary, special)
    length = bytes_per_token(text, made)
    data = made.to_str(pretty=True).encode()
    _write_new(out, data)
    if (got := made.get_vocab_size()) < vocabulary:
        notice(f"the corpus has pairs for {got} tokens only, not {vocabulary}; more text gives more")
    described = {
        "vocabulary": got,
        "bytes_per_token": round(length, 4),
        "file": str(out),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    click.echo(json.dumps(described, ensure_ascii=False))


def _require_new(out: Path) -> None:
    from turret.spi import ConfigError

    try:
        if out.exists() or out.is_symlink():
            raise ConfigError(f"{out} is there already and stays as it is; choose another --out")
        if not out.parent.is_dir():
            raise ConfigError(f"{out.parent} is no folder; make it, or choose another --out")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{out}: cannot be looked at ({error}); choose another --out") from error


def _write_new(out: Path, data: bytes) -> None:
    """Writes what was not there; a killed process leaves nothing that looks like a tokenizer."""
    from turret.spi import ConfigError

    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with beside.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(beside, out)  # unlike a rename, it refuses where another process was faster
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error}); choose another --out") from error
    finally:
        beside.unlink(missing_ok=True)
