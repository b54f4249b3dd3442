"""Deterministic automata over bytes. Every state can still reach acceptance: dead ones are pruned when built."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from constrained_spec.grammars.tries import Ints, build_levels

DEAD = -1
MAX_DFA_STATES = 20_000
MAX_DFA_WORK = 4_000_000  # edges followed while building: a few seconds at the very most


class TooLarge(Exception):
    """The automaton exceeds its budget. Callers turn to another engine or raise ``GrammarBudgetError``."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


@dataclass(slots=True)
class Effort:
    """What building one automaton, and every other one on the way to it, may take."""

    states: int = MAX_DFA_STATES  # of any one of them
    work: int = MAX_DFA_WORK  # edges, of all together; counts down

    def hold(self, states: int) -> None:
        """Raises ``TooLarge`` if that is too many."""
        if states > self.states:
            raise TooLarge("max_dfa_states")

    def spend(self, work: int) -> None:
        """Raises ``TooLarge`` if nothing is left."""
        self.work -= work
        if self.work < 0:
            raise TooLarge("max_dfa_work")


class ByteAutomaton(Protocol):
    """States are 0 .. size - 1; ``DEAD`` is what a forbidden byte leads to."""

    initial: int
    accepting: NDArray[np.bool_]  # [size]

    @property
    def size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def step(self, state: int, byte: int) -> int: ...

    def step_many(self, states: Ints, data: NDArray[np.uint8]) -> Ints:
        """Elementwise ``step``: [n], [n] -> [n]. No state is ``DEAD``."""
        ...

    def successors(self, state: int) -> bytes:
        """Legal next bytes, at most two of them (enough to tell none, one and several apart)."""
        ...

    def alphabet(self) -> frozenset[int]:
        """Bytes on any edge."""
        ...

    def edges(self, allowed: frozenset[int]) -> tuple[Ints, Ints]:
        """(sources, targets) of the edges that one of the ``allowed`` bytes takes."""
        ...

    def ranges(self) -> Iterator[tuple[int, int, int, int]]:
        """(source, low byte, high byte, target) of every edge."""
        ...


class TableAutomaton:
    """A dense table over classes of bytes that no edge tells apart."""

    def __init__(self, table: NDArray[np.int32], classes: Sequence[int], accepting: NDArray[np.bool_]) -> None:
        self.initial = 0
        self.accepting = accepting
        self._width = table.shape[1]  # table is [size, classes]
        self._table = table.ravel()
        self._flat: array[int] = array("i", self._table.tobytes())  # scalar reads are several times faster than numpy's
        self._classes = list(classes)  # [256]
        self._class_array = np.asarray(classes, np.int64)
        members: list[list[int]] = [[] for _ in range(self._width)]
        for byte, cls in enumerate(classes):
            members[cls].append(byte)
        self._members = members

    @property
    def table(self) -> NDArray[np.int32]:
        """[size, classes]; not to be written to."""
        return self._table.reshape(-1, self._width)

    @property
    def classes(self) -> NDArray[np.int64]:
        """[256] the class of every byte."""
        return self._class_array

    @property
    def size(self) -> int:
        return len(self.accepting)

    @property
    def nbytes(self) -> int:
        return 2 * self._table.nbytes + self.accepting.nbytes

    def step(self, state: int, byte: int) -> int:
        end: int = self._flat[state * self._width + self._classes[byte]]
        return end

    def step_many(self, states: Ints, data: NDArray[np.uint8]) -> Ints:
        ends: Ints = self._table[states * self._width + self._class_array[data]].astype(np.int64)
        return ends

    def successors(self, state: int) -> bytes:
        found: list[int] = []
        base = state * self._width
        for cls, members in enumerate(self._members):
            if self._flat[base + cls] != DEAD:
                found += members[:2]
                if len(found) > 1:
                    break
        return bytes(found[:2])

    def alphabet(self) -> frozenset[int]:
        used = (self._table.reshape(-1, self._width) != DEAD).any(axis=0)
        return frozenset(byte for byte in range(256) if used[self._classes[byte]])

    def edges(self, allowed: frozenset[int]) -> tuple[Ints, Ints]:
        table = self._table.reshape(-1, self._width)[:, sorted({self._classes[byte] for byte in allowed})]
        sources, columns = np.nonzero(table != DEAD)
        return sources.astype(np.int64), table[sources, columns].astype(np.int64)

    def ranges(self) -> Iterator[tuple[int, int, int, int]]:
        runs: list[list[tuple[int, int]]] = []
        for members in self._members:
            found: list[tuple[int, int]] = []
            for byte in members:
                if found and found[-1][1] == byte - 1:
                    found[-1] = (found[-1][0], byte)
                else:
                    found.append((byte, byte))
            runs.append(found)
        for source, row in enumerate(self.table.tolist()):
            for cls, target in enumerate(row):
                if target != DEAD:
                    for low, high in runs[cls]:
                        yield source, low, high, target


class TrieAutomaton:
    """Exactly the given strings. Edge i leads to state i + 1, so edges need no target."""

    def __init__(self, strings: Sequence[bytes]) -> None:
        """``strings``: sorted, distinct, at least one; the empty string is allowed."""
        self.initial = 0
        levels = build_levels([s for s in strings if s], [i for i, s in enumerate(strings) if s])
        keys, accepting = [], [np.array([strings[0] == b""])]
        above = 0
        at = 1
        for level in levels:
            keys.append((level.parent + above) * 256 + level.byte)
            accepting.append(np.diff(level.ids_start) > 0)
            above, at = at, at + len(level.parent)
        self._keys = np.concatenate(keys) if keys else np.empty(0, np.int64)  # ascending: level order
        self._key_list: array[int] = array("q", self._keys.tobytes())
        self.accepting = np.concatenate(accepting)

    @property
    def size(self) -> int:
        return len(self.accepting)

    @property
    def nbytes(self) -> int:
        return 2 * self._keys.nbytes + self.accepting.nbytes

    def step(self, state: int, byte: int) -> int:
        key = state * 256 + byte
        i = bisect_left(self._key_list, key)
        return i + 1 if i < len(self._key_list) and self._key_list[i] == key else DEAD

    def step_many(self, states: Ints, data: NDArray[np.uint8]) -> Ints:
        if not len(self._keys):
            return np.full(len(states), DEAD, np.int64)
        keys = states * 256 + data
        i = np.searchsorted(self._keys, keys)
        found = self._keys[np.minimum(i, len(self._keys) - 1)] == keys
        return np.where(found, i + 1, DEAD)

    def successors(self, state: int) -> bytes:
        i = bisect_left(self._key_list, state * 256)
        return bytes(key & 255 for key in self._key_list[i : i + 2] if key >> 8 == state)

    def alphabet(self) -> frozenset[int]:
        return frozenset(np.unique(self._keys & 255).tolist())

    def edges(self, allowed: frozenset[int]) -> tuple[Ints, Ints]:
        taken = np.flatnonzero(np.isin(self._keys & 255, sorted(allowed)))
        return self._keys[taken] >> 8, taken.astype(np.int64) + 1

    def ranges(self) -> Iterator[tuple[int, int, int, int]]:
        for i, key in enumerate(self._key_list):
            yield key >> 8, key & 255, key & 255, i + 1
