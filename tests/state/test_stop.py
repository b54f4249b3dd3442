"""The stop matcher against a brute force over the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.state.stop import StopState
from constrained_spec.state.text import TextState
from constrained_spec.types import Vocabulary


class Stream:
    """Text and stop state, fed with arbitrary strings as tokens."""

    def __init__(self, pieces: list[bytes], stops: tuple[str, ...], min_tokens: int = 0) -> None:
        self.pieces = pieces
        v = Vocabulary((*pieces, None), (len(pieces),), {}, encode=lambda text: [])
        self.text = TextState(v)
        self.stop = StopState(stops, self.text, min_tokens=min_tokens)

    def take(self, i: int) -> None:
        self.text.advance(i)
        self.stop.advance(i)

    def run(self) -> StopState:
        for i in range(len(self.pieces)):
            self.take(i)
        return self.stop


def brute(pieces: list[bytes], stops: tuple[str, ...], min_tokens: int) -> tuple[int, int] | None:
    """Earliest end among stops completed by token number >= min_tokens; of equal ends the longest."""
    before = ""
    for number in range(1, len(pieces) + 1):
        data = b"".join(pieces[:number])
        text = feed_text(data)
        for end in range(len(before) + 1, len(text) + 1):
            hits = [end - len(s) for s in stops if text[:end].endswith(s)]
            if hits and number >= min_tokens:
                return min(hits), end
        before = text
    return None


def feed_text(data: bytes) -> str:
    state = TextState(Vocabulary((data,), (), {}, encode=lambda text: []))
    state.advance(0)
    return state.text


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """Longest suffix of ``text`` that begins, or is, a stop string."""
    return max(n for n in range(len(text) + 1) if any(s.startswith(text[len(text) - n :]) for s in stops) or n == 0)


letters = st.text(st.sampled_from("ab😀"), min_size=1, max_size=5)
stop_sets = st.lists(letters, min_size=1, max_size=4).map(tuple)


@st.composite
def splits(draw: st.DrawFn) -> list[bytes]:
    """A text over a tiny alphabet, cut anywhere, inside characters too, with invalid bytes now and then."""
    data = draw(st.lists(st.sampled_from([b"a", b"b", "😀".encode(), b"\xff"]), max_size=16))
    joined = b"".join(data)
    cuts = sorted(draw(st.sets(st.integers(0, len(joined)), max_size=10)) | {0, len(joined)})
    return [joined[a:b] for a, b in pairwise(cuts)]


@settings(deadline=None, derandomize=True)
@given(splits(), stop_sets, st.integers(0, 6))
def test_incremental_equals_brute_force(pieces: list[bytes], stops: tuple[str, ...], min_tokens: int) -> None:
    assert Stream(pieces, stops, min_tokens).run().hit == brute(pieces, stops, min_tokens)


@settings(deadline=None, derandomize=True)
@given(splits(), stop_sets, st.integers(0, 6))
def test_shown_text_is_never_retracted_and_hold_back_is_least(
    pieces: list[bytes], stops: tuple[str, ...], min_tokens: int
) -> None:
    stream, shown = Stream(pieces, stops, min_tokens), 0
    for i in range(len(pieces)):
        stream.take(i)
        safe = stream.stop.safe_length
        assert safe >= shown
        shown = safe
        if stream.stop.hit is not None:
            assert safe == stream.stop.hit[0]
        else:
            assert safe == len(stream.text) - held_back(stream.text.text, stops)


@settings(deadline=None, derandomize=True)
@given(splits(), stop_sets, st.integers(0, 4), st.data())
def test_rollback_restores_at_every_cut(
    pieces: list[bytes], stops: tuple[str, ...], min_tokens: int, data: st.DataObject
) -> None:
    stream = Stream(pieces, stops, min_tokens)
    cut = data.draw(st.integers(0, len(pieces)))
    for i in range(cut):
        stream.take(i)
    marks, prints = (stream.text.mark(), stream.stop.mark()), (stream.text.fingerprint(), stream.stop.fingerprint())
    for i in data.draw(st.lists(st.integers(0, len(pieces)), max_size=12)):
        stream.take(i)
    stream.text.rollback(marks[0])
    stream.stop.rollback(marks[1])
    assert (stream.text.fingerprint(), stream.stop.fingerprint()) == prints
    for i in range(cut, len(pieces)):
        stream.take(i)
    assert stream.stop.hit == brute(pieces, stops, min_tokens)
    assert stream.stop.fingerprint() == Stream(pieces, stops, min_tokens).run().fingerprint()


def test_ha_ha_ha() -> None:
    """CASES B27."""
    stream = Stream([b"ha", b" ha", b" ha", b" ha", b" ha"], (" ha ha ha",))
    safe = []
    for i in range(5):
        stream.take(i)
        safe.append((stream.stop.safe_length, stream.stop.hit))
    assert safe == [(2, None), (2, None), (2, None), (2, (2, 11)), (2, (2, 11))]


@pytest.mark.parametrize(
    ("stops", "pieces", "hit"),
    [
        (("abc", "b"), [b"abc"], (1, 2)),  # earliest end, although the other began first
        (("bc", "abc", "c"), [b"xab", b"c"], (1, 4)),  # same end: the longest
        (("aab",), [b"aa", b"ab"], (1, 4)),  # failure link
        (("\n\n",), [b"a\n", b"\nb"], (1, 3)),
        (("stop", "s"), [b"no", b"thing"], None),
        (("😀",), ["😀".encode()[:3], "😀".encode()[3:]], (0, 1)),
        ((), [b"anything"], None),
    ],
)
def test_which_stop_wins(stops: tuple[str, ...], pieces: list[bytes], hit: tuple[int, int] | None) -> None:
    assert Stream(pieces, stops).run().hit == hit


@pytest.mark.parametrize(("min_tokens", "hit"), [(0, (0, 2)), (1, (0, 2)), (2, (2, 4)), (3, (2, 4)), (4, None)])
def test_min_tokens_disarms_what_is_completed_before(min_tokens: int, hit: tuple[int, int] | None) -> None:
    """``ab`` is completed by token 1; begun by token 2 and completed by token 3, it counts for min_tokens 3 too."""
    assert Stream([b"ab", b"a", b"b"], ("ab",), min_tokens).run().hit == hit


def test_overlap_through_a_disarmed_stop() -> None:
    assert Stream([b"haha", b"ha"], ("haha",), min_tokens=2).run().hit == (2, 6)
