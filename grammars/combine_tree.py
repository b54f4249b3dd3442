"""Combined constraints as a tree of lexemes, and the proof that longest-match lexing loses none of their texts.

llguidance cuts a text into lexemes by longest match over all lexemes that may stand at a place. A lexeme that could
have ended earlier is then never given up, so a sequence such as ``a*`` ``ab`` would have no text. ``check_boundaries``
finds every such place: it walks the pairs of lexemes that can be read side by side and asks whether one of them can go
on with a byte that the other's successor could begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from constrained_spec.errors import RequestError
from constrained_spec.grammars.automaton import DEAD, ByteAutomaton, TooLarge
from constrained_spec.grammars.nfa import Nfa, determinise

SPECIAL = 0xFF  # stands for a special token: no text holds this byte
ALL_BYTES = frozenset(range(256))


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A regular language. ``automaton`` is None if it exceeds ``limit``, ``terminal`` (Lark) if it cannot be written.

    ``strings``: all its texts, where it was made from a list of them.
    """

    automaton: ByteAutomaton | None
    terminal: str | None
    what: str
    limit: str = ""
    strings: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    """A grammar of llguidance's: ``body`` is what stands behind the rule's colon.

    ``first``: bytes it can begin with; ``open``: bytes that may continue a text that is already complete.
    """

    body: str
    what: str
    first: frozenset[int]
    open: frozenset[int]
    nullable: bool
    named: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """The special token ``token``."""

    token: int


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Many:
    """``item`` ``low`` (0 or 1) times or more; once at the most unless ``repeat``."""

    item: Tree
    low: int
    repeat: bool


Leaf = Word | Embed | Token
Tree = Leaf | Seq | Either | Many


def regular(tree: Tree) -> bool:
    if isinstance(tree, Seq | Either):
        return all(map(regular, tree.items))
    return regular(tree.item) if isinstance(tree, Many) else isinstance(tree, Word)


def fold(tree: Tree) -> Tree:
    """Every largest regular part becomes one ``Word``."""
    if regular(tree):
        return _word(tree)
    if isinstance(tree, Many):
        return Many(fold(tree.item), tree.low, tree.repeat)
    if isinstance(tree, Either):
        plain = tuple(x for x in tree.items if regular(x))
        rest = tuple(fold(x) for x in tree.items if not regular(x))
        return Either((_word(Either(plain)), *rest)) if plain else Either(rest)
    if isinstance(tree, Seq):
        items: list[Tree] = []
        run: list[Tree] = []
        for item in _flat(tree):
            if regular(item):
                run.append(item)
                continue
            if run:
                items.append(_word(Seq(tuple(run))))
                run = []
            items.append(fold(item))
        if run:
            items.append(_word(Seq(tuple(run))))
        return Seq(tuple(items))
    return tree


def _flat(tree: Tree) -> list[Tree]:
    if not isinstance(tree, Seq):
        return [tree]
    return [x for item in tree.items for x in _flat(item)]


def _word(tree: Tree) -> Word:
    if isinstance(tree, Seq | Either) and len(tree.items) == 1:
        return _word(tree.items[0])
    if isinstance(tree, Word):
        return tree
    automaton, limit = None, ""
    try:
        nfa = Nfa()
        start = nfa.node()
        automaton = determinise(nfa, start, _add(nfa, tree, start))
    except TooLarge as error:
        limit = error.limit
    return Word(automaton, _terminal(tree), _what(tree), limit)


def _add(nfa: Nfa, tree: Tree, start: int) -> int:
    if isinstance(tree, Word):
        if tree.automaton is None:
            raise TooLarge(tree.limit)
        return nfa.add_automaton(tree.automaton, start)
    if isinstance(tree, Seq):
        for item in tree.items:
            start = _add(nfa, item, start)
        return start
    end = nfa.node()
    if isinstance(tree, Either):
        for item in tree.items:
            nfa.epsilon[_add(nfa, item, start)].append(end)
        return end
    assert isinstance(tree, Many)
    # A node of its own in front: ``start`` may be a loop of what came before.
    loop = nfa.node()
    nfa.epsilon[start].append(loop)
    done = _add(nfa, tree.item, loop)
    nfa.epsilon[done].append(end)
    if tree.repeat:
        nfa.epsilon[done].append(loop)
    if not tree.low:
        nfa.epsilon[start].append(end)
    return end


def _terminal(tree: Tree) -> str | None:
    if isinstance(tree, Word):
        return tree.terminal
    if isinstance(tree, Many):
        inner = _terminal(tree.item)
        sign = ("+" if tree.low else "*") if tree.repeat else ("" if tree.low else "?")
        return None if inner is None else f"({inner}){sign}"
    assert isinstance(tree, Seq | Either)
    parts = [_terminal(x) for x in tree.items]
    if any(p is None for p in parts):
        return None
    return "(" + (" " if isinstance(tree, Seq) else " | ").join(f"({p})" for p in parts) + ")"


def _what(tree: Tree) -> str:
    if isinstance(tree, Word | Embed):
        return tree.what
    if isinstance(tree, Token):
        return f"the special token {tree.token}"
    return _what(tree.item) if isinstance(tree, Many) else ", ".join(_what(x) for x in tree.items)


@dataclass(slots=True)
class Positions:
    """The leaves of a tree by number, and which can follow which (Glushkov's construction)."""

    leaves: list[Leaf] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)

    def visit(self, tree: Tree) -> tuple[bool, set[int], set[int]]:
        """(can be empty, leaves it can begin with, leaves it can end with)."""
        if isinstance(tree, Seq):
            empty, first, last = True, set[int](), set[int]()
            for item in tree.items:
                void, begins, ends = self.visit(item)
                for p in last:
                    self.follow[p] |= begins
                first |= begins if empty else set()
                last = last | ends if void else ends
                empty &= void
            return empty, first, last
        if isinstance(tree, Either):
            seen = [self.visit(item) for item in tree.items]
            return any(s[0] for s in seen), set().union(*(s[1] for s in seen)), set().union(*(s[2] for s in seen))
        if isinstance(tree, Many):
            empty, first, last = self.visit(tree.item)
            if tree.repeat:
                for p in last:
                    self.follow[p] |= first
            return empty or not tree.low, first, last
        self.leaves.append(tree)
        self.follow.append(set())
        here = {len(self.leaves) - 1}
        return nullable(tree), here, set(here)


def nullable(leaf: Leaf) -> bool:
    """Whether it can be empty; True where that is not known."""
    if isinstance(leaf, Word):
        return leaf.automaton is None or bool(leaf.automaton.accepting[leaf.automaton.initial])
    return isinstance(leaf, Embed) and leaf.nullable


def first_bytes(leaf: Leaf) -> frozenset[int]:
    if isinstance(leaf, Token):
        return frozenset((SPECIAL,))
    if isinstance(leaf, Embed):
        return leaf.first
    if leaf.automaton is None:
        return ALL_BYTES
    step, start = leaf.automaton.step, leaf.automaton.initial
    return frozenset(b for b in range(256) if step(start, b) != DEAD)


def check_boundaries(tree: Tree) -> None:
    """Raises ``RequestError`` where longest-match lexing would lose a text of ``tree`` (regular parts folded)."""
    positions = Positions()
    _, first, _ = positions.visit(tree)
    leaves, begins = positions.leaves, [first_bytes(leaf) for leaf in positions.leaves]
    texts = [_only_text(leaf) for leaf in leaves]
    done: set[tuple[int, int]] = set()
    for active in (first, *positions.follow):
        for p in active:
            after = frozenset[int]().union(*(begins[q] for q in positions.follow[p]))
            for q in active if after else ():
                if (p, q) in done:
                    continue
                one, other = texts[p], texts[q]
                if one is not None and other is not None:  # of many tools: every pair of their heads
                    lost = len(one) < len(other) and other.startswith(one) and other[len(one)] in after
                else:
                    lost = _goes_on(leaves[p], leaves[q], begins[p], begins[q], after, p == q)
                if lost:
                    raise RequestError(
                        f"where {_what(leaves[p])} ends cannot be told: its text, or that of {_what(leaves[q])}, can "
                        "go on with what may follow it",
                        param="combination",
                        hint="put something unmistakable between the parts, or make them Regex or Choice throughout",
                    )
                done.add((p, q))


def _only_text(leaf: Leaf) -> bytes | None:
    """The text of a word that has just one, and that not empty."""
    if not isinstance(leaf, Word) or leaf.automaton is None:
        return None
    a, state, text = leaf.automaton, leaf.automaton.initial, bytearray()
    while not a.accepting[state] and len(text) < a.size:
        following = a.successors(state)
        if len(following) != 1:
            return None
        text += following
        state = a.step(state, following[0])
    return bytes(text) if text and a.accepting[state] and not a.successors(state) else None


def _goes_on(
    p: Leaf, q: Leaf, first_p: frozenset[int], first_q: frozenset[int], after: frozenset[int], same: bool
) -> bool:
    """A text of ``p`` can be continued within ``q`` by a byte of ``after``."""
    if isinstance(p, Token):
        return False
    if isinstance(p, Embed):
        return bool(p.open & after) if same else bool(first_p & first_q)
    if not isinstance(q, Word) or p.automaton is None or q.automaton is None:
        return same or bool(first_p & first_q)
    allowed: Sequence[int] = sorted(after - {SPECIAL})
    a, b = p.automaton, q.automaton
    start = (a.initial, b.initial)
    seen, todo = {start}, [start]
    every = np.arange(256, dtype=np.uint8)
    while todo:
        x, y = todo.pop()
        # The empty text is no lexeme, so nothing is lost at the start.
        if a.accepting[x] and (x, y) != start and any(b.step(y, byte) != DEAD for byte in allowed):
            return True
        ends_a = a.step_many(np.full(256, x, np.int64), every)
        ends_b = b.step_many(np.full(256, y, np.int64), every)
        for pair in set(zip(ends_a.tolist(), ends_b.tolist(), strict=True)):
            if DEAD not in pair and pair not in seen:
                seen.add(pair)
                todo.append(pair)
                if len(seen) > 50_000:
                    return True  # not proven: refused
    return False
