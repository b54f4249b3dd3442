"""How many tokens away from acceptance the states of a token automaton are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from constrained_spec.grammars.automaton import ByteAutomaton
from constrained_spec.grammars.base import MaskRow
from constrained_spec.grammars.lru import ByteLru
from constrained_spec.grammars.tokens import pack
from constrained_spec.grammars.tries import Ints, expand

if TYPE_CHECKING:
    from constrained_spec.grammars.dfa import DfaGrammar

FAR = 1 << 40  # no completion is known
MAX_TABLE_STATES = 400  # token-reachable states up to which every distance is computed at once
MAX_TABLE_TOKENS = 1_500_000  # and legal tokens in all of their masks: a second at the most
MAX_SEARCH_STATES = 50  # states that one search for a single distance looks at
_CACHE_BYTES = 1 << 25


class TokenDistances:
    """Distances over the tokens of ``grammar``.

    Exact where at most ``MAX_TABLE_STATES`` states with ``MAX_TABLE_TOKENS`` ways out can be reached. In a larger
    automaton a distance is exact if a search of ``MAX_SEARCH_STATES`` states finds it, else the number of bytes: one
    token each, an upper bound. Whatever ``shortest`` says can be kept to: some token leads to a state that it says is
    one less away.
    """

    def __init__(self, grammar: DfaGrammar) -> None:
        self._grammar = grammar
        automaton = grammar.automaton
        # A canonical mask may hold no single bytes, so there the number of bytes bounds nothing.
        self._most = (
            np.full(automaton.size, FAR) if grammar.canonical else byte_distances(automaton, grammar.index.single_bytes)
        )
        longest = max(len(grammar.index.levels), 1)
        self._least = -(-byte_distances(automaton, frozenset(range(256))) // longest)
        self._ends: ByteLru[int, tuple[Ints, int]] = ByteLru(_CACHE_BYTES)
        self._found: dict[int, int] = {}
        self._rows: ByteLru[tuple[int, int], MaskRow] = ByteLru(_CACHE_BYTES)
        self._table = self._exact_table()

    def shortest(self, state: int) -> int:
        """Tokens of the shortest completion; ``FAR`` if none is known."""
        if self._table is not None:
            return int(self._table[state])
        if state not in self._found:
            self._found[state] = self._search(state)
        return self._found[state]

    def closing_row(self, state: int, budget: int) -> MaskRow:
        """See ``DfaGrammar.closing_row``. Not to be written to."""
        budget = max(budget, 0)

        def make() -> tuple[MaskRow, int]:
            ids, ends = self._grammar.steps(state)
            distinct, where = np.unique(ends, return_inverse=True)
            fits = np.array([self._fits(end, budget - 2) for end in distinct.tolist()], np.bool_)
            row = pack(ids[fits[where.reshape(-1)]], self._grammar.index.vocabulary.size)
            row.flags.writeable = False
            return row, row.nbytes + 200

        return self._rows.get((state, budget), make)

    def _fits(self, state: int, tokens: int) -> bool:
        if self._most[state] <= tokens:
            return True
        return bool(self._least[state] <= tokens) and self.shortest(state) <= tokens

    def _successors(self, state: int) -> tuple[Ints, int]:
        """(the states that tokens lead to, how many tokens there are)."""

        def make() -> tuple[tuple[Ints, int], int]:
            reached = self._grammar.steps(state)[1]
            ends = np.unique(reached)
            return (ends, len(reached)), ends.nbytes + 200

        return self._ends.get(state, make)

    def _exact_table(self) -> NDArray[np.int64] | None:
        """The distance of every state that tokens reach; None if they are too many."""
        start, accepting = self._grammar.automaton.initial, self._grammar.automaton.accepting
        order, seen, work = [start], {start}, 0
        sources: list[Ints] = []
        targets: list[Ints] = []
        for state in order:  # grows while it is walked
            ends, count = self._successors(state)
            work += count
            sources.append(np.full(len(ends), state, np.int64))
            targets.append(ends)
            for end in ends.tolist():
                if end not in seen:
                    seen.add(end)
                    order.append(end)
            if len(order) > MAX_TABLE_STATES or work > MAX_TABLE_TOKENS:
                return None
        return _backwards(np.concatenate(sources), np.concatenate(targets), accepting)

    def _search(self, state: int) -> int:
        """Breadth first, by whole levels: from the next state of a shortest way it looks at fewer states than from
        ``state``, so what it finds here it finds there, one less."""
        accepting = self._grammar.automaton.accepting
        most = int(self._most[state])
        if accepting[state]:
            return 0
        seen, level, distance = {state}, [state], 0
        while level and distance + 1 < most and len(seen) <= MAX_SEARCH_STATES:
            distance += 1
            ends = np.unique(np.concatenate([self._successors(at)[0] for at in level]))
            if accepting[ends].any():
                return distance
            level = [e for e in ends.tolist() if e not in seen]
            seen.update(level)
        return most


def byte_distances(automaton: ByteAutomaton, allowed: frozenset[int]) -> NDArray[np.int64]:
    """[size] bytes to acceptance over the ``allowed`` bytes, ``FAR`` where there is no way."""
    sources, targets = automaton.edges(allowed)
    return _backwards(sources, targets, automaton.accepting)


def _backwards(sources: Ints, targets: Ints, accepting: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[size] edges to an accepting state, ``FAR`` where there is no way."""
    distance = np.where(accepting, 0, FAR).astype(np.int64)
    order = np.argsort(targets, kind="stable")
    starts = np.searchsorted(targets[order], np.arange(len(accepting) + 1)).astype(np.int64)
    for steps, new in _layers(sources[order], starts, np.flatnonzero(accepting), distance):
        distance[new] = steps
    return distance


def _layers(sources: Ints, starts: Ints, new: Ints, distance: NDArray[np.int64]) -> Iterator[tuple[int, Ints]]:
    steps = 0
    while len(new):
        steps += 1
        members, _ = expand(starts, new)
        new = np.unique(sources[members])
        new = new[distance[new] == FAR]
        yield steps, new
