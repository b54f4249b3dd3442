"""Rules over characters to llguidance Lark with exactly the same texts.

llguidance reads lexemes greedily: where one lexeme could go on, it never stops, so ``"a" "b" | "ab" "c"`` refuses "ab".
A lexeme of several characters is therefore kept only where it is proved that nothing can stop inside a longer one: no
text x of a lexeme X may be followed (by what follows X) with the first byte of a continuation of x within a lexeme Y
that may stand in X's place. Y is otherwise taken apart into single characters, which need no proof.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from constrained_spec.grammars.bnf import (
    EMPTY,
    Except,
    Expr,
    Name,
    Options,
    Rules,
    Series,
    Text,
    Times,
    options,
    series,
)
from constrained_spec.grammars.bnf import times as repeated
from constrained_spec.grammars.regex_syntax import Chars, Repeat
from constrained_spec.grammars.regex_tree import render_rust
from constrained_spec.grammars.utf8 import Ranges, byte_sequences, normalise

_MAX_CONTEXTS = 600  # occurrences up to which it is worked out which ones may stand in one place
_MAX_DEPTH = 20
_MAX_PAIRED = 2_000  # occurrences up to which all pairs are looked at; beyond, every lexeme is one character


@dataclass(slots=True, eq=False)
class Leaf:
    """One occurrence of a lexeme: ``text``, or ``low`` to ``high`` characters out of ``ranges`` (``low`` >= 1)."""

    text: str = ""
    ranges: Ranges = ()
    low: int = 1
    high: int | None = 1
    apart: bool = False  # written as single characters


@dataclass(slots=True, eq=False)
class Tree:
    """An inner node: "series", "options", "times" or "name"."""

    kind: str
    items: list[Tree | Leaf] = field(default_factory=list)
    low: int = 0
    high: int | None = None
    name: str = ""


def render_rules(rules: Rules, start: str) -> str:
    """Lark text; ``start`` becomes the rule ``start``. The rules are ``clean``; none derives only the empty text."""
    trees = {name: _tree(_runs(body)) for name, body in rules.items()}
    while True:
        flow = _Flow(trees, start)
        conflicts = flow.conflicts()
        if not conflicts:
            break
        for leaf in conflicts:
            leaf.apart = True
        trees = {name: _split(tree) for name, tree in trees.items()}
    return _Writer(_labels(rules, start)).rules(trees)


def _single(expr: Expr) -> Chars | None:
    if isinstance(expr, Text) and len(expr.text) == 1:
        return Chars(normalise([(ord(expr.text), ord(expr.text))]))
    return expr if isinstance(expr, Chars) else None


def _runs(expr: Expr) -> Expr:
    """``(c | x)*`` as ``c* (x c*)*`` for the single characters c: runs of them become one lexeme."""
    if isinstance(expr, Series):
        return series([_runs(item) for item in expr.items])
    if isinstance(expr, Options):
        return options([_runs(item) for item in expr.items])
    if not isinstance(expr, Times):
        return expr
    item = _runs(expr.item)
    if expr.high is not None or expr.low > 1 or not isinstance(item, Options):
        return repeated(item, expr.low, expr.high)
    singles = [found for found in map(_single, item.items) if found]
    others: list[Expr] = [option for option in item.items if _single(option) is None]
    if not singles:
        return repeated(item, expr.low, expr.high)
    run = Chars(normalise(r for found in singles for r in found.ranges))
    if not others:
        return Times(run, expr.low, None)
    groups = series([options(others), Times(run, 0, None)])
    if expr.low == 0:
        return series([Times(run, 0, None), Times(groups, 0, None)])
    return options([series([Times(run, 1, None), Times(groups, 0, None)]), Times(groups, 1, None)])


def _tree(expr: Expr) -> Tree | Leaf:
    if isinstance(expr, Text):
        return Leaf(text=expr.text)
    if isinstance(expr, Chars):
        return Leaf(ranges=expr.ranges)
    if isinstance(expr, Name):
        return Tree("name", name=expr.name)
    if isinstance(expr, Times):
        single = _single(expr.item)
        if single is None:
            return Tree("times", [_tree(expr.item)], expr.low, expr.high)
        leaf = Leaf(ranges=single.ranges, low=max(expr.low, 1), high=expr.high)
        return Tree("times", [leaf], 0, 1) if expr.low == 0 else leaf
    assert not isinstance(expr, Except), "exceptions were worked out"
    if isinstance(expr, Options) and EMPTY in expr.items:
        rest = [item for item in expr.items if item != EMPTY]
        return Tree("times", [_tree(options(rest))], 0, 1)
    return Tree("series" if isinstance(expr, Series) else "options", [_tree(item) for item in expr.items])


def _split(tree: Tree | Leaf) -> Tree | Leaf:
    """Leaves marked ``apart`` as single characters."""
    if isinstance(tree, Tree):
        tree.items = [_split(item) for item in tree.items]
        return tree
    if not tree.apart:
        return tree
    if tree.text:
        return Tree("series", [Leaf(text=c) for c in tree.text])
    return Tree("times", [Leaf(ranges=tree.ranges)], tree.low, tree.high)


class _Flow:
    """Which occurrences may follow which: sets of leaves are integers, one bit a leaf."""

    def __init__(self, trees: dict[str, Tree | Leaf], start: str) -> None:
        self.trees, self.start = trees, start
        self.leaves = [leaf for tree in trees.values() for leaf in _leaves(tree)]
        self.bit = {leaf: 1 << i for i, leaf in enumerate(self.leaves)}
        self.after = [0] * len(self.leaves)
        self.facts = dict.fromkeys(trees, (False, 0, 0))  # may be empty, first leaves, last leaves
        changed = True
        while changed:
            changed = False
            for name in reversed(trees):  # used rules mostly come later: they are known first
                new = self._facts(trees[name])
                changed = changed or new != self.facts[name]
                self.facts[name] = new
        for tree in trees.values():
            self._link(tree)

    def _facts(self, tree: Tree | Leaf) -> tuple[bool, int, int]:
        if isinstance(tree, Leaf):
            return False, self.bit[tree], self.bit[tree]
        if tree.kind == "name":
            return self.facts[tree.name]
        parts = [self._facts(item) for item in tree.items]
        firsts, lasts = 0, 0
        if tree.kind != "series":
            for _, first, last in parts:
                firsts |= first
                lasts |= last
            return any(empty for empty, _, _ in parts) or (tree.kind == "times" and tree.low == 0), firsts, lasts
        for empty, first, _ in parts:
            firsts |= first
            if not empty:
                break
        for empty, _, last in reversed(parts):
            lasts |= last
            if not empty:
                break
        return all(empty for empty, _, _ in parts), firsts, lasts

    def _link(self, tree: Tree | Leaf) -> tuple[bool, int, int]:
        """Record what follows what within ``tree``; its facts. Names need no entry: their last leaves are linked."""
        if isinstance(tree, Leaf) or tree.kind == "name":
            return self._facts(tree)
        parts = [self._link(item) for item in tree.items]
        if tree.kind == "series":
            last = 0
            for empty, first, ends in parts:
                self._follow(last, first)
                last = ends | last if empty else ends
        elif tree.kind == "times" and tree.high != 1:
            self._follow(parts[0][2], parts[0][1])
        return self._facts(tree)

    def _follow(self, lasts: int, firsts: int) -> None:
        for i in _bits(lasts):
            self.after[i] |= firsts

    def _together(self) -> list[int]:
        """For each leaf, the leaves that may be looked for at the same place."""
        n = len(self.leaves)
        if n > _MAX_CONTEXTS:
            return [(1 << n) - 1] * n
        found = [0] * n
        queue: list[tuple[int, int]] = [(self.facts[self.start][1], self.facts[self.start][1])]
        queue += [(after, after) for after in set(self.after)]
        seen = set(queue)
        while queue:
            left, right = queue.pop()
            for i in _bits(left):
                for j in _bits(right & ~found[i]):
                    found[i] |= 1 << j
                    found[j] |= 1 << i
                    # Both may have read the same text: then what follows either stands in one place.
                    pair = (self.after[i], self.after[j])
                    if i != j and pair not in seen and _common(self.leaves[i], self.leaves[j]):
                        seen.add(pair)
                        queue.append(pair)
        return found

    def conflicts(self) -> list[Leaf]:
        """Leaves that might swallow the start of what follows another one."""
        long = [j for j, leaf in enumerate(self.leaves) if len(leaf.text) > 1 or (not leaf.text and leaf.high != 1)]
        if len(self.leaves) > _MAX_PAIRED:
            return [self.leaves[j] for j in long]
        together = self._together()
        follow = [0] * len(self.leaves)
        cache: dict[int, int] = {}
        for i, after in enumerate(self.after):
            if after not in cache:
                cache[after] = 0
                for j in _bits(after):
                    cache[after] |= _first_bytes(self.leaves[j])
            follow[i] = cache[after]
        return [
            self.leaves[j]
            for j in long
            if any(_continued(self.leaves[i], self.leaves[j]) & follow[i] for i in _bits(together[j]))
        ]


def _leaves(tree: Tree | Leaf) -> Iterator[Leaf]:
    if isinstance(tree, Leaf):
        yield tree
    else:
        for item in tree.items:
            yield from _leaves(item)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _lead(ranges: Ranges) -> int:
    """First bytes of the characters, one bit a byte. Bytes, since the engine reads on byte by byte."""
    mask = 0
    for sequence in byte_sequences(ranges):
        low, high = sequence[0]
        mask |= (1 << (high + 1)) - (1 << low)
    return mask


def _lead_of(character: str) -> int:
    return 1 << character.encode()[0]


def _first_bytes(leaf: Leaf) -> int:
    return _lead_of(leaf.text[0]) if leaf.text else _lead(leaf.ranges)


def _holds(ranges: Ranges, text: str) -> bool:
    return all(any(low <= ord(c) <= high for low, high in ranges) for c in text)


def _overlap(a: Ranges, b: Ranges) -> bool:
    return any(low <= top and bottom <= high for low, high in a for bottom, top in b)


def _common(x: Leaf, y: Leaf) -> bool:
    """Some text is one of both."""
    if x.text and y.text:
        return x.text == y.text
    if x.text or y.text:
        text, run = (x.text, y) if x.text else (y.text, x)
        return run.low <= len(text) and (run.high is None or len(text) <= run.high) and _holds(run.ranges, text)
    fits = (x.high is None or y.low <= x.high) and (y.high is None or x.low <= y.high)
    return fits and _overlap(x.ranges, y.ranges)


def _continued(x: Leaf, y: Leaf) -> int:
    """First bytes of the characters c such that some text of x, then c, starts a text of y."""
    if x.text:
        n = len(x.text)
        if y.text:
            return _lead_of(y.text[n]) if len(y.text) > n and y.text.startswith(x.text) else 0
        return _lead(y.ranges) if (y.high is None or n < y.high) and _holds(y.ranges, x.text) else 0
    if not y.text:
        return _lead(y.ranges) if (y.high is None or x.low < y.high) and _overlap(x.ranges, y.ranges) else 0
    mask = 0
    for n in range(1, len(y.text)):
        if not _holds(x.ranges, y.text[n - 1]) or (x.high is not None and n > x.high):
            break
        if n >= x.low:
            mask |= _lead_of(y.text[n])
    return mask


def _labels(rules: Rules, start: str) -> dict[str, str]:
    """Lark rule names: lower case, distinct, and in no way special to llguidance."""
    labels: dict[str, str] = {}
    taken = {"start"}
    for name in rules:
        base = "r_" + re.sub(r"[^a-z0-9_]", "_", name.lower())
        label, n = base, 2
        while label in taken:
            label, n = f"{base}_{n}", n + 1
        taken.add(label)
        labels[name] = label
    labels[start] = "start"
    return labels


class _Writer:
    """Trees as Lark rules. What nests deeper than the engine reads goes into rules of its own."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.deep: list[str] = []

    def rules(self, trees: dict[str, Tree | Leaf]) -> str:
        lines = [f"{self.labels[name]}: {self.write(tree, 0)}\n" for name, tree in trees.items()]
        return "".join(lines + self.deep)

    def write(self, tree: Tree | Leaf, depth: int) -> str:
        if isinstance(tree, Leaf):
            return _lexeme(tree)
        if tree.kind == "name":
            return self.labels[tree.name]
        if depth > _MAX_DEPTH:
            inner = self.write(tree, 0)
            name = f"deep_{len(self.deep) + 1}"  # after the inner ones, which took theirs; no label starts like this
            self.deep.append(f"{name}: {inner}\n")
            return name
        parts = [self.write(item, depth + 1) for item in tree.items]
        if tree.kind == "series":
            return " ".join(parts)
        if tree.kind == "options":
            return "(" + " | ".join(parts) + ")"
        inner = f"({parts[0]})"
        sign = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((tree.low, tree.high))
        return inner + (sign or f"{{{tree.low},{'' if tree.high is None else tree.high}}}")


def _lexeme(leaf: Leaf) -> str:
    if leaf.text:
        return json.dumps(leaf.text, ensure_ascii=False)
    chars = Chars(leaf.ranges)
    text = render_rust(chars if (leaf.low, leaf.high) == (1, 1) else Repeat(chars, leaf.low, leaf.high))
    assert text is not None, "there is no lookahead in a set of characters"
    return f"/{text}/"
