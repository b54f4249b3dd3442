"""Code-point ranges as exact UTF-8 byte ranges: no overlong form, no surrogate, nothing above U+10FFFF (RFC 3629)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]  # inclusive, sorted, disjoint, not adjacent
ByteRanges = tuple[tuple[int, int], ...]  # one inclusive byte range per byte of the sequence

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_LENGTH_ENDS = (0x7F, 0x7FF, 0xFFFF, MAX_CODE_POINT)


def normalise(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, merged, and without surrogates, which no UTF-8 text contains."""
    pieces: list[tuple[int, int]] = []
    for low, high in ranges:
        pieces += [(low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high)]
    merged: list[tuple[int, int]] = []
    for low, high in sorted(p for p in pieces if p[0] <= p[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    gaps, at = [], 0
    for low, high in ranges:
        gaps.append((at, low - 1))
        at = high + 1
    gaps.append((at, MAX_CODE_POINT))
    return normalise(g for g in gaps if g[0] <= g[1])


def count(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)


@lru_cache(maxsize=1024)
def byte_sequences(ranges: Ranges) -> tuple[ByteRanges, ...]:
    """Products of byte ranges whose union is the UTF-8 encoding of ``ranges``."""
    out: list[ByteRanges] = []
    for low, high in ranges:
        start = 0
        for end in _LENGTH_ENDS:
            if low <= end and high >= start:
                _split(max(low, start), min(high, end), out)
            start = end + 1
    return tuple(out)


def _split(low: int, high: int, out: list[ByteRanges]) -> None:
    """``low`` and ``high`` have encodings of one length. Splits until the bytes vary independently of one another."""
    first, last = chr(low).encode(), chr(high).encode()
    for trailing in range(1, len(first)):
        block = (1 << (6 * trailing)) - 1  # code points that share all but the last ``trailing`` bytes
        if low & ~block != high & ~block:
            if low & block:
                _split(low, low | block, out)
                _split((low | block) + 1, high, out)
                return
            if high & block != block:
                _split(low, (high & ~block) - 1, out)
                _split(high & ~block, high, out)
                return
    out.append(tuple(zip(first, last, strict=True)))
