"""Prompt lookup: continue as the text continued after the last occurrence of its newest n-gram (Saxena 2023)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq

from constrained_spec.drafters.base import Proposal
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import History


class NgramIndex:
    """Where each n-gram of the committed tokens last ended: participant, O(1) per committed token.

    Keys are tuples of 1..n ids; the value is the index of the token after the latest occurrence *before* the current
    end, so that the tail never matches itself.
    """

    __slots__ = ("_after", "_history", "_indexed", "_undo", "n")

    def __init__(self, history: History, n: int) -> None:
        self.n = n
        self._history = history
        self._after: dict[tuple[int, ...], int] = {}
        self._undo: list[tuple[tuple[int, ...], int | None]] = []
        self._indexed = 0
        for _ in range(len(history)):
            self._index_next()
        # The prompt is never rolled back.
        self._undo.clear()

    def mark(self) -> tuple[int, int]:
        return self._indexed, len(self._undo)

    def advance(self, token: int) -> None:
        # What becomes findable now are the n-grams that end just before this token; it is their continuation.
        self._index_next()

    def rollback(self, mark: tuple[int, int]) -> None:
        self._indexed, length = mark
        while len(self._undo) > length:
            key, before = self._undo.pop()
            if before is None:
                del self._after[key]
            else:
                self._after[key] = before

    def fingerprint(self) -> bytes:
        state = (self._indexed, sorted(self._after.items()))
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()

    def lookup(self, tail: Seq[int]) -> int | None:
        """Index of the token that followed the longest known suffix of ``tail``, or None."""
        for n in range(min(self.n, len(tail)), 0, -1):
            at = self._after.get(tuple(tail[-n:]))
            if at is not None:
                return at
        return None

    def _index_next(self) -> None:
        """Index the n-grams that end just before position ``_indexed``: now they have a continuation."""
        i = self._indexed
        tokens = self._history.tokens
        for n in range(1, min(self.n, i) + 1):
            key = tuple(tokens[i - n : i])
            self._undo.append((key, self._after.get(key)))
            self._after[key] = i
        self._indexed = i + 1


class NgramDrafter:
    """Copies from prompt and output. n-grams of length ``longest`` down to 1; a copied token must be legal."""

    name = "ngram"

    def __init__(self, longest: int = 4) -> None:
        self.longest = longest
        self._indices: dict[int, NgramIndex] = {}  # by id of an open sequence

    def open(self, sequence: Sequence) -> None:
        index = NgramIndex(sequence.history, self.longest)
        self._indices[id(sequence)] = index
        sequence.follow(index)

    def close(self, sequence: Sequence) -> None:
        self._indices.pop(id(sequence), None)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            index = self._indices[id(proposal.sequence)]
            tokens = proposal.sequence.history.tokens  # drafts included
            at = index.lookup(tokens[-self.longest :])
            while at is not None and at < len(tokens) and proposal.room > 0:
                if not proposal.point(tokens[at], self.name):
                    break
                at += 1
