"""Thompson construction over bytes, and the subset construction with a budget."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np
from interegular import parse_pattern
from interegular.fsm import FSM, anything_else

from constrained_spec.errors import GrammarBudgetError, UnsatisfiableError
from constrained_spec.grammars.automaton import DEAD, ByteAutomaton, TableAutomaton
from constrained_spec.grammars.regex_syntax import Alt, Chars, Concat, Meet, Node, Repeat
from constrained_spec.grammars.regex_tree import render_interegular, weight
from constrained_spec.grammars.utf8 import Ranges, byte_sequences, complement, normalise

MAX_NFA_STATES = 100_000
MAX_DFA_STATES = 20_000
MAX_DFA_WORK = 4_000_000  # edges followed while building: a few seconds at the very most
MAX_LOOKAHEAD_WEIGHT = 400


class TooLarge(Exception):
    """The automaton exceeds its budget. Callers turn to another engine or raise ``GrammarBudgetError``."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class Nfa:
    """``epsilon[n]`` and ``edges[n]`` = (low byte, high byte, target)."""

    def __init__(self) -> None:
        self.epsilon: list[list[int]] = []
        self.edges: list[list[tuple[int, int, int]]] = []

    def node(self) -> int:
        if len(self.edges) >= MAX_NFA_STATES:
            raise TooLarge("max_nfa_states")
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
        return self._add_fsm(_fsm(tree), start)

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

    def _add_fsm(self, fsm: FSM, start: int) -> int:
        nodes = {state: self.node() for state in fsm.states}
        end = self.node()
        self.epsilon[start].append(nodes[fsm.initial])
        listed = normalise((ord(c), ord(c)) for c in fsm.alphabet if c is not anything_else)
        symbols: dict[int, Ranges] = {}
        for key, members in fsm.alphabet.by_transition.items():
            ranges = [(ord(c), ord(c)) for c in members if c is not anything_else]
            if any(c is anything_else for c in members):
                ranges += complement(listed)
            symbols[key] = normalise(ranges)
        for state in fsm.states:
            for key, target in fsm.map.get(state, {}).items():
                self.add_characters(symbols[key], nodes[state], nodes[target])
            if state in fsm.finals:
                self.epsilon[nodes[state]].append(end)
        return end


def _fsm(tree: Node) -> FSM:
    """interegular's automaton for a tree with intersections at its end. Its algebra has no budget, so trees are kept
    small; its own lookaheads are not used (they are wrong at the end of a pattern)."""
    if isinstance(tree, Meet):
        if weight(tree) > MAX_LOOKAHEAD_WEIGHT:
            raise GrammarBudgetError(
                "the regex around a lookahead is too large", limit="max_lookahead_weight", param="regex"
            )
        item, look = _fsm(tree.item), _fsm(tree.look)
        return _typed(item - look if tree.negate else item & look)
    if isinstance(tree, Concat) and tree.items and isinstance(tree.items[-1], Meet | Alt):
        head = Concat(tree.items[:-1])
        return _typed(_fsm(head) + _fsm(tree.items[-1]))
    if isinstance(tree, Alt):
        return reduce(lambda a, b: _typed(a | b), map(_fsm, tree.items))
    return parse_pattern(render_interegular(tree)).to_fsm()


def _typed(value: object) -> FSM:
    """interegular's operators carry no types."""
    assert isinstance(value, FSM)
    return value


def build_automaton(tree: Node) -> TableAutomaton:
    """Raises ``TooLarge`` beyond the budget and ``UnsatisfiableError`` for the empty language."""
    nfa = Nfa()
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
            closures[node] = frozenset(n for n in seen if edges_of[n] or n == accept)
        return closures[node]

    first = closure(start)
    numbers: dict[frozenset[int], int] = {first: 0}
    by_targets: dict[frozenset[int], int] = {}
    order, rows = [first], []
    work = 0
    for subset in order:  # grows while it is walked
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
                    if len(order) > MAX_DFA_STATES:
                        raise TooLarge("max_dfa_states")
                by_targets[key] = number
            row[cls] = number
        rows.append(row)
        if work > MAX_DFA_WORK:
            raise TooLarge("max_dfa_work")
    accepting = np.fromiter((accept in subset for subset in order), np.bool_, len(order))
    return TableAutomaton(np.asarray(rows, np.int32), class_of[:256], accepting)
