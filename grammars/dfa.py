"""Our token automaton: a byte automaton seen through a vocabulary. Its state is one integer.

The mask of a state is found by walking the vocabulary's byte trie level by level, all live nodes of a level in one
numpy step, and kept. Rollback truncates a list; fork copies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from constrained_spec.errors import UnsatisfiableError
from constrained_spec.grammars.automaton import DEAD, ByteAutomaton
from constrained_spec.grammars.base import Grammar, MaskRow
from constrained_spec.grammars.distances import TokenDistances
from constrained_spec.grammars.lru import ByteLru
from constrained_spec.grammars.tokens import TokenIndex, Tokenization, is_set, pack, spell
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.grammars.tries import Ints, expand

_MASK_CACHE_BYTES = 1 << 25
_MAX_FORCED_BYTES = 4096
_MAX_DOUBTFUL_STATES = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """One state through the vocabulary."""

    row: MaskRow
    exhausted: bool


class DfaGrammar(Grammar):
    """``automaton`` over ``index``'s tokens.

    Raises ``UnsatisfiableError`` if no token sequence leads to acceptance. A vocabulary with all its bytes can spell
    everything; with some of them missing, states that only those bytes leave are never entered (unless there are
    thousands of such states: then a walk may end in a ``DeadEndError``).
    """

    def __init__(
        self, automaton: ByteAutomaton, index: TokenIndex, key: str, what: str, tokenization: Tokenization = "any"
    ) -> None:
        self.automaton = automaton
        self.index = index
        self.canonical = tokenization == "canonical"
        self._key = key
        self._views: ByteLru[int, _View] = ByteLru(_MASK_CACHE_BYTES)
        # None: every state can be finished, since every byte of the language is a token.
        self._good: NDArray[np.bool_] | None = None
        if not automaton.alphabet() <= index.single_bytes:
            self._good = self._spellable()
            if not self._good[automaton.initial]:
                raise UnsatisfiableError(f"no token sequence of this vocabulary spells a text that the {what} allows")

    @property
    def key(self) -> str:
        return self._key

    @property
    def nbytes(self) -> int:
        return self.automaton.nbytes + _MASK_CACHE_BYTES // 8  # the mask cache is rarely full

    def matcher(self) -> DfaMatcher:
        return DfaMatcher(self)

    def view(self, state: int) -> _View:
        def make() -> tuple[_View, int]:
            ids, _ = self.steps(state)
            row = pack(ids, self.index.vocabulary.size)
            row.flags.writeable = False
            return _View(row, not len(ids)), row.nbytes + 200

        return self._views.get(state, make)

    def steps(self, state: int) -> tuple[Ints, Ints]:
        """(legal text tokens of ``state``, the states they lead to), not cached."""
        ids, ends = self._walk(state)
        if self._good is not None:
            good = self._good[ends]
            ids, ends = ids[good], ends[good]
        if self.canonical:
            kept = np.isin(ids, self._canonical(state, ids))
            ids, ends = ids[kept], ends[kept]
        return ids, ends

    def shortest(self, state: int) -> int:
        """How many tokens, EOS not counted, the shortest completion from ``state`` takes (see ``distances``)."""
        return self._distances.shortest(state)

    def closing_row(self, state: int, budget: int) -> MaskRow:
        """Text tokens of ``state`` after which a completion and EOS fit: all of it at most ``budget`` tokens."""
        return self._distances.closing_row(state, budget)

    @cached_property
    def _distances(self) -> TokenDistances:
        return TokenDistances(self)

    def end(self, state: int, data: bytes) -> int:
        """The state after ``data``, or ``DEAD``."""
        step = self.automaton.step
        for byte in data:
            state = step(state, byte)
            if state == DEAD:
                return DEAD
        return state if self._good is None or self._good[state] else DEAD

    def forced(self, state: int) -> bytes:
        """What every text must continue with from ``state``."""
        out = bytearray()
        while not self.automaton.accepting[state] and len(out) < _MAX_FORCED_BYTES:
            following = self.automaton.successors(state)
            if len(following) != 1:
                break
            out += following
            state = self.automaton.step(state, following[0])
        return bytes(out)

    def _canonical(self, state: int, ids: Ints) -> Ints:
        """The tokeniser's own next token where the text is forced past it: a last token could still merge."""
        spelled = spell(self.index.vocabulary, self.forced(state))
        return np.array(spelled[:1]) if len(spelled) > 1 and spelled[0] in ids else ids

    def exhausted(self, state: int) -> bool:
        if not self.automaton.successors(state):
            return True
        return self._good is not None and self.view(state).exhausted

    def _walk(self, state: int) -> tuple[Ints, Ints]:
        """Tokens whose bytes are legal from ``state``, and the states they end in."""
        states, nodes = np.array([state]), np.array([0])
        all_ids, all_ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for level in self.index.levels:
            children, counts = expand(level.child_start, nodes)
            if not len(children):
                break
            states = self.automaton.step_many(np.repeat(states, counts), level.byte[children])
            live = states != DEAD
            states, nodes = states[live], children[live]
            members, counts = expand(level.ids_start, nodes)
            all_ids.append(level.ids[members])
            all_ends.append(np.repeat(states, counts))
        return np.concatenate(all_ids), np.concatenate(all_ends)

    def _spellable(self) -> NDArray[np.bool_]:
        """States from which whole tokens lead to acceptance, [size]."""
        automaton = self.automaton
        sources, targets = automaton.edges(self.index.single_bytes)
        order = np.argsort(targets, kind="stable")
        starts = np.searchsorted(targets[order], np.arange(automaton.size + 1)).astype(np.int64)
        good = automaton.accepting.copy()
        new = np.flatnonzero(good)
        while len(new):  # one byte after the other
            members, _ = expand(starts, new)
            new = np.unique(sources[order[members]])
            new = new[~good[new]]
            good[new] = True
        # The rest lies inside characters whose bytes are not tokens, where few tokens fit.
        doubtful = np.flatnonzero(~good)
        if len(doubtful) > _MAX_DOUBTFUL_STATES:
            return np.ones(automaton.size, np.bool_)
        ends = {state: np.unique(self._walk(state)[1]) for state in doubtful.tolist()}
        found = True
        while found:
            found = False
            for state, reached in ends.items():
                if not good[state] and good[reached].any():
                    good[state] = found = True
        return good


class DfaMatcher(TrackingMatcher):
    """A list of states, one per consumed token."""

    def __init__(
        self, grammar: DfaGrammar, states: Sequence[int] = (), ids: Sequence[int] = (), ended: bool = False
    ) -> None:
        super().__init__(grammar.index, ids, ended)
        self._grammar = grammar
        self._states = list(states) or [grammar.automaton.initial]

    @property
    def grammar(self) -> DfaGrammar:
        return self._grammar

    @property
    def state(self) -> int:
        return self._states[-1]

    def fork(self) -> DfaMatcher:
        return DfaMatcher(self._grammar, self._states, self._ids, self._ended)

    def _text_row(self) -> MaskRow:
        return self._grammar.view(self.state).row

    def _consume(self, token: int) -> bool:
        if self._grammar.canonical and not is_set(self._text_row(), token):
            return False
        data = self._index.vocabulary.tokens[token]
        end = self._grammar.end(self.state, data) if data else DEAD
        if end == DEAD:
            return False
        self._states.append(end)
        return True

    def _retract(self, count: int) -> None:
        del self._states[-count:]

    def _accepts(self) -> bool:
        return bool(self._grammar.automaton.accepting[self.state])

    def _exhausted(self) -> bool:
        return self._grammar.exhausted(self.state)

    def _forced(self) -> bytes:
        return self._grammar.forced(self.state)
