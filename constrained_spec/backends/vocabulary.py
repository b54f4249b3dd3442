"""From a Hugging Face tokenizer to the exact bytes of every token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from constrained_spec.errors import ModelError
from constrained_spec.types import Vocabulary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"  # sentencepiece's visible space


def build_vocabulary(tokenizer: PreTrainedTokenizerBase, width: int, eos_ids: Iterable[int]) -> Vocabulary:
    """The vocabulary of a model with ``width`` logits; ids beyond the tokenizer's are padding without text.

    Special tokens and EOS ids have no text, so they can never pass for some; other added tokens keep their own. Two ids
    may spell the same bytes. Raises ``ModelError`` if the tokenizer is neither byte-level nor byte-fallback.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{type(tokenizer).__name__} is not a fast tokenizer", param="model", hint="convert it to a tokenizer.json"
        )
    definition = backend.to_str()
    parsed: dict[str, Any] = json.loads(definition)
    byte_level, byte_fallback = _family(parsed)
    spell: Callable[[str], bytes] = _byte_level if byte_level else lambda text: _sentencepiece(text, byte_fallback)
    added = tokenizer.added_tokens_decoder
    tokens: list[bytes | None] = [None] * width
    for text, i in tokenizer.get_vocab().items():
        if i < width and i not in added:
            tokens[i] = spell(text)
    for i, token in added.items():
        if i < width:
            # Byte-level stand-ins are for merged pieces; an added token is matched, and shown, as it is written.
            tokens[i] = token.content.encode() if byte_level else spell(token.content)
    eos = tuple(sorted({i for i in eos_ids if 0 <= i < width}))
    textless = {*(i for i, token in added.items() if token.special), *tokenizer.all_special_ids, *eos}
    special: dict[str, int] = {}
    for i in sorted(i for i in textless if i < width):
        tokens[i] = None
        special[str(tokenizer.convert_ids_to_tokens(i))] = i
    return Vocabulary(tuple(tokens), eos, special, _plain_encoder(parsed), definition)


def _family(definition: dict[str, Any]) -> tuple[bool, bool]:
    """(byte-level, byte fallback) of a tokenizer definition, told by its decoder."""
    decoder = definition.get("decoder") or {}
    kinds = {part.get("type") for part in decoder.get("decoders", [decoder])}
    if "ByteLevel" in kinds:
        return True, False
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return False, "ByteFallback" in kinds
    raise ModelError(
        f"the tokenizer's decoder {sorted(map(str, kinds))} does not tell the exact bytes of a token",
        param="model",
        hint="byte-level BPE and sentencepiece tokenizers are supported",
    )


def _stand_ins() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes bytes (GPT-2), inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    rest = sorted(set(range(256)) - set(printable))
    return table | {chr(256 + n): b for n, b in enumerate(rest)}


_STAND_INS = _stand_ins()


def _byte_level(text: str) -> bytes:
    if all(c in _STAND_INS for c in text):
        return bytes(_STAND_INS[c] for c in text)
    return text.encode()  # not written in stand-ins: the decoder shows it as it is


def _sentencepiece(text: str, byte_fallback: bool) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text) if byte_fallback else None
    return bytes([int(byte[1], 16)]) if byte else text.replace(_WORD_START, " ").encode()


def _plain_encoder(definition: dict[str, Any]) -> Callable[[str], list[int]]:
    """Text to ids as in the middle of a text: nothing added in front, no special token parsed."""
    definition = definition | {"truncation": None, "padding": None}
    # Sentencepiece tokenizers put a space before the first word, which no continuation has.
    definition["normalizer"] = _without_prepend(definition.get("normalizer"))
    for part in _parts(definition.get("pre_tokenizer"), "pretokenizers"):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    backend = Tokenizer.from_str(json.dumps(definition))
    backend.encode_special_tokens = True  # text that looks like a special token is text

    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    return encode


def _parts(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    return [] if component is None else list(component.get(key, [component]))


def _without_prepend(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    kept = [part for part in _parts(normalizer, "normalizers") if part["type"] != "Prepend"]
    return {"type": "Sequence", "normalizers": kept} if kept else None
