"""A vocabulary small enough for brute force: all bytes, tokens of several bytes, duplicates, specials, two EOS ids."""

from __future__ import annotations

import pytest

from constrained_spec.types import Vocabulary

PIECES = (
    b"ab", b"abc", b"abab", b"aba", b"cus", b"ba", b'{"', b'": ', b'", "', b'"}', b"true", b"false", b"null", b"1,",
    b", ", b": ", b"12", b"123", b".5", b"  ", b"\n", b"\xf0\x9f", b"\x98\x80", b"\xc3\xa9", b"\xa9", b"yes", b"no",
    b"maybe", b"ab", b"e\xcc", b"\xff\xfe", b"-", b"2024", b"-0", b'"a": ', b'{"a": true}', b"[", b"]]",
)  # fmt: skip


def make_vocabulary(pieces: tuple[bytes, ...] = PIECES, padding: int = 5, all_bytes: bool = True) -> Vocabulary:
    singles = [bytes([b]) for b in range(256)] if all_bytes else [bytes([b]) for b in range(32, 127)]
    tokens: tuple[bytes | None, ...] = (None, None, None, None, b"", *singles, *pieces, *[None] * padding)
    by_text: dict[bytes, int] = {}
    for i, token in enumerate(tokens):
        if token:
            by_text.setdefault(token, i)
    longest = max(map(len, by_text))

    def encode(text: str) -> list[int]:
        data, out = text.encode(), []
        while data:
            piece = next(data[:n] for n in range(min(longest, len(data)), 0, -1) if data[:n] in by_text)
            out.append(by_text[piece])
            data = data[len(piece) :]
        return out

    special = {"<|eos|>": 0, "<|end|>": 1, "<|tool|>": 2, "<|pad|>": 3}
    return Vocabulary(tokens, (0, 1), special, encode)


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return make_vocabulary()
