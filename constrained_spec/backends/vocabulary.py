"""From a Hugging Face tokenizer to exact token bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from constrained_spec.errors import ModelError
from constrained_spec.types import Vocabulary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def build_vocabulary(tokenizer: PreTrainedTokenizerBase, width: int, eos_ids: Iterable[int]) -> Vocabulary:
    """``width`` is the number of logits; ids beyond the tokenizer's are padding without text.

    Special tokens have no text, so they can never pass for some; other added tokens keep their own spelling.
    Raises ``ModelError`` if the tokenizer is neither byte-level nor byte-fallback.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{type(tokenizer).__name__} is not a fast tokenizer", hint="convert it to the tokenizers format"
        )
    definition = backend.to_str()
    to_bytes = _byte_level if _is_byte_level(json.loads(definition)) else _byte_fallback
    added = tokenizer.added_tokens_decoder
    tokens: list[bytes | None] = [None] * width
    for text, i in tokenizer.get_vocab().items():
        if i >= width:
            raise ModelError(f"token id {i} ({text!r}) lies beyond the model's {width} logits")
        if i not in added:
            tokens[i] = to_bytes(text)
    for i, token in added.items():
        if i < width:
            tokens[i] = None if token.special else token.content.encode()
    return Vocabulary(
        tokens=tuple(tokens),
        eos_ids=tuple(sorted(set(eos_ids))),
        special={token.content: i for i, token in added.items() if token.special and i < width},
        encode=lambda text: list(backend.encode(text, add_special_tokens=False).ids),
        tokenizer_json=definition,
    )


def _is_byte_level(definition: dict[str, Any]) -> bool:
    decoder = definition.get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return False
    raise ModelError(
        f"a tokenizer with decoder {sorted(map(str, kinds))} has no exact token bytes",
        hint="byte-level BPE and byte-fallback tokenizers are supported",
    )


def _unicode_to_byte() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (Radford et al. 2019), inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    table.update({chr(256 + i): b for i, b in enumerate(others)})
    return table


_STAND_INS = _unicode_to_byte()


def _byte_level(text: str) -> bytes | None:
    try:
        return bytes(_STAND_INS[c] for c in text)
    except KeyError:  # not written in the stand-in alphabet: a token that the decoder shows as it is
        return text.encode()


def _byte_fallback(text: str) -> bytes | None:
    byte = _BYTE_TOKEN.match(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("\u2581", " ").encode()
