"""Exact operations on byte automata: intersection and difference, within a budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from constrained_spec.grammars.automaton import DEAD, Effort, TableAutomaton


def intersect(a: TableAutomaton, b: TableAutomaton, effort: Effort | None = None) -> TableAutomaton | None:
    """Texts of both; None if there are none. Raises ``TooLarge``."""
    return _product(a, b.table, b.classes, b.accepting, effort or Effort())


def subtract(a: TableAutomaton, b: TableAutomaton, effort: Effort | None = None) -> TableAutomaton | None:
    """Texts of ``a`` that are not texts of ``b``; None if there are none. Raises ``TooLarge``."""
    # A state of its own stands for "b is dead": nothing leaves it, and it is not a text of b.
    sink = b.size
    table = np.vstack([b.table, np.full((1, b.table.shape[1]), sink, np.int32)])
    table = np.where(table == DEAD, np.int32(sink), table)
    return _product(a, table, b.classes, np.append(~b.accepting, True), effort or Effort())


def _product(
    a: TableAutomaton,
    other: NDArray[np.int32],
    classes: NDArray[np.int64],
    good: NDArray[np.bool_],
    effort: Effort,
) -> TableAutomaton | None:
    """``a`` beside the automaton ``other`` [size, classes]; a pair accepts where ``a`` does and ``good`` says so."""
    width = other.shape[1]
    joint, class_of = np.unique(a.classes * width + classes, return_inverse=True)
    left, right = a.table[:, joint // width], other[:, joint % width]  # [size, joint classes] each
    size = len(other)
    start = a.initial * size  # both begin in state 0
    numbers = {start: 0}
    frontier = np.array([start], np.int64)
    codes, rows = [frontier], []
    while len(frontier):
        p, q = left[frontier // size].astype(np.int64), right[frontier % size]
        reached = np.where((p == DEAD) | (q == DEAD), DEAD, p * size + q)
        rows.append(reached)
        effort.spend(reached.size)
        fresh = [c for c in np.unique(reached).tolist() if c != DEAD and c not in numbers]
        effort.hold(len(numbers) + len(fresh))
        for code in fresh:
            numbers[code] = len(numbers)
        frontier = np.array(fresh, np.int64)
        codes.append(frontier)
    pairs = np.concatenate(codes)
    reached = np.concatenate(rows)
    order = np.argsort(pairs)
    places = order[np.minimum(np.searchsorted(pairs[order], reached), len(pairs) - 1)]
    table = np.where(reached == DEAD, DEAD, places).astype(np.int32)
    accepting = a.accepting[pairs // size] & good[pairs % size]
    return trim(table, class_of.reshape(-1).tolist(), accepting)


def trim(table: NDArray[np.int32], classes: list[int], accepting: NDArray[np.bool_]) -> TableAutomaton | None:
    """Without the states that never reach acceptance; None if the first is one of them."""
    live = accepting.copy()
    sources, columns = np.nonzero(table != DEAD)
    targets = table[sources, columns]
    order = np.argsort(targets, kind="stable")
    starts = np.searchsorted(targets[order], np.arange(len(table) + 1))
    todo = np.flatnonzero(live).tolist()
    while todo:
        state = todo.pop()
        for source in sources[order[starts[state] : starts[state + 1]]].tolist():
            if not live[source]:
                live[source] = True
                todo.append(source)
    if not live[0]:
        return None
    # State 0 is live, so it keeps its number; the last entry answers DEAD, which is index -1.
    number = np.append(np.where(live, np.cumsum(live) - 1, DEAD), DEAD).astype(np.int32)
    return TableAutomaton(number[table[live]], classes, accepting[live])
