r"""JSON's ``\uXXXX`` escapes of characters beyond ASCII, as ``json.dumps`` spells them: lower case, surrogate pairs."""

from __future__ import annotations

import json

from constrained_spec.grammars.utf8 import Ranges, normalise

HEX = b"0123456789abcdef"
LONGEST = 12  # bytes of a surrogate pair
ILLEGAL = b"\xff"  # what no text holds
_ONE = 6  # bytes of an escape of four digits
_LEADS, _TRAILS = (0xD800, 0xDBFF), (0xDC00, 0xDFFF)


def escaped(text: str) -> bytes:
    """``text`` with every character beyond ASCII as its escape."""
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text).encode()


def code_points(partial: bytes) -> Ranges:
    """Characters beyond ASCII whose escape starts with ``partial``, a beginning of an escape shorter than one."""
    if len(partial) <= _ONE:
        low, high = _span(partial[2:])
        first, last = max(low, _LEADS[0]), min(high, _LEADS[1])
        pairs = [(_pair(first, _TRAILS[0]), _pair(last, _TRAILS[1]))] if first <= last else []
        return normalise([(max(low, 0x80), high), *pairs])
    low, high = _span(partial[_ONE + 2 :])
    first, last = max(low, _TRAILS[0]), min(high, _TRAILS[1])
    lead = int(partial[2:_ONE], 16)
    return normalise([(_pair(lead, first), _pair(lead, last))] if first <= last else [])


def resolve(read: bytes) -> bytes | None:
    r"""What ``read`` is in the text without escapes; None while it may become an escape of more bytes.

    ``read`` is one byte, or a beginning of an escape for which this said None and one byte more. Every other escape
    (``\n``, ``\u001f``) stands for itself; ``ILLEGAL`` for what is none.
    """
    size, last = len(read), read[-1:]
    if read[:1] != b"\\":
        return read
    place = (size - 1) % _ONE  # in the escape, or in the second of a pair
    if place < 2:
        if last == (b"\\", b"u")[place]:
            return None
        return read if size == 2 else ILLEGAL
    if last not in HEX:
        return read if size <= _ONE else ILLEGAL
    if place < _ONE - 1:
        return None
    return _character(read)


def is_ascii_escape(partial: bytes) -> bool:
    r"""Whether ``partial`` can still become an escape of an ASCII character, ``\n`` and the like included."""
    return len(partial) < _ONE and _span(partial[2:])[0] < 0x80


def missing(partial: bytes) -> tuple[bytes, int]:
    """What has to follow ``partial`` up to the end of this escape: these bytes, then so many digits."""
    place = len(partial) % _ONE
    return (b"\\u", b"u", b"")[min(place, 2)], min(4, _ONE - place)


def _character(read: bytes) -> bytes | None:
    code = int(read[-4:], 16)
    if len(read) == LONGEST:
        inside = _TRAILS[0] <= code <= _TRAILS[1]
        return chr(_pair(int(read[2:_ONE], 16), code)).encode() if inside else ILLEGAL
    if _LEADS[0] <= code <= _LEADS[1]:
        return None
    if _TRAILS[0] <= code <= _TRAILS[1]:
        return ILLEGAL
    return read if code < 0x80 else chr(code).encode()


def _span(digits: bytes) -> tuple[int, int]:
    """The least and the greatest number of four hexadecimal digits that starts with ``digits``."""
    text = digits.decode()
    return int(text.ljust(4, "0"), 16), int(text.ljust(4, "f"), 16)


def _pair(lead: int, trail: int) -> int:
    return 0x10000 + ((lead - _LEADS[0]) << 10) + (trail - _TRAILS[0])
