"""What every engine needs to know of a vocabulary, built once per vocabulary and shared."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from constrained_spec.grammars.base import MaskRow
from constrained_spec.grammars.lru import ByteLru
from constrained_spec.grammars.store import levels_of
from constrained_spec.grammars.tries import Level, build_levels
from constrained_spec.types import Vocabulary

Tokenization = Literal["any", "canonical"]

_CACHE_BYTES = 1 << 29


class TokenIndex:
    """A vocabulary's byte trie, its EOS bits, and its llguidance tokenizer (built on first use)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.levels: tuple[Level, ...] = levels_of(vocabulary.digest, vocabulary.size, lambda: _levels(vocabulary))
        ids = [level.ids for level in self.levels]
        self.single_bytes = _bytes_with_tokens(self.levels[0]) if self.levels else frozenset[int]()
        self.text_row = pack(np.concatenate(ids) if ids else np.empty(0, np.int64), vocabulary.size)
        self.eos_row = pack(np.asarray(vocabulary.eos_ids, np.int64), vocabulary.size)
        for row in (self.text_row, self.eos_row):
            row.flags.writeable = False
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        arrays = sum(sum(getattr(level, f).nbytes for f in level.__slots__) for level in self.levels)
        return arrays + 200 * self.vocabulary.size  # measured: llguidance's trie and slices, 150 to 200 bytes a token

    @cached_property
    def _engine(self) -> LLTokenizer:
        return build_ll_tokenizer(self.vocabulary)

    @property
    def engine(self) -> LLTokenizer:
        """llguidance's view of the vocabulary; it cannot be kept on disk, and is not needed by a token automaton."""
        with self._lock:
            return self._engine


def _levels(vocabulary: Vocabulary) -> tuple[Level, ...]:
    eos = set(vocabulary.eos_ids)
    # A token of no bytes would let a model loop for ever without changing the text.
    text = sorted((t, i) for i, t in enumerate(vocabulary.tokens) if t and i not in eos)
    return build_levels([t for t, _ in text], [i for _, i in text])


def _bytes_with_tokens(first: Level) -> frozenset[int]:
    return frozenset(first.byte[np.diff(first.ids_start) > 0].tolist())


_INDICES: ByteLru[str, TokenIndex] = ByteLru(_CACHE_BYTES)


def token_index(vocabulary: Vocabulary) -> TokenIndex:
    """The index of ``vocabulary``, cached by its digest."""

    def make() -> tuple[TokenIndex, int]:
        index = TokenIndex(vocabulary)
        return index, index.nbytes

    return _INDICES.get(vocabulary.digest, make)


def pack(ids: NDArray[np.int64], size: int) -> MaskRow:
    """A packed row of ``size`` bits with exactly ``ids`` set."""
    bits = np.zeros((size + 31) // 32 * 32, np.bool_)
    bits[ids] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


def is_set(row: MaskRow, token: int) -> bool:
    return bool((int(row[token >> 5]) >> (token & 31)) & 1)


def spell(vocabulary: Vocabulary, data: bytes) -> list[int]:
    """The tokeniser's own spelling of ``data``, as far as it stands for exactly these bytes.

    A partial UTF-8 character at the end is left out; so is everything from a token on that is not plain text or that
    a tokeniser adds on its own (a leading space, for one).
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data[: error.start].decode()
    ids: list[int] = []
    at = 0
    for token in vocabulary.encode(text) if text else ():
        piece = vocabulary.tokens[token]
        if not piece or not data.startswith(piece, at):
            break
        ids.append(token)
        at += len(piece)
    return ids


class _Wrapper:
    """The duck type that ``LLTokenizer`` reads a vocabulary from."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        names = {i: name.encode() for name, i in vocabulary.special.items()}
        eos = {i: names.get(i, f"<eos_{i}>".encode()) for i in vocabulary.eos_ids}
        self.special_token_ids: Sequence[int] = sorted(
            {i for i in names if vocabulary.tokens[i] is None} | set(vocabulary.eos_ids)
        )
        special = {i: names.get(i) or eos[i] for i in self.special_token_ids}
        # Without bytes an id is never legal: padding needs no more.
        self.tokens: Sequence[bytes] = [special.get(i, t or b"") for i, t in enumerate(vocabulary.tokens)]
        self.eos_token_id = vocabulary.eos_ids[0]
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


def build_ll_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """From the bytes of the tokens, so that ids and bytes are ours by construction.

    llguidance can also read a serialised tokeniser, but that takes twice as long and gives other special tokens.
    """
    assert vocabulary.eos_ids, "a vocabulary declares at least one EOS id"
    return LLTokenizer(_Wrapper(vocabulary), eos_token=list(vocabulary.eos_ids))  # type: ignore[arg-type]
