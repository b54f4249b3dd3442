"""Every substring of some token sequences, how often it occurs, and what followed it: one automaton, built online."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

STATE_BYTES, EDGE_BYTES = 200, 85  # measured with tracemalloc on 64-bit CPython 3.11, rounded up
CONTEXTS = 4  # lengths of context that are compared at one place


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that are likely to follow, and how many of them should be kept (the sum of their path chances)."""

    tokens: tuple[int, ...]
    expected: float


NOTHING = Continuation((), 0.0)


class SuffixAutomaton:
    """Blumer et al. (1985), for several sequences, with the number of occurrences per state.

    A state is a set of substrings that end at the same places; ``link`` leads to the longest shorter suffix that ends
    at more places, so the chain of links is the list of ever shorter contexts. A sequence of n tokens adds at most 2n
    states and 3n edges. Not thread-safe.
    """

    __slots__ = ("_count", "_edges", "_length", "_link", "_next")

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of the longest string of the state
        self._count = [0]  # places where the strings of the state end
        self._edges = 0

    @property
    def nbytes(self) -> int:
        return len(self._next) * STATE_BYTES + self._edges * EDGE_BYTES

    def extend(self, last: int, token: int) -> int:
        """Add ``token`` behind the prefix of state ``last`` (0: begin a sequence). Returns the new prefix's state."""
        known = self._next[last].get(token)
        if known is not None:
            # Another sequence has this prefix as a substring. Its state must hold no longer string than the prefix.
            state = known if self._length[known] == self._length[last] + 1 else self._split(last, token, known)
        else:
            state = self._new({}, self._length[last] + 1, 0, 0)
            at = last
            while at >= 0 and token not in self._next[at]:
                self._next[at][token] = state
                self._edges += 1
                at = self._link[at]
            if at >= 0:
                below = self._next[at][token]
                fits = self._length[below] == self._length[at] + 1
                self._link[state] = below if fits else self._split(at, token, below)
        suffix = state
        while suffix > 0:  # all suffixes of the prefix end here once more; they are the chain of links
            self._count[suffix] += 1
            suffix = self._link[suffix]
        return state

    def match(self, tail: Seq[int]) -> tuple[int, int]:
        """(state, n): the longest suffix of ``tail`` that occurs anywhere has n tokens."""
        state, n = 0, 0
        for token in tail:
            while state and token not in self._next[state]:
                state = self._link[state]
                n = self._length[state]
            if token in self._next[state]:
                state, n = self._next[state][token], n + 1
        return state, n

    def continuation(
        self, tail: Seq[int], room: int, shortest: int, threshold: float, legal: Callable[[int], bool],
        bonus: Callable[[int], int] = lambda n: 0,
    ) -> Continuation:  # fmt: skip
        """The continuation of ``tail`` that promises most kept tokens, over its longest contexts.

        A context counts from ``shortest`` tokens on; ``bonus(n)`` tokens are added to a context of n. At each step the
        most frequent next token is taken, the first one among those that are ``legal``. Its chance is estimated by
        count / (total + 2 / context): what was seen once after a long context is likely, after a short one a guess. The
        path ends where the product of its chances falls below ``threshold``.
        """
        state, n = self.match(tail)
        best, asked = NOTHING, 0
        while state > 0 and n + bonus(n) >= shortest and asked < CONTEXTS:
            if self._next[state]:
                found = self._walk(state, n + bonus(n), room, threshold, legal)
                best = found if found.expected > best.expected else best
                asked += 1
            state = self._link[state]
            n = self._length[state]
        return best

    def _walk(
        self, state: int, context: int, room: int, threshold: float, legal: Callable[[int], bool]
    ) -> Continuation:
        tokens: list[int] = []
        chance, expected = 1.0, 0.0
        while len(tokens) < room and self._next[state]:
            followers = [(self._count[after], token, after) for token, after in self._next[state].items()]
            total = sum(count for count, _, _ in followers)
            if not tokens:
                followers = [f for f in followers if legal(f[1])]
                if not followers:
                    break
            # Of equal counts the lowest id: the order of arrival must not matter.
            count, token, state = max(followers, key=lambda f: (f[0], -f[1]))
            chance *= count / (total + 2 / (context + len(tokens)))
            if chance < threshold:
                break
            tokens.append(token)
            expected += chance
        return Continuation(tuple(tokens), expected)

    def _new(self, edges: dict[int, int], length: int, link: int, count: int) -> int:
        self._next.append(edges)
        self._length.append(length)
        self._link.append(link)
        self._count.append(count)
        self._edges += len(edges)
        return len(self._next) - 1

    def _split(self, at: int, token: int, state: int) -> int:
        """Give the strings of ``state`` that are reached from ``at`` a state of their own: they end at more places."""
        part = self._new(dict(self._next[state]), self._length[at] + 1, self._link[state], self._count[state])
        self._link[state] = part
        while at >= 0 and self._next[at].get(token) == state:
            self._next[at][token] = part
            at = self._link[at]
        return part
