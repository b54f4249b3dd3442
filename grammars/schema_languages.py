"""Languages of strings for the rewriting of schemas: patterns as automata, their complements as patterns again."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from interegular import parse_pattern
from interegular.fsm import FSM, anything_else
from interegular.patterns import InvalidSyntax, Unsupported

from constrained_spec.errors import RequestError, UnsatisfiableError
from constrained_spec.grammars.automaton import Effort, TooLarge
from constrained_spec.grammars.nfa import build_automaton
from constrained_spec.grammars.regex_syntax import ANY, EMPTY, Alt, Anchor, Concat, Meet, Node, Repeat, parse
from constrained_spec.grammars.regex_tree import has_meet, render_interegular, simplify, weight

MAX_WEIGHT = 400  # of a pattern whose automaton is built
SMALL_WEIGHT = 40  # below, no automaton is large
MAX_MACHINE = 1_500  # states
MAX_WORK = 1_000_000  # edges followed to find that out
MAX_PRODUCT = 4_000  # states of an intersection that is looked at
MAX_STATES = 60  # of an automaton that is written as a pattern
MAX_PATTERN_LENGTH = 4_000

# What no engine of ours decides in a pattern: look-around, back-references, word boundaries.
UNDECIDED = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!]|<[=!])|\\(?:[1-9]|[bBk]))")
_HARD = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<[=!]|\\(?:[1-9]|[bBk]))")

_ANYTHING = Repeat(ANY, 0, None)


class TooHard(Exception):
    """The language has no automaton within the budget, or no pattern."""


@lru_cache(maxsize=512)
def automaton(pattern: str) -> FSM:
    """Character automaton of the strings in which ``pattern`` is found. Raises ``TooHard``."""
    if _HARD.search(pattern):
        raise TooHard
    try:
        tree = simplify(_search(parse(pattern)))
        if weight(tree) > MAX_WEIGHT or ((weight(tree) > SMALL_WEIGHT or has_meet(tree)) and not _fits(tree)):
            raise TooHard
        return _machine(tree)
    except (RequestError, InvalidSyntax, Unsupported, RecursionError, ValueError):
        raise TooHard from None


def _fits(tree: Node) -> bool:
    """Whether the automaton stays small, and those on the way to it. interegular knows no budget, we do."""
    try:
        build_automaton(tree, Effort(states=MAX_MACHINE, work=MAX_WORK))
    except UnsatisfiableError:
        return True
    except TooLarge:
        return False
    return True


def _machine(tree: Node) -> FSM:
    """The automaton of a tree whose lookaheads are written as intersections."""
    if isinstance(tree, Meet):
        item, look = _machine(tree.item), _machine(tree.look)
        return cast(FSM, item & (complement(look) if tree.negate else look))
    if isinstance(tree, Concat) and tree.items and isinstance(tree.items[-1], Meet | Alt):
        return cast(FSM, _machine(Concat(tree.items[:-1])) + _machine(tree.items[-1]))
    if isinstance(tree, Alt):
        joined = _machine(tree.items[0])
        for branch in tree.items[1:]:
            joined = cast(FSM, joined | _machine(branch))
        return joined
    return parse_pattern(render_interegular(tree)).to_fsm()


def _search(node: Node) -> Node:
    """The whole-text form: anything before what does not start with ^, anything after what does not end with $."""
    if isinstance(node, Alt):
        return Alt(tuple(_search(x) for x in node.items))
    items = list(node.items) if isinstance(node, Concat) else [node]
    while len(items) == 1 and isinstance(items[0], Concat | Alt):
        if isinstance(items[0], Alt):
            return _search(items[0])
        items = list(items[0].items)
    head: Node = _ANYTHING
    tail: Node = _ANYTHING
    while items and isinstance(items[0], Anchor) and not items[0].at_end:
        head, items = EMPTY, items[1:]
    while items and isinstance(items[-1], Anchor) and items[-1].at_end:
        tail, items = EMPTY, items[:-1]
    if any(_anchored(x) for x in items):
        raise TooHard
    return Concat((head, *items, tail))


def _anchored(node: Node) -> bool:
    """An anchor is left inside, where it cannot be dropped. In a lookahead, anchors are ``simplify``'s matter."""
    if isinstance(node, Concat | Alt):
        return any(_anchored(x) for x in node.items)
    return isinstance(node, Anchor) or (isinstance(node, Repeat) and _anchored(node.item))


def found_in(pattern: str, text: str) -> bool:
    """Whether ``pattern`` is found in ``text``. Raises ``TooHard``."""
    return bool(automaton(pattern).accepts(text))


@lru_cache(maxsize=512)
def disjoint(a: str, b: str) -> bool:
    """Whether no string holds both patterns; False also where that is not known."""
    try:
        # Not interegular's isdisjoint, which takes its state 0 for no state at all.
        return is_void(cast(FSM, automaton(a) & automaton(b)))
    except TooHard:
        return False


@lru_cache(maxsize=4_096)
def is_empty(patterns: tuple[str, ...], low: int, high: int | None) -> bool:
    """Whether certainly no string of ``low`` to ``high`` characters holds all ``patterns``."""
    if high is not None and low > high:
        return True
    try:
        machines = [automaton(p) for p in patterns]
    except TooHard:
        return False
    if high is not None and high <= 64:
        machines.append(length(low, high))
    if not machines or math.prod(len(m.states) for m in machines) > MAX_PRODUCT:
        return False
    joined = machines[0]
    for machine in machines[1:]:
        joined = cast(FSM, joined & machine)
    return is_void(joined)


@lru_cache(maxsize=64)
def length(low: int, high: int | None) -> FSM:
    return parse_pattern(f"(?:.|\\n){{{low},{'' if high is None else high}}}").to_fsm()


@lru_cache(maxsize=128)
def exactly(words: frozenset[str]) -> FSM:
    """Automaton of ``words``. Raises ``TooHard``."""
    if sum(map(len, words)) > MAX_WEIGHT:
        raise TooHard
    machine = None
    for word in sorted(words):
        one = parse_pattern("".join(_literal(c) for c in word) or "(?:)").to_fsm()
        machine = one if machine is None else cast(FSM, machine | one)
    assert machine is not None
    return machine


def _literal(character: str) -> str:
    return character if character.isalnum() else f"[{_quoted(character)}]"


def words(pattern: str, most: int) -> list[str] | None:
    """All strings in which ``pattern`` is found, if they are at most ``most``. None: more, or not known."""
    try:
        machine = automaton(pattern)
        found: list[str] = []
        for word in machine.strings():  # type: ignore[no-untyped-call]
            if len(found) == most or any(not isinstance(c, str) for c in word):
                return None
            found.append("".join(word))
    except (TooHard, OverflowError):
        return None
    return found


def complement(machine: FSM) -> FSM:
    made = machine.everythingbut()  # type: ignore[no-untyped-call]
    assert isinstance(made, FSM)
    return made


def is_void(machine: FSM) -> bool:
    """No string at all is in the language."""
    return bool(machine.empty())  # type: ignore[no-untyped-call]


def escape(text: str) -> str:
    """A pattern that finds exactly ``text`` when anchored."""
    return "".join(c if c.isalnum() and ord(c) < 128 else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text)


def pattern_of(machine: FSM) -> str:
    """An anchored pattern of ``machine``'s language, by elimination of states; "" for no string. Raises ``TooHard``."""
    machine = machine.reduce()  # type: ignore[no-untyped-call]
    live = [s for s in machine.states if machine.islive(s)]  # type: ignore[no-untyped-call]
    if machine.initial not in live:
        return ""
    if len(live) > MAX_STATES:
        raise TooHard
    listed = sorted(c for members in machine.alphabet.by_transition.values() for c in members if c is not anything_else)
    start, end = -1, -2
    edges: dict[tuple[int, int], str] = {(start, machine.initial): ""}
    for state in live:
        targets: dict[int, list[object]] = {}
        for symbol, to in machine.map.get(state, {}).items():
            if to in live:
                targets.setdefault(cast(int, to), []).extend(machine.alphabet.by_transition[symbol])
        for target, members in targets.items():
            edges[state, target] = _class(members, listed)
        if state in machine.finals:
            edges[state, end] = ""
    for state in sorted(live, key=lambda s: sum(s in edge for edge in edges)):
        _eliminate(edges, state)
        if sum(map(len, edges.values())) > MAX_PATTERN_LENGTH:
            raise TooHard
    return f"^(?:{edges[start, end]})$"


def _eliminate(edges: dict[tuple[int, int], str], state: int) -> None:
    loop = edges.pop((state, state), None)
    around = f"(?:{loop})*" if loop else ""
    sources = [(a, text) for (a, b), text in edges.items() if b == state]
    targets = [(b, text) for (a, b), text in edges.items() if a == state]
    for edge in [e for e in edges if state in e]:
        del edges[edge]
    for a, before in sources:
        for b, after in targets:
            text = _wrap(before) + around + _wrap(after)
            old = edges.get((a, b))
            edges[a, b] = text if old is None else f"{old}|{text}"


def _wrap(text: str) -> str:
    return f"(?:{text})" if "|" in text else text


def _class(members: Sequence[object], listed: Sequence[str]) -> str:
    """A set that also holds line breaks where "any other character" does."""
    chosen = {c for c in members if isinstance(c, str)}
    if any(c is anything_else for c in members):
        left_out = [c for c in listed if c not in chosen]
        return f"[^{''.join(map(_quoted, left_out))}]" if left_out else r"[\s\S]"
    return f"[{''.join(_quoted(c) for c in sorted(chosen))}]"


def _quoted(character: str) -> str:
    code = ord(character)
    if character.isalnum() and code < 128:
        return character
    return f"\\x{code:02x}" if code < 0x80 else character
