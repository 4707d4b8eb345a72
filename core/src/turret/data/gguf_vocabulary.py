"""The tokenizer and the chat template that a GGUF file carries in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turret.data.chat_template import ChatTemplate
from turret.data.subword import SubwordTokenizer, added_token
from turret.spi.errors import DataError, Unsupported

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_ADDED = (_UNKNOWN, _CONTROL, _USER_DEFINED)

_BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2: list[dict[str, Any]] = [_BYTES | {"use_regex": True}]
_DIGITS: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}, *_GPT2]


def _words(most_digits: str) -> list[dict[str, Any]]:
    """Words as Llama 3 and Qwen 2 cut them: a contraction, letters, digits, signs, line ends, blanks."""
    form = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + most_digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return [{"type": "Split", "pattern": {"Regex": form}, "behavior": "Isolated", "invert": False}, _BYTES]


# How a text is cut into words, by tokenizer.ggml.pre.
_CUTS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "smaug-bpe", "dbrx"), _words("{1,3}")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _words("")),
}
_LLAMA3 = ("llama-bpe", "llama-v3", "llama3")  # take a whole word that is a token, and begin with BOS unless told


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> SubwordTokenizer:
    """The tokenizer that the metadata of a GGUF file describes; nothing is normalized, so any text comes back.

    Raises: Unsupported for tokenizers other than byte-level BPE and for ways to cut words that are not known for
        certain, by name; DataError for metadata that contradicts itself.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise Unsupported(f"tokenizer.ggml.model is {model!r:.40}; byte-level BPE ('gpt2') is supported")
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in _CUTS:
        raise Unsupported(f"tokenizer.ggml.pre is {pre!r:.40}; supported are {', '.join(sorted(_CUTS))}")
    if metadata.get("tokenizer.ggml.add_space_prefix"):
        raise Unsupported("tokenizer.ggml.add_space_prefix is set; byte-level BPE is supported without it")
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    vocabulary = {text: token_id for token_id, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise DataError(f"tokenizer.ggml.tokens names {len(tokens) - len(vocabulary)} tokens twice; want each once")
    kinds = _kinds(metadata, len(tokens))
    added = [
        added_token(text, token_id, special=kind != _USER_DEFINED)
        for token_id, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in _ADDED
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _CUTS[pre]},
        "post_processor": _ends(metadata, tokens, adds_bos=pre in _LLAMA3),
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": _merges(metadata, vocabulary),
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _LLAMA3,
        },
    }
    eos = _token_id(metadata, "eos", len(tokens))
    return SubwordTokenizer.from_json(json.dumps(document), eos_id=eos, what="the tokenizer of the GGUF file")


def chat_template_from_gguf(metadata: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template of a GGUF file, None where it has none.

    Raises: DataError for one that cannot be used.
    """
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        return None
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    short = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found = {name: _token_id(metadata, key, len(tokens)) for key, name in short.items()}
    special = {f"{name}_token": tokens[token_id] for name, token_id in found.items() if token_id is not None}
    return ChatTemplate(source, special=special)


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(each, str) for each in values):
        raise DataError(f"{key} is {type(values).__name__} or holds something else than texts; want a list of texts")
    return values


def _kinds(metadata: Mapping[str, Any], count: int) -> list[int]:
    kinds = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * count)
    if not isinstance(kinds, list) or len(kinds) != count:
        raise DataError(f"tokenizer.ggml.token_type does not tell the kind of each of the {count} tokens")
    wrong = [each for each in kinds if each not in range(_NORMAL, _BYTE + 1)]
    if wrong:
        raise DataError(f"tokenizer.ggml.token_type has the kind {wrong[0]!r:.40}; want {_NORMAL} to {_BYTE}")
    return kinds


def _merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[list[str]]:
    found = []
    for nth, text in enumerate(_texts(metadata, "tokenizer.ggml.merges")):
        pair = text.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise DataError(f"merge {nth} of tokenizer.ggml.merges is {text!r:.80}; want two tokens that make a third")
        found.append(pair)
    return found


def _token_id(metadata: Mapping[str, Any], which: str, count: int) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{which}_token_id")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < count:
        raise DataError(f"tokenizer.ggml.{which}_token_id is {token_id!r:.40}; want an id of the {count} tokens")
    return token_id


def _ends(metadata: Mapping[str, Any], tokens: list[str], *, adds_bos: bool) -> dict[str, Any] | None:
    """The post-processor that puts BOS in front of a text and EOS behind it, as far as the file asks for them."""
    asked = {
        "bos": bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        "eos": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    }
    used: dict[str, int] = {}
    for which in (which for which, wanted in asked.items() if wanted):
        token_id = _token_id(metadata, which, len(tokens))
        if token_id is None:
            raise DataError(
                f"the file adds {which.upper()} to every text, but tokenizer.ggml.{which}_token_id is absent"
            )
        used[which] = token_id
    if not used:
        return None
    marks = {which: {"SpecialToken": {"id": tokens[token_id], "type_id": 0}} for which, token_id in used.items()}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    single = [part for part in (marks.get("bos"), text, marks.get("eos")) if part is not None]
    spelled = {tokens[each]: {"id": tokens[each], "ids": [each], "tokens": [tokens[each]]} for each in used.values()}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *single], "special_tokens": spelled}
