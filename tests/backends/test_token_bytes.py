"""From tokenizers to exact token bytes, on small tokenizers built here."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from constrained_spec.backends.vocabulary import build_vocabulary
from constrained_spec.errors import ModelError
from constrained_spec.types import Vocabulary

SPACE = "\u2581"


def byte_level() -> PreTrainedTokenizerFast:
    """Every byte, some merges (a space and 'a'; the two halves of an e acute), special and plain added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "</s>", *alphabet, "\u0120a", "\u00c3\u00a9", "ab"]
    merges = [("\u0120", "a"), ("\u00c3", "\u00a9"), ("a", "b")]
    backend = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("<tool\u00e9>", normalized=False), AddedToken("    ", normalized=False)])
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def byte_fallback(prepend: str) -> PreTrainedTokenizerFast:
    """Sentencepiece-like; the dummy space in front comes from the normaliser (Llama 2) or the splitter (newer)."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += [SPACE, "a", "b", f"{SPACE}a", "\u00e9", "<0x41", SPACE * 2]
    merges = [(SPACE, "a"), (SPACE, SPACE)]
    backend = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=merges,
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    if prepend == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    elif prepend == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<unk>", "<s>", "</s>")])
    backend.add_tokens([AddedToken(f"{SPACE}{SPACE}{SPACE}", normalized=False), AddedToken("<b>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def vocabulary(tokenizer: PreTrainedTokenizerFast, extra: int = 5, eos: tuple[int, ...] = ()) -> Vocabulary:
    ids = {tokenizer.eos_token_id, *eos}
    return build_vocabulary(tokenizer, len(tokenizer) + extra, ids)


def test_byte_level_tokens() -> None:
    tokenizer = byte_level()
    v = vocabulary(tokenizer)
    of = tokenizer.convert_tokens_to_ids
    assert v.tokens[of("\u0120a")] == b" a"
    assert v.tokens[of("\u00c3\u00a9")] == "\u00e9".encode()
    assert v.tokens[of("\u00c3")] == b"\xc3"
    assert {t for t in v.tokens if t is not None and len(t) == 1} == {bytes([b]) for b in range(256)}
    # Added text keeps its own spelling: its accent is not a stand-in for a byte.
    assert v.tokens[of("<tool\u00e9>")] == "<tool\u00e9>".encode()
    assert v.tokens[of("    ")] == b"    "
    assert v.special == {"<s>": 0, "</s>": 1, "<|end|>": of("<|end|>")}
    assert all(v.tokens[i] is None for i in v.special.values())
    assert v.tokens[-5:] == (None,) * 5 and v.size == len(tokenizer) + 5
    assert json.loads(v.tokenizer_json or "")["model"]["type"] == "BPE"


def test_every_declared_eos_is_textless() -> None:
    tokenizer = byte_level()
    a = tokenizer.convert_tokens_to_ids("ab")
    v = vocabulary(tokenizer, eos=(a, 10_000))  # an id beyond the logits cannot be drawn
    assert v.eos_ids == (1, a)
    assert v.tokens[a] is None and v.special["ab"] == a


def test_a_tokenizer_wider_than_the_logits_is_cut() -> None:
    tokenizer = byte_level()
    assert build_vocabulary(tokenizer, 100, [1]).size == 100


@pytest.mark.parametrize("prepend", ["normalizer", "metaspace", "none"])
def test_byte_fallback_tokens(prepend: str) -> None:
    tokenizer = byte_fallback(prepend)
    v = vocabulary(tokenizer)
    of = tokenizer.convert_tokens_to_ids
    assert v.tokens[of("<0xF0>")] == b"\xf0"
    assert v.tokens[of(f"{SPACE}a")] == b" a" and v.tokens[of(SPACE * 2)] == b"  "
    assert v.tokens[of(SPACE * 3)] == b"   " and v.tokens[of("<b>")] == b"<b>"
    assert v.tokens[of("<0x41")] == b"<0x41"
    # Two ids for the same byte string: both kept.
    assert v.tokens[of("a")] == b"a" == v.tokens[of("<0x61>")]
    assert v.special == {"<unk>": 0, "<s>": 1, "</s>": 2} and v.eos_ids == (2,)


TEXTS = st.text(st.sampled_from("ab \u00e9\u4e16\U0001f30a\n<>|e/s"), max_size=12)


@given(TEXTS)
def test_byte_level_encoding_spells_the_text(text: str) -> None:
    assert BYTE_LEVEL.bytes_of(BYTE_LEVEL.encode(text)) == text.encode()


@given(TEXTS, st.sampled_from(["normalizer", "metaspace", "none"]))
def test_byte_fallback_encoding_spells_the_text(text: str, prepend: str) -> None:
    v = BYTE_FALLBACK[prepend]
    assert v.bytes_of(v.encode(text)) == text.encode()


BYTE_LEVEL = vocabulary(byte_level())
BYTE_FALLBACK = {kind: vocabulary(byte_fallback(kind)) for kind in ("normalizer", "metaspace", "none")}


def test_text_that_looks_special_is_text() -> None:
    for v in (BYTE_LEVEL, *BYTE_FALLBACK.values()):
        ids = v.encode("a</s>b<s>")
        assert not set(ids) & set(v.special.values())
        assert v.bytes_of(ids) == b"a</s>b<s>"
    assert BYTE_LEVEL.encode("ab\u00e9 a")[-2:] == [
        BYTE_LEVEL.tokens.index("\u00e9".encode()),
        BYTE_LEVEL.tokens.index(b" a"),
    ]


def test_tokenizers_whose_bytes_nobody_knows() -> None:
    backend = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        build_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend), 2, [])
    with pytest.raises(ModelError, match="fast tokenizer"):
        build_vocabulary(object(), 2, [])
