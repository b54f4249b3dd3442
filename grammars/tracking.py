"""The bookkeeping that all matchers share: token history, marks, and EOS, which no engine ever sees."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from constrained_spec.grammars.base import MaskRow, Matcher
from constrained_spec.grammars.tokens import TokenIndex, spell


class TrackingMatcher(Matcher):
    """A matcher whose engine knows text only. Subclasses implement the underscored methods; none of them is called
    after EOS was taken."""

    def __init__(self, index: TokenIndex, ids: Sequence[int] = (), ended: bool = False) -> None:
        self._index = index
        self._ids = list(ids)  # everything consumed, EOS included
        self._ended = ended

    @abstractmethod
    def _text_row(self) -> MaskRow:
        """Legal next tokens without EOS bits. Valid until the next call; not to be written to."""

    def _text_into(self, row: MaskRow) -> None:
        """Overwrite ``row`` with ``_text_row``; for an engine that can write it there at once."""
        row[:] = self._text_row()

    @abstractmethod
    def _consume(self, token: int) -> bool:
        """``advance`` for a token that is not EOS."""

    @abstractmethod
    def _retract(self, count: int) -> None:
        """Forget the last ``count`` consumed tokens."""

    @abstractmethod
    def _accepts(self) -> bool: ...

    @abstractmethod
    def _exhausted(self) -> bool:
        """No text token is legal."""

    @abstractmethod
    def _forced(self) -> bytes: ...

    def mask_into(self, row: MaskRow) -> None:
        if self._ended:
            row.fill(0)
            return
        self._text_into(row)
        if self._accepts():
            row |= self._index.eos_row

    def advance(self, token: int) -> bool:
        vocabulary = self._index.vocabulary
        if self._ended or not 0 <= token < vocabulary.size:
            return False
        if token in vocabulary.eos_ids:
            if not self._accepts():
                return False
            self._ended = True
        elif not self._consume(token):
            return False
        self._ids.append(token)
        return True

    def mark(self) -> int:
        return len(self._ids)

    def rollback(self, mark: int) -> None:
        count = len(self._ids) - mark
        assert mark >= 0 and count >= 0, "a mark is valid until rolled back past"
        if not count:
            return
        if self._ended:
            self._ended = False
            count -= 1
        del self._ids[mark:]
        if count:
            self._retract(count)

    def forced(self) -> bytes:
        return b"" if self._ended else self._forced()

    def forced_tokens(self) -> list[int]:
        return spell(self._index.vocabulary, self.forced())

    def draft_masks(self, tokens: Sequence[int], rows: NDArray[np.int32]) -> int:
        assert rows.shape == (len(tokens) + 1, self._index.vocabulary.mask_words)
        rows.fill(0)
        start = self.mark()
        try:
            self.mask_into(rows[0])
            for n, token in enumerate(tokens):
                if not self.advance(token):
                    return n
                self.mask_into(rows[n + 1])
            return len(tokens)
        finally:
            self.rollback(start)

    @property
    def is_complete(self) -> bool:
        return self._ended or self._accepts()

    @property
    def is_finished(self) -> bool:
        return self._ended or (self._accepts() and self._exhausted())

    @property
    def is_dead(self) -> bool:
        """Nothing is legal, not even to stop, though EOS was not taken."""
        return not self._ended and not self._accepts() and self._exhausted()

    def fingerprint(self) -> bytes:
        row = np.empty(self._index.vocabulary.mask_words, np.int32)
        self.mask_into(row)
        h = hashlib.blake2b(repr((self._ids, self._ended, self.is_complete)).encode(), digest_size=16)
        h.update(row.tobytes())
        return h.digest()
