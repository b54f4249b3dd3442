"""Byte automata of texts told by the strings in them."""

from __future__ import annotations

from collections.abc import Sequence

from constrained_spec.grammars.automaton import DEAD, ByteAutomaton, TableAutomaton
from constrained_spec.grammars.automaton_algebra import intersect, subtract, trim
from constrained_spec.grammars.nfa import Nfa, determinise
from constrained_spec.grammars.regex_syntax import ANY, Alt, Chars, Concat, Node, Repeat

ANYTHING = Repeat(ANY, 0, None)


def literal(text: str) -> Node:
    """The tree of ``text`` itself."""
    return Concat(tuple(Chars(((ord(c), ord(c)),)) for c in text))


def one_of(texts: Sequence[str]) -> Node:
    return Alt(tuple(map(literal, texts)))


def as_table(automaton: ByteAutomaton) -> TableAutomaton:
    if isinstance(automaton, TableAutomaton):
        return automaton
    nfa = Nfa()
    start = nfa.node()
    return determinise(nfa, start, nfa.add_automaton(automaton, start))


def accepts(automaton: ByteAutomaton, data: bytes) -> bool:
    state = automaton.initial
    for byte in data:
        state = automaton.step(state, byte)
        if state == DEAD:
            return False
    return bool(automaton.accepting[state])


def containing(automaton: ByteAutomaton) -> TableAutomaton:
    """Texts with a substring out of ``automaton``. Raises ``TooLarge``."""
    nfa = Nfa()
    start = nfa.node()
    within = nfa.add_automaton(automaton, nfa.add(ANYTHING, start))
    return determinise(nfa, start, nfa.add(ANYTHING, within))


def from_tree(tree: Node) -> TableAutomaton:
    nfa = Nfa()
    start = nfa.node()
    return determinise(nfa, start, nfa.add(tree, start))


def first_at_end(texts: Sequence[str], which: str) -> TableAutomaton:
    """Texts that end with ``which`` and in which none of ``texts`` (``which`` is one) ends before."""
    hit = from_tree(Concat((ANYTHING, one_of(texts))))
    table = hit.table.copy()
    table[hit.accepting] = DEAD  # nothing follows the first one
    reachable = trim(table, hit.classes.tolist(), hit.accepting)
    assert reachable is not None, "every text can stand alone"
    found = intersect(reachable, from_tree(Concat((ANYTHING, literal(which)))))
    assert found is not None, "no text holds another one, so each can be the first"
    return found


def free_of(texts: Sequence[str]) -> TableAutomaton:
    """Texts that contain none of ``texts``."""
    found = subtract(from_tree(ANYTHING), containing(from_tree(one_of(texts))))
    assert found is not None, "the empty text contains no text that is not empty"
    return found
