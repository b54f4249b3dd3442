"""Thompson construction over bytes, and the subset construction with a budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from constrained_spec.errors import UnsatisfiableError
from constrained_spec.grammars.automaton import DEAD, ByteAutomaton, Effort, TableAutomaton, TooLarge
from constrained_spec.grammars.automaton_algebra import intersect, subtract
from constrained_spec.grammars.regex_syntax import Alt, Chars, Concat, Meet, Node, Repeat
from constrained_spec.grammars.utf8 import Ranges, byte_sequences

MAX_NFA_STATES = 100_000


class Nfa:
    """``epsilon[n]`` and ``edges[n]`` = (low byte, high byte, target). ``effort``: what may still be spent."""

    def __init__(self, effort: Effort | None = None) -> None:
        self.effort = effort or Effort()
        self.epsilon: list[list[int]] = []
        self.edges: list[list[tuple[int, int, int]]] = []

    def node(self) -> int:
        if len(self.edges) >= MAX_NFA_STATES:
            raise TooLarge("max_nfa_states")
        self.effort.spend(1)
        self.epsilon.append([])
        self.edges.append([])
        return len(self.edges) - 1

    def add(self, tree: Node, start: int) -> int:
        """Appends ``tree`` behind ``start``; returns the node at its end."""
        if isinstance(tree, Chars):
            end = self.node()
            self.add_characters(tree.ranges, start, end)
            return end
        if isinstance(tree, Concat):
            for item in tree.items:
                start = self.add(item, start)
            return start
        if isinstance(tree, Alt):
            end = self.node()
            for item in tree.items:
                self.epsilon[self.add(item, start)].append(end)
            return end
        if isinstance(tree, Repeat):
            return self._add_repeat(tree, start)
        assert isinstance(tree, Meet)
        met = _met(tree, self.effort)
        return self.node() if met is None else self.add_automaton(met, start)

    def _add_repeat(self, tree: Repeat, start: int) -> int:
        for _ in range(tree.low):
            start = self.add(tree.item, start)
        if tree.high is None:
            loop = self.node()
            self.epsilon[start].append(loop)
            self.epsilon[self.add(tree.item, loop)].append(loop)
            end = self.node()
            self.epsilon[loop].append(end)
            return end
        end = self.node()
        for _ in range(tree.high - tree.low):
            self.epsilon[start].append(end)
            begin = self.node()  # a node of its own: ``start`` may be a loop of what came before
            self.epsilon[start].append(begin)
            start = self.add(tree.item, begin)
        self.epsilon[start].append(end)
        return end

    def add_characters(self, ranges: Ranges, start: int, end: int) -> None:
        suffixes: dict[tuple[tuple[int, int], ...], int] = {(): end}
        for sequence in byte_sequences(ranges):
            for i in range(len(sequence) - 1, 0, -1):
                if sequence[i:] not in suffixes:
                    suffixes[sequence[i:]] = node = self.node()
                    self.edges[node].append((*sequence[i], suffixes[sequence[i + 1 :]]))
            self.edges[start].append((*sequence[0], suffixes[sequence[1:]]))

    def add_automaton(self, automaton: ByteAutomaton, start: int) -> int:
        """Appends a copy of ``automaton`` behind ``start``; returns the node at its end."""
        if automaton.size + len(self.edges) > MAX_NFA_STATES:
            raise TooLarge("max_nfa_states")
        nodes = [self.node() for _ in range(automaton.size)]
        end = self.node()
        self.epsilon[start].append(nodes[automaton.initial])
        for source, low, high, target in automaton.ranges():
            self.edges[nodes[source]].append((low, high, nodes[target]))
        for state in np.flatnonzero(automaton.accepting).tolist():
            self.epsilon[nodes[state]].append(end)
        return end


def _met(tree: Meet, effort: Effort) -> TableAutomaton | None:
    """The automaton of an intersection; None if it is empty. Raises ``TooLarge``."""
    item, look = _built(tree.item, effort), _built(tree.look, effort)
    if item is None or look is None:
        return item if tree.negate else None
    return (subtract if tree.negate else intersect)(item, look, effort)


def _built(tree: Node, effort: Effort) -> TableAutomaton | None:
    if isinstance(tree, Meet):
        return _met(tree, effort)
    try:
        return build_automaton(tree, effort)
    except UnsatisfiableError:
        return None


def build_automaton(tree: Node, effort: Effort | None = None) -> TableAutomaton:
    """Raises ``TooLarge`` beyond the budget and ``UnsatisfiableError`` for the empty language."""
    nfa = Nfa(effort)
    start = nfa.node()
    accept = nfa.add(tree, start)
    return determinise(nfa, start, accept)


def _live(nfa: Nfa, accept: int) -> list[bool]:
    """Nodes from which ``accept`` can be reached."""
    back: list[list[int]] = [[] for _ in nfa.edges]
    for n, targets in enumerate(nfa.epsilon):
        for t in targets:
            back[t].append(n)
    for n, edges in enumerate(nfa.edges):
        for _, _, t in edges:
            back[t].append(n)
    live = [False] * len(nfa.edges)
    live[accept] = True
    todo = [accept]
    while todo:
        for n in back[todo.pop()]:
            if not live[n]:
                live[n] = True
                todo.append(n)
    return live


def determinise(nfa: Nfa, start: int, accept: int) -> TableAutomaton:
    """The automaton of what leads from ``start`` to ``accept``. Raises as ``build_automaton`` does."""
    live = _live(nfa, accept)
    if not live[start]:
        raise UnsatisfiableError("the regex matches no text at all", param="regex")
    cuts = {0, 256}
    for n, edges in enumerate(nfa.edges):
        nfa.edges[n] = [e for e in edges if live[e[2]]]
        for low, high, _ in nfa.edges[n]:
            cuts |= {low, high + 1}
    bounds = sorted(cuts)
    class_of = [0] * 257
    for i, (low, high) in enumerate(pairwise(bounds)):
        class_of[low:high] = [i] * (high - low)
    width = len(bounds) - 1
    edges_of = [[(class_of[a], class_of[b] + 1, t) for a, b, t in edges] for edges in nfa.edges]

    closures: dict[int, frozenset[int]] = {}

    def closure(node: int) -> frozenset[int]:
        """Nodes with edges (or ``accept``) that ``node`` reaches by epsilon."""
        if node not in closures:
            seen, todo = {node}, [node]
            while todo:
                for t in nfa.epsilon[todo.pop()]:
                    if live[t] and t not in seen:
                        seen.add(t)
                        todo.append(t)
            nfa.effort.spend(len(seen))
            closures[node] = frozenset(n for n in seen if edges_of[n] or n == accept)
        return closures[node]

    first = closure(start)
    numbers: dict[frozenset[int], int] = {first: 0}
    by_targets: dict[frozenset[int], int] = {}
    order, rows = [first], []
    effort = nfa.effort
    for subset in order:  # grows while it is walked
        work = len(subset)
        buckets: dict[int, set[int]] = {}
        for n in subset:
            for low, high, target in edges_of[n]:
                work += high - low
                for cls in range(low, high):
                    buckets.setdefault(cls, set()).add(target)
        row = [DEAD] * width
        for cls, targets in buckets.items():
            key = frozenset(targets)
            number = by_targets.get(key)
            if number is None:
                closed = frozenset().union(*map(closure, key))
                work += len(closed)
                number = numbers.get(closed)
                if number is None:
                    number = numbers[closed] = len(order)
                    order.append(closed)
                    effort.hold(len(order))
                by_targets[key] = number
            row[cls] = number
        rows.append(row)
        effort.spend(work)
    accepting = np.fromiter((accept in subset for subset in order), np.bool_, len(order))
    return TableAutomaton(np.asarray(rows, np.int32), class_of[:256], accepting)
