"""Committed output tokens as text: never a partial character, never a retraction."""

from __future__ import annotations

import codecs
import hashlib
from bisect import bisect_right

from constrained_spec.types import Vocabulary


class TextState:
    """Incremental UTF-8 over the bytes of the output tokens.

    ``text`` holds every character that no later byte can change. Bytes that may still become a character wait in
    ``pending``; bytes that cannot are shown as U+FFFD, as ``bytes.decode(errors="replace")`` shows them. So the text
    after k tokens is a prefix of the text after k + 1, and ``finish`` equals decoding all bytes at once. Ids without
    text (special tokens) add nothing and do not break a character in two.

    A mark is the number of tokens: what the state was after each token is kept, so a rollback cuts three lists.
    """

    __slots__ = ("_ends", "_joined", "_pending", "_pieces", "_tokens")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._pieces: list[str] = []  # characters that each token completed
        self._ends: list[int] = []  # length of the text after each token
        self._pending: list[bytes] = []  # incomplete tail after each token, at most 3 bytes
        self._joined = ("", 0)  # text of the first n pieces, n: a cache, no state

    def __len__(self) -> int:
        """Number of characters in ``text``."""
        return self._ends[-1] if self._ends else 0

    @property
    def pending(self) -> bytes:
        """Bytes at the end that may still become a character."""
        return self._pending[-1] if self._pending else b""

    @property
    def text(self) -> str:
        """All complete characters so far. Joins only what is new since the last reading."""
        text, n = self._joined
        if n < len(self._pieces):
            text += "".join(self._pieces[n:])
            self._joined = (text, len(self._pieces))
        return text

    def since(self, start: int) -> str:
        """``text[start:]``, at the cost of that part alone. 0 <= ``start`` <= ``len(self)``."""
        assert 0 <= start <= len(self)
        first = bisect_right(self._ends, start)
        tail = "".join(self._pieces[first:])
        return tail[start - (self._ends[first - 1] if first else 0) :]

    def finish(self) -> str:
        """The text if nothing more comes: ``pending`` shown as U+FFFD. Changes nothing."""
        return self.text + self.pending.decode("utf-8", errors="replace")

    def mark(self) -> int:
        return len(self._pieces)

    def advance(self, token: int) -> None:
        assert 0 <= token < len(self._tokens)
        data = self.pending + (self._tokens[token] or b"")
        # final=False leaves an incomplete tail undecoded and reports how far it came.
        piece, consumed = codecs.utf_8_decode(data, "replace", False)
        self._pieces.append(piece)
        self._ends.append(len(self) + len(piece))
        self._pending.append(data[consumed:])

    def rollback(self, mark: int) -> None:
        assert 0 <= mark <= len(self._pieces)
        del self._pieces[mark:], self._ends[mark:], self._pending[mark:]
        text, n = self._joined
        if n > mark:
            self._joined = (text[: len(self)], mark)

    def fingerprint(self) -> bytes:
        return hashlib.blake2b(repr((self.text, self.pending)).encode(), digest_size=16).digest()
