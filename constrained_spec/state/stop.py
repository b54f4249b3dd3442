"""Stop strings over the text stream: where the first one ends, and how much text is safe to show before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from constrained_spec.state.text import TextState


@dataclass(frozen=True, slots=True)
class StopMark:
    """Everything in a ``StopState`` that a token can change."""

    tokens: int  # advanced so far
    scanned: int  # characters read
    node: int  # automaton state: the longest suffix of the text that begins some stop string
    hit: tuple[int, int] | None


class StopState:
    """Watches the characters that each token completes. Advance the ``TextState`` first, then this.

    The stop that ends first wins; among those that end at the same character, the longest. Only one that is completed
    by output token number ``min_tokens`` or a later one counts: one begun before and completed after counts, one
    completed before does not, and the search goes on through it. ``min_tokens`` 0 or 1 let every stop count.

    Aho and Corasick (1975) with failure links: O(new characters) amortised, whatever the number of stop strings.
    """

    __slots__ = ("_automaton", "_min_tokens", "_state", "_text")

    def __init__(self, stops: tuple[str, ...], text: TextState, *, min_tokens: int = 0) -> None:
        self._automaton = _Automaton(stops)
        self._text = text
        self._min_tokens = min_tokens
        self._state = StopMark(0, len(text), 0, None)

    @property
    def hit(self) -> tuple[int, int] | None:
        """Character offsets (start, end) of the stop string in the text, or None."""
        return self._state.hit

    @property
    def safe_length(self) -> int:
        """How many characters may be shown now: none that belongs to the stop or could still begin one.

        It never shrinks while tokens advance. At the end of a request without a hit, the whole text may be shown.
        """
        if self._state.hit is not None:
            return self._state.hit[0]
        return self._state.scanned - self._automaton.depth[self._state.node]

    def mark(self) -> StopMark:
        return self._state

    def advance(self, token: int) -> None:
        """``token`` is the one that the text state has just taken."""
        s = self._state
        tokens = s.tokens + 1
        end = len(self._text)
        if s.hit is not None or end == s.scanned or not self._automaton.stops:
            self._state = StopMark(tokens, end, s.node, s.hit)
            return
        node, hit = s.node, None
        for i, character in enumerate(self._text.since(s.scanned), s.scanned + 1):
            node = self._automaton.step(node, character)
            length = self._automaton.longest[node]
            if length and tokens >= self._min_tokens:
                hit = (i - length, i)
                break
        self._state = StopMark(tokens, end, node, hit)

    def rollback(self, mark: StopMark) -> None:
        assert mark.tokens <= self._state.tokens
        self._state = mark

    def fingerprint(self) -> bytes:
        return hashlib.blake2b(repr(self._state).encode(), digest_size=16).digest()


class _Automaton:
    """Nodes are the prefixes of the stop strings; node 0 is the empty one."""

    __slots__ = ("_fail", "_next", "depth", "longest", "stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "a stop string is not empty"
        self.stops = stops
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        self.longest = [0]  # length of the longest stop string that ends at this node, 0 for none
        for stop in stops:
            node = 0
            for character in stop:
                if character not in self._next[node]:
                    self._next[node][character] = len(self._next)
                    self._next.append({})
                    self._fail.append(0)
                    self.depth.append(self.depth[node] + 1)
                    self.longest.append(0)
                node = self._next[node][character]
            self.longest[node] = len(stop)
        # Breadth first: a failure link leads to a shorter prefix, which is then complete already.
        queue = list(self._next[0].values())
        for node in queue:
            for character, child in self._next[node].items():
                self._fail[child] = self.step(self._fail[node], character)
                self.longest[child] = self.longest[child] or self.longest[self._fail[child]]
                queue.append(child)

    def step(self, node: int, character: str) -> int:
        while node and character not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(character, 0)
