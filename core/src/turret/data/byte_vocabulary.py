"""The byte tokenizers as a tokenizer.json, which other programs read."""

from __future__ import annotations

import json

from turret.data.subword import SubwordTokenizer, added_token
from turret.data.token_bytes import byte_alphabet
from turret.data.tokenizers import RESERVED, ByteTokenizer, ReservedByteTokenizer


def as_subwords(tokenizer: ByteTokenizer | ReservedByteTokenizer) -> SubwordTokenizer:
    """The tokenizer with the same ids for every text, as a byte-pair encoding without pairs.

    Reserved ids become control tokens: eos is `<|eos|>`. Raises: MissingExtra without the library tokenizers.
    """
    reserved = [f"<|{word}|>" for word in RESERVED] if isinstance(tokenizer, ReservedByteTokenizer) else []
    alphabet = {character: len(reserved) + byte for character, byte in byte_alphabet().items()}
    document = {
        "version": "1.0",
        "added_tokens": [added_token(text, token_id, special=True) for token_id, text in enumerate(reserved)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": {text: token_id for token_id, text in enumerate(reserved)} | alphabet,
            "merges": [],
        },
    }
    return SubwordTokenizer.from_json(json.dumps(document), eos_id=tokenizer.eos_id, what="the tokenizer of bytes")
