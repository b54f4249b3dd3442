"""Reasoning blocks, and markers that are special tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from constrained_spec.state.text import TextState
from constrained_spec.types import Vocabulary


class Written(Protocol):
    """Text, and the tokens it came from: a piece of an output, or the whole result."""

    @property
    def text(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]: ...


def held(text: str, marker: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``marker``."""
    for n in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-n:]):
            return n
    return 0


class ReasoningStream:
    """Splits text into (reasoning, the rest). The block is the first thing in the text, or open from the start.

    Line breaks that follow the opening marker or precede the closing one belong to the markers.
    """

    def __init__(self, think: tuple[str, str], opened: bool = False) -> None:
        self._begin, self._end = think
        self._state = "start"
        self._optional = opened  # the prompt opened the block: a model may still repeat the marker
        self._buffer = ""
        self._bare = True  # nothing of the reasoning has come yet
        self.seen = opened

    @property
    def over(self) -> bool:
        """Has the rest begun?"""
        return self._state == "after"

    def feed(self, text: str) -> tuple[str, str]:
        """(more reasoning, more of the rest)."""
        self._buffer += text
        if self._state == "start":
            self._begins()
        thought = self._thinks() if self._state == "inside" else ""
        rest = ""
        if self._state == "after":
            rest, self._buffer = self._buffer, ""
        return thought, rest

    def finish(self) -> tuple[str, str]:
        """What is left when no text follows: an unfinished block is all reasoning."""
        rest, self._buffer = self._buffer, ""
        if self._state == "inside" or (self._state == "start" and self._optional):
            return (rest.strip("\r\n") if self._bare else rest.rstrip("\r\n")), ""
        self._state = "after"
        return "", rest

    def _begins(self) -> None:
        bare = self._buffer.lstrip()
        if bare.startswith(self._begin):
            self._buffer, self._state, self.seen = bare[len(self._begin) :], "inside", True
        elif not self._begin.startswith(bare):
            self._state = "inside" if self._optional else "after"

    def _thinks(self) -> str:
        text, closed, rest = self._buffer.partition(self._end)
        if closed:
            self._buffer, self._state = rest, "after"
            text = text.rstrip("\r\n")
        else:
            keep = held(text, self._end)
            sure = text[: len(text) - keep].rstrip("\r\n")
            self._buffer = text[len(sure) :]
            text = sure
        if self._bare:
            text = text.lstrip("\r\n")
            self._bare = not text
        return text


class MarkedText:
    """The text of pieces, with special tokens of interest written out.

    A special token has no text of its own, yet some of them are markers (``[TOOL_CALLS]``, ``</think>``). Text lags
    behind tokens, as a stop string may begin in it, so a marker waits until all text before it has come.
    """

    def __init__(self, vocabulary: Vocabulary, markers: Collection[str]) -> None:
        self._markers = {vocabulary.special[m]: m for m in markers if m in vocabulary.special}
        self._state = TextState(vocabulary)
        self._waiting: list[tuple[int, str]] = []  # (characters before it, marker)
        self._shown = 0

    def take(self, piece: Written) -> str:
        """The text of ``piece`` with its markers."""
        if not self._markers:
            return piece.text
        for token in piece.tokens:
            self._state.advance(token)
            if token in self._markers:
                self._waiting.append((len(self._state), self._markers[token]))
        start, end = self._shown, self._shown + len(piece.text)
        self._shown = end
        found, at = "", start
        while self._waiting and self._waiting[0][0] <= end:
            place, marker = self._waiting.pop(0)
            found += piece.text[at - start : place - start] + marker
            at = place
        return found + piece.text[at - start :]


def reasoning_tokens(
    tokens: Sequence[int], vocabulary: Vocabulary, think: tuple[str, str] | None, opened: bool = False
) -> int:
    """How many of ``tokens`` belong to the reasoning, its markers included."""
    if think is None:
        return 0
    begin, end = think[0].encode(), think[1].encode()
    names = {vocabulary.special[m]: m.encode() for m in think if m in vocabulary.special}
    ends, data = [], b""
    for token in tokens:
        data += names.get(token) or vocabulary.tokens[token] or b""
        ends.append(len(data))
    if not opened and not data.lstrip().startswith(begin):
        return 0
    close = data.find(end)
    if close < 0:
        return len(ends)
    # The token in which the marker ends is the last one.
    return next(i for i, n in enumerate(ends) if n >= close + len(end)) + 1
