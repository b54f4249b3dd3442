"""The text of a sequence in the tokens of another model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from constrained_spec.drafters.respell import Speller
from constrained_spec.types import Vocabulary

CHUNK = 256  # bytes after which a space or a line's end closes a chunk
HARD = 1024  # bytes after which a chunk is closed wherever it stands


class DraftContext:
    """Participant: committed target tokens, re-encoded for a draft model.

    The text is cut into chunks at places that depend on the text alone, and each chunk is encoded on its own: what is
    behind the last cut is all that a new token can change. The result is a function of the tokens, not of the rounds in
    which they came. An id without text closes a chunk; it stands in the draft's context if the draft model has a
    special token of the same name, otherwise it is left out. ``prefix`` are ids that the draft model expects in front
    of every text (its BOS); one that the target's prompt brings as well is not doubled.
    """

    __slots__ = ("_closed", "_open", "_prefix", "_special", "_speller", "_target")

    def __init__(self, target: Vocabulary, speller: Speller, prefix: Seq[int]) -> None:
        self._target = target
        self._speller = speller
        self._prefix = list(prefix)
        self._special = common_special(target, speller.vocabulary)
        self._closed = list(prefix)  # draft ids of the closed chunks
        self._open = b""

    def mark(self) -> tuple[int, bytes]:
        return len(self._closed), self._open

    def advance(self, token: int) -> None:
        ids, self._open = self._step(self._open, token, len(self._closed) == len(self._prefix))
        self._closed += ids

    def rollback(self, mark: tuple[int, bytes]) -> None:
        length, self._open = mark
        del self._closed[length:]

    def fingerprint(self) -> bytes:
        state = (self._closed, self._open)
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()

    def tokens(self, drafts: Iterable[int] = ()) -> list[int]:
        """Draft ids of the committed text and, behind it, of target tokens that are not committed. Changes nothing."""
        closed, rest = list(self._closed), self._open
        for token in drafts:
            ids, rest = self._step(rest, token, len(closed) == len(self._prefix))
            closed += ids
        return closed + self._speller.loose(rest)

    def _step(self, rest: bytes, token: int, first: bool) -> tuple[list[int], bytes]:
        """(ids of the chunks that ``token`` closes, the open chunk behind them)."""
        piece = self._target.tokens[token] if 0 <= token < self._target.size else None
        if piece is None:
            ids = self._speller.loose(rest)
            special = self._special.get(token)
            doubled = first and not rest and self._prefix[-1:] == [special]
            return (ids if special is None or doubled else [*ids, special]), b""
        ids, rest = [], rest + piece
        while (cut := _cut(rest)) is not None:
            ids += self._speller.loose(rest[:cut])
            rest = rest[cut:]
        return ids, rest


def common_special(target: Vocabulary, draft: Vocabulary) -> dict[int, int]:
    """Target id -> draft id of the tokens without text that mean the same: equal names, and the end of the text."""
    found = {
        i: draft.special[name]
        for name, i in target.special.items()
        if name in draft.special and target.tokens[i] is None and draft.tokens[draft.special[name]] is None
    }
    if draft.eos_ids:
        for eos in target.eos_ids:
            found.setdefault(eos, draft.eos_ids[0])
    return found


def _cut(data: bytes) -> int | None:
    """Where the first chunk of ``data`` ends, if that is known already: more text never moves it."""
    window = data[CHUNK:HARD]
    found = [at for at in (window.find(b" "), window.find(b"\n")) if at >= 0]
    if found:
        return CHUNK + min(found)
    if len(data) <= HARD:
        return None
    cut = HARD
    while cut > HARD - 4 and 0x80 <= data[cut] < 0xC0:  # not in the middle of a character
        cut -= 1
    return cut
