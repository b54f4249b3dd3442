"""Where in an expected text an output stands: followed byte by byte, found again after every difference."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from constrained_spec.types import Vocabulary

SURE = 12  # bytes of agreement in a row after which a place is taken for certain
TAIL = 32  # bytes of output that are compared with the expected text
AHEAD, BEHIND = 4096, 1024  # bytes around the place of the difference that are searched
FAR = 24  # bytes of agreement that are looked for anywhere in the text
_BYTE_BITS = 3.0  # what agreement in one more byte is worth: source code and prose have 2 to 4 bits a byte
_BACK_BITS = 4.0  # what a step back costs: an edit moves forward
_LINE_BITS = 6.0  # what the end of a line is worth: edits replace whole lines


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two bytes of the expected text. A value: an earlier one is a mark."""

    at: int  # offset of the byte that is expected next
    lost: int  # offset up to which the output has certainly followed the text
    since: int  # bytes of output since then
    trust: int  # bytes before ``at`` on which output and text agree, at most TAIL
    tail: bytes  # the newest bytes of output, at most TAIL


START = Place(at=0, lost=0, since=0, trust=SURE, tail=b"")


def follow(text: bytes, place: Place, piece: bytes) -> Place:
    """The place after one more ``piece`` of output."""
    if not piece:
        return place
    tail = (place.tail + piece)[-TAIL:]
    same = _common(text, place.at, piece)
    at, sure = place.at + same, place.trust >= SURE
    if same == len(piece):
        trust = min(TAIL, place.trust + same)
        if sure or trust >= SURE:
            return Place(at, at, 0, trust, tail)
        return Place(at, place.lost, place.since + same, trust, tail)
    # What agreed before a difference belongs to the text if the place was certain, else it may be chance.
    lost, since = (at, len(piece) - same) if sure else (place.lost, place.since + len(piece))
    at, trust = _anchor(text, lost, since, tail)
    if trust >= SURE:
        return Place(at, at, 0, trust, tail)
    return Place(at, lost, since, trust, tail)


def _anchor(text: bytes, lost: int, since: int, tail: bytes) -> tuple[int, int]:
    """(place, bytes that agree before it) after the output left ``text`` at ``lost`` and went on for ``since`` bytes.

    Weighs agreement against distance as a code would: n equal bytes say _BYTE_BITS * n, a place d bytes off costs
    log2(1 + d). No distance is charged from ``lost`` (all since was inserted) to ``lost + since`` (all of it replaced
    as much). Of equal agreement the nearest place counts, so two searches per length are enough; a length that occurs
    nowhere ends the search, since no longer one does.
    """
    high = min(len(text), lost + min(since, AHEAD))
    best, found = 0.0, None
    for n in range(1, len(tail) + 1):
        needle = tail[-n:]
        ahead = text.find(needle, max(0, lost - n), high + AHEAD)
        back = text.rfind(needle, max(0, lost - BEHIND), max(0, lost - 1))
        if ahead < 0 and back < 0:
            break
        line = _LINE_BITS if needle.endswith(b"\n") else 0.0
        for start in (ahead, back):
            if start < 0:
                continue
            at = start + n
            off = max(0, at - high, lost - at)
            score = _BYTE_BITS * n + line - math.log2(1 + off) - (_BACK_BITS if at < lost else 0.0)
            if score > best:
                best, found = score, (at, n)
    if found is not None:
        return found
    if len(tail) >= FAR:
        needle = tail[-FAR:]
        start = text.find(needle, lost)
        start = text.rfind(needle, 0, lost) if start < 0 else start
        if start >= 0:
            return start + FAR, FAR
    return _guess(text, lost, tail), 0


def _guess(text: bytes, lost: int, tail: bytes) -> int:
    """Nothing agrees. A word that stands where another was expected replaces it; anything else was inserted."""
    at = lost
    if _is_word(tail[-1]):
        while at < len(text) and _is_word(text[at]):
            at += 1
    return at


def _is_word(byte: int) -> bool:
    return byte == 0x5F or byte >= 0x80 or chr(byte).isalnum()


def _common(text: bytes, at: int, piece: bytes) -> int:
    """Number of bytes on which ``text[at:]`` and ``piece`` agree."""
    if text.startswith(piece, at):
        return len(piece)
    n = 0
    while n < len(piece) and at + n < len(text) and text[at + n] == piece[n]:
        n += 1
    return n


class Alignment:
    """Participant: the place of the committed output in ``text``. The output begins where the text begins."""

    __slots__ = ("_vocabulary", "place", "text")

    def __init__(self, text: bytes, vocabulary: Vocabulary) -> None:
        self.text = text
        self.place = START
        self._vocabulary = vocabulary

    def mark(self) -> Place:
        return self.place

    def advance(self, token: int) -> None:
        self.place = self.after(self.place, token)

    def rollback(self, mark: Place) -> None:
        self.place = mark

    def fingerprint(self) -> bytes:
        return hashlib.blake2b(repr(self.place).encode(), digest_size=16).digest()

    def after(self, place: Place, token: int) -> Place:
        """Where ``token`` leads from ``place``; an id without text leads nowhere."""
        return follow(self.text, place, self._vocabulary.tokens[token] or b"")
