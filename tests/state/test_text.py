"""Text of committed tokens against decoding all bytes at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.state.text import TextState
from constrained_spec.types import Vocabulary

# Bytes where UTF-8 goes wrong: lone continuations, overlong leads, surrogates, beyond U+10FFFF, truncated emoji.
TRICKY = [b"\x80", b"\xbf", b"\xc0", b"\xc2", b"\xe0", b"\xed", b"\xa0", b"\x9f", b"\xf0", b"\xf4", b"\x90", b"\xff"]
PIECES = [*TRICKY, b"a", b" ", b"", "é".encode(), "語".encode(), "😀".encode(), "😀".encode()[:2], "😀".encode()[2:]]


def vocabulary(tokens: list[bytes | None]) -> Vocabulary:
    return Vocabulary(tuple(tokens), (0,), {}, encode=lambda text: [])


VOCABULARY = vocabulary([None, *PIECES])
streams = st.lists(st.integers(0, VOCABULARY.size - 1), max_size=30)


def feed(ids: list[int], v: Vocabulary = VOCABULARY) -> TextState:
    state = TextState(v)
    for token in ids:
        state.advance(token)
    return state


@settings(deadline=None, derandomize=True)
@given(streams)
def test_finish_equals_decoding_at_once_and_text_only_grows(ids: list[int]) -> None:
    state, shown = TextState(VOCABULARY), ""
    for i, token in enumerate(ids):
        state.advance(token)
        data = VOCABULARY.bytes_of(ids[: i + 1])
        assert state.text.startswith(shown)
        assert state.finish() == data.decode("utf-8", errors="replace")
        assert len(state) == len(state.text)
        assert len(state.pending) <= 3
        assert data.endswith(state.pending)
        shown = state.text


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=24), st.lists(st.integers(1, 5), min_size=24, max_size=24))
def test_any_bytes_under_any_split(data: bytes, cuts: list[int]) -> None:
    parts: list[bytes | None] = []
    while data[sum(map(len, filter(None, parts))) :]:
        at = sum(map(len, filter(None, parts)))
        parts.append(data[at : at + cuts[len(parts)]])
    state = feed(list(range(len(parts))), vocabulary([*parts, None]))
    assert state.finish() == data.decode("utf-8", errors="replace")


@settings(deadline=None, derandomize=True)
@given(streams, st.data())
def test_since_is_a_slice(ids: list[int], data: st.DataObject) -> None:
    state = feed(ids)
    start = data.draw(st.integers(0, len(state)))
    assert state.since(start) == state.text[start:]


@settings(deadline=None, derandomize=True)
@given(streams, streams, streams, st.booleans())
def test_rollback_restores_at_every_cut(before: list[int], lost: list[int], after: list[int], read: bool) -> None:
    state = feed(before)
    mark, fingerprint = state.mark(), state.fingerprint()
    for token in lost:
        state.advance(token)
        if read:
            assert state.text is not None  # fills the cache that the rollback must cut
    state.rollback(mark)
    assert state.fingerprint() == fingerprint
    assert state.mark() == mark
    for token in after:
        state.advance(token)
    assert state.finish() == feed(before + after).finish()
    assert state.fingerprint() == feed(before + after).fingerprint()


def test_emoji_over_four_tokens_appears_whole() -> None:
    parts = [bytes([b]) for b in "😀".encode()]
    v = vocabulary([b"x", *parts])
    state = TextState(v)
    seen = []
    for token in [0, 1, 2, 3, 4, 0]:
        state.advance(token)
        seen.append((state.text, state.pending))
    assert seen == [
        ("x", b""),
        ("x", b"\xf0"),
        ("x", b"\xf0\x9f"),
        ("x", b"\xf0\x9f\x98"),
        ("x😀", b""),
        ("x😀x", b""),
    ]


@pytest.mark.parametrize(
    ("tokens", "text", "pending"),
    [
        ([b"\xf0\x9f", b"a"], "\ufffda", b""),  # one replacement for a truncated character, once it is lost
        ([b"\xff"], "\ufffd", b""),  # never the start of anything: shown at once
        ([b"\xc0\xaf"], "\ufffd\ufffd", b""),  # overlong
        ([b"\xf4\x90"], "\ufffd\ufffd", b""),  # beyond U+10FFFF
        ([b"\xe2\x82"], "", b"\xe2\x82"),
        ([None, None], "", b""),
    ],
)
def test_invalid_bytes(tokens: list[bytes | None], text: str, pending: bytes) -> None:
    state = feed(list(range(len(tokens))), vocabulary(tokens))
    assert (state.text, state.pending) == (text, pending)


def test_a_special_token_does_not_split_a_character() -> None:
    v = vocabulary([None, b"\xc3", b"\xa9"])
    assert feed([1, 0, 2], v).text == "é"


def test_long_outputs_keep_marks_cheap() -> None:
    v = vocabulary([b"ab ", "é".encode()[:1], "é".encode()[1:]])
    state = TextState(v)
    marks = []
    for i in range(10_000):
        marks.append(state.mark())
        state.advance(i % 3)
    assert state.text == ("ab é" * 3334)[: len(state)]
    state.rollback(marks[1])
    assert state.text == "ab "
