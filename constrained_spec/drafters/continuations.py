"""What followed each n-gram of a sequence: the memory of a drafter that guesses several continuations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq

from constrained_spec.types import History


class ContinuationIndex:
    """The latest different tokens behind each n-gram of the committed tokens: participant, O(1) per token.

    Keys are tuples of 1..n ids; the value are the last ``kept`` different ids that followed, the newest first.
    """

    __slots__ = ("_followers", "_history", "_length", "_undo", "kept", "n")

    def __init__(self, history: History, n: int, kept: int) -> None:
        self.n, self.kept = n, kept
        self._history = history
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._undo: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._length = 0
        for token in list(history.tokens):
            self.advance(token)
        # The prompt is never rolled back.
        self._undo.clear()

    def mark(self) -> tuple[int, int]:
        return self._length, len(self._undo)

    def advance(self, token: int) -> None:
        # The history holds the tokens before this one; whether it holds this one already does not matter.
        tokens, i = self._history.tokens, self._length
        for n in range(1, min(self.n, i) + 1):
            key = tuple(tokens[i - n : i])
            before = self._followers.get(key, ())
            self._undo.append((key, before))
            self._followers[key] = (token, *(t for t in before if t != token))[: self.kept]
        self._length = i + 1

    def rollback(self, mark: tuple[int, int]) -> None:
        self._length, length = mark
        while len(self._undo) > length:
            key, before = self._undo.pop()
            if before:
                self._followers[key] = before
            else:
                del self._followers[key]

    def fingerprint(self) -> bytes:
        state = (self._length, sorted(self._followers.items()))
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()

    def after(self, tail: Seq[int], shortest: int = 1) -> list[tuple[int, int]]:
        """(token, length of the n-gram) of what followed the endings of ``tail``: longest first, then newest first."""
        found: dict[int, int] = {}
        for n in range(min(self.n, len(tail)), shortest - 1, -1):
            for token in self._followers.get(tuple(tail[-n:]), ()):
                found.setdefault(token, n)
        return list(found.items())
