"""Prompt lookup: continue as the text continued after the last occurrence of its newest n-gram (Saxena 2023)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from constrained_spec.drafters.appetite import Appetite
from constrained_spec.drafters.base import Proposal
from constrained_spec.grammars.tokens import spell
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import History

MIN_BYTES, MAX_BYTES = 2, 32  # of an ending of the text that is looked for
COPIED_BYTES = 24  # of text behind it, at most
_NO_TEXT = b"\xff"


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

    def matches(self, tail: Seq[int], shortest: int = 1) -> Iterator[int]:
        """Indices of the tokens that followed the known suffixes of ``tail``, of the longest suffix first."""
        for n in range(min(self.n, len(tail)), shortest - 1, -1):
            at = self._after.get(tuple(tail[-n:]))
            if at is not None:
                yield at

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
    """Copies from prompt and output: by n-grams of tokens, of length ``longest`` down to 1, and where none is known by
    the text itself, whose tokens often differ from place to place (" Ada" in a sentence, "Ad" "a" in quotes).

    A copied token must be legal; where the longest match continues illegally, shorter ones are asked.
    """

    name = "ngram"

    def __init__(self, longest: int = 4) -> None:
        self.longest = longest
        self._indices: dict[int, NgramIndex] = {}  # by id of an open sequence
        self._prompts: dict[int, bytes] = {}
        self._appetites: dict[int, Appetite] = {}

    def open(self, sequence: Sequence) -> None:
        """May be called again by another drafter that shares this one."""
        if id(sequence) not in self._indices:
            index = NgramIndex(sequence.history, self.longest)
            self._indices[id(sequence)] = index
            self._prompts[id(sequence)] = _text(sequence, 0, sequence.history.prompt_length)
            self._appetites[id(sequence)] = Appetite(self.name)
            sequence.follow(index)

    def close(self, sequence: Sequence) -> None:
        self._indices.pop(id(sequence), None)
        self._prompts.pop(id(sequence), None)
        self._appetites.pop(id(sequence), None)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            tokens = proposal.sequence.history.tokens  # drafts included
            left = self._appetites[id(proposal.sequence)].left(proposal)
            at = self.find(proposal) if left else None
            if at is None:
                self._copy_text(proposal, left)
                continue
            end = at + left
            while at < min(end, len(tokens)) and proposal.room > 0 and proposal.point(tokens[at], self.name):
                at += 1

    def find(self, proposal: Proposal, shortest: int = 1) -> int | None:
        """Index in the history of the token to copy here: legal, and after the longest n-gram that offers one."""
        if proposal.room <= 0:
            return None
        tokens = proposal.sequence.history.tokens
        matches = self._indices[id(proposal.sequence)].matches(tokens[-self.longest :], shortest)
        return next((at for at in matches if proposal.tx.is_legal(tokens[at])), None)

    def _copy_text(self, proposal: Proposal, left: int) -> None:
        """Continue as the text continued after the latest earlier occurrence of its longest known ending."""
        if not left:
            return
        s = proposal.sequence
        text = self._prompts[id(s)] + _text(s, s.history.prompt_length, len(s.history))
        end = _continuation(text)
        if end is None:
            return
        copied = text[end : end + COPIED_BYTES].partition(_NO_TEXT)[0]
        ids = spell(s.vocabulary, copied)
        # What was cut in the middle of a word is no token of that word.
        for token in (ids[:-1] if len(copied) == COPIED_BYTES else ids)[:left]:
            if proposal.room <= 0 or not proposal.point(token, self.name):
                break


def _text(sequence: Sequence, start: int, stop: int) -> bytes:
    """Bytes of a part of the history; what has no text is a byte that UTF-8 never contains."""
    spelled = sequence.vocabulary.tokens
    return b"".join([spelled[i] or _NO_TEXT for i in sequence.history.tokens[start:stop]])


def _continuation(text: bytes) -> int | None:
    """Where the text goes on after the latest earlier occurrence of its longest ending, of at least two bytes."""
    found, length = None, MIN_BYTES
    while length <= min(MAX_BYTES, len(text) - 1):
        start = text.rfind(text[-length:], 0, len(text) - 1)
        if start < 0:
            break
        found = start + length
        # The bytes before the two ends may agree further; the next search asks for one byte more than that.
        while length <= MAX_BYTES and start > 0 and text[start - 1] == text[-length - 1]:
            start, length = start - 1, length + 1
        length += 1
    return found
