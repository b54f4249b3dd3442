"""What GBNF and EBNF texts are parsed into: rules over characters. Clean-up that does not change the language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from constrained_spec.errors import GrammarBudgetError, GrammarSyntaxError, UnsatisfiableError
from constrained_spec.grammars import regex_syntax
from constrained_spec.grammars.regex_syntax import Chars
from constrained_spec.grammars.utf8 import normalise

MAX_GRAMMAR_CHARACTERS = 1 << 20
MAX_NODES = 100_000
MAX_NESTING = 100
MAX_REPEAT = 100_000
_INLINE_SIZE, _INLINE_DEPTH = 64, 40
_REGEX_SIZE, _REGEX_DEPTH = 2_000, 80


@dataclass(frozen=True, slots=True)
class Text:
    """The characters of ``text``, at least one."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """What the rule ``name`` derives. ``position``: character offset of this use."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Series:
    """One after the other; the empty text if there is none."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """One of them; nothing at all, not even the empty text, if there is none."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """``low`` to ``high`` times (``None``: without end)."""

    item: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Except:
    """``item`` but not ``but``, at ``position``. Parsers of notations that have it replace it by what remains."""

    item: Expr
    but: Expr
    position: int


Expr = Text | Chars | Name | Series | Options | Times | Except

EMPTY = Series(())
NEVER = Options(())


@dataclass(frozen=True, slots=True)
class Rule:
    """``position``: character offset of the rule's name."""

    name: str
    body: Expr
    position: int


Rules = dict[str, Expr]


def series(items: list[Expr]) -> Expr:
    flat: list[Expr] = []
    for item in items:
        flat += item.items if isinstance(item, Series) else (item,)
    if any(item == NEVER for item in flat):
        return NEVER
    return flat[0] if len(flat) == 1 else Series(tuple(flat))


def options(items: list[Expr]) -> Expr:
    flat: dict[Expr, None] = {}
    for item in items:
        flat |= dict.fromkeys(item.items if isinstance(item, Options) else (item,))
    return next(iter(flat)) if len(flat) == 1 else Options(tuple(flat))


def times(item: Expr, low: int, high: int | None) -> Expr:
    if item == EMPTY or high == 0 or (item == NEVER and low == 0):
        return EMPTY
    return item if item == NEVER or (low, high) == (1, 1) else Times(item, low, high)


def children(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Series | Options):
        return expr.items
    assert not isinstance(expr, Except), "exceptions were worked out"
    return (expr.item,) if isinstance(expr, Times) else ()


def names(expr: Expr) -> Iterator[Name]:
    """Every use of a rule, in order."""
    stack = [expr]
    while stack:
        at = stack.pop()
        if isinstance(at, Name):
            yield at
        stack += reversed(children(at))


def clean(rules: Mapping[str, Rule], start: str) -> Rules:
    """The rules that ``start`` can use, without what derives no text, short ones and simple loops written in place.

    Raises ``GrammarSyntaxError`` for a name without a rule, ``UnsatisfiableError`` if ``start`` derives no text, and
    ``GrammarBudgetError`` for more than ``MAX_NODES`` parts.
    """
    nodes = 0
    for rule in rules.values():
        nodes += _size(rule.body)[0]
        for use in names(rule.body):
            if use.name not in rules:
                raise GrammarSyntaxError(
                    f"the rule {use.name!r} is used at character {use.position} but not defined",
                    position=use.position,
                    param="grammar",
                    hint=f"define {use.name!r}, or quote it if it is text",
                )
    if nodes > MAX_NODES:
        raise GrammarBudgetError(
            f"the grammar has {nodes} parts, the limit is {MAX_NODES}", limit="max_grammar_nodes", param="grammar"
        )
    bodies = {name: rule.body for name, rule in rules.items()}
    productive = _productive(bodies)
    if start not in productive:
        raise UnsatisfiableError(f"the rule {start!r} derives no finite text", param="grammar")
    kept = {name: _pruned(bodies[name], productive) for name in bodies if name in productive}
    kept = {name: _without_loop(name, body) for name, body in kept.items()}
    return _reachable(_inlined(kept, start, _INLINE_SIZE, _INLINE_DEPTH), start)


def as_regex(rules: Rules, start: str) -> regex_syntax.Node | None:
    """The whole language as one regex tree, if no rule is recursive and the tree is small."""
    whole = _inlined(rules, start, _REGEX_SIZE, _REGEX_DEPTH)[start]
    return None if any(names(whole)) else _regex(whole)


def _regex(expr: Expr) -> regex_syntax.Node:
    if isinstance(expr, Text):
        return regex_syntax.Concat(tuple(Chars(normalise([(ord(c), ord(c))])) for c in expr.text))
    if isinstance(expr, Series):
        return regex_syntax.Concat(tuple(map(_regex, expr.items)))
    if isinstance(expr, Options):
        return regex_syntax.Alt(tuple(map(_regex, expr.items)))
    if isinstance(expr, Times):
        return regex_syntax.Repeat(_regex(expr.item), expr.low, expr.high)
    assert isinstance(expr, Chars), "names were written in place"
    return expr


def _size(expr: Expr) -> tuple[int, int]:
    """(parts, depth)."""
    inner = [_size(child) for child in children(expr)]
    own = len(expr.text) if isinstance(expr, Text) else 1
    return own + sum(n for n, _ in inner), 1 + max((d for _, d in inner), default=0)


def _productive(bodies: Rules) -> set[str]:
    """Rules that derive a finite text."""
    found: set[str] = set()

    def good(expr: Expr) -> bool:
        if isinstance(expr, Name):
            return expr.name in found
        if isinstance(expr, Options):
            return any(map(good, expr.items))
        if isinstance(expr, Times):
            return expr.low == 0 or good(expr.item)
        if isinstance(expr, Chars):
            return bool(expr.ranges)
        return all(map(good, children(expr)))

    users: dict[str, list[str]] = {}
    for name, body in bodies.items():
        for use in names(body):
            users.setdefault(use.name, []).append(name)
    queue = list(bodies)
    while queue:  # a rule is looked at again only when one that it uses was found
        name = queue.pop()
        if name not in found and good(bodies[name]):
            found.add(name)
            queue += users.get(name, ())
    return found


def _pruned(expr: Expr, productive: set[str]) -> Expr:
    """``expr`` without the parts that derive no text."""
    if isinstance(expr, Name):
        return expr if expr.name in productive else NEVER
    if isinstance(expr, Chars):
        return expr if expr.ranges else NEVER
    if isinstance(expr, Series):
        return series([_pruned(item, productive) for item in expr.items])
    if isinstance(expr, Options):
        found = [_pruned(item, productive) for item in expr.items]
        return options([item for item in found if item != NEVER])
    if isinstance(expr, Times):
        return times(_pruned(expr.item, productive), expr.low, expr.high)
    return expr


def _alternatives(expr: Expr) -> list[Expr]:
    if isinstance(expr, Options):
        return [a for item in expr.items for a in _alternatives(item)]
    if isinstance(expr, Times) and (expr.low, expr.high) == (0, 1):
        return [*_alternatives(expr.item), EMPTY]
    return [expr]


def _without_loop(name: str, body: Expr) -> Expr:
    """``x ::= a x | b`` as ``a* b``, ``x ::= x a | b`` as ``b a*``: the same texts without recursion."""
    base: list[Expr] = []
    tails: list[Expr] = []
    heads: list[Expr] = []
    for option in _alternatives(body):
        uses = sum(use.name == name for use in names(option))
        items = option.items if isinstance(option, Series) else (option,)
        if not uses:
            base.append(option)
        elif uses > 1:
            return body
        elif isinstance(items[-1], Name) and items[-1].name == name:
            tails.append(series(list(items[:-1])))
        elif isinstance(items[0], Name) and items[0].name == name:
            heads.append(series(list(items[1:])))
        else:
            return body
    tails = [item for item in tails if item != EMPTY]  # x ::= x adds nothing
    if not tails and not heads:
        return options(base)
    if tails and heads:
        return body
    loop = times(options(tails or heads), 0, None)
    return series([loop, options(base)] if tails else [options(base), loop])


def _inlined(bodies: Rules, start: str, max_size: int, max_depth: int) -> Rules:
    """Non-recursive rules are written where they are used while that stays small."""
    done: Rules = {}
    sizes: dict[str, tuple[int, int]] = {}
    small: set[str] = set()  # they use no rule any more, so none of them is recursive

    def put(expr: Expr) -> Expr:
        if isinstance(expr, Name):
            return done[expr.name] if expr.name in small else expr
        if isinstance(expr, Series):
            return series([put(item) for item in expr.items])
        if isinstance(expr, Options):
            return options([put(item) for item in expr.items])
        if isinstance(expr, Times):
            return times(put(expr.item), expr.low, expr.high)
        return expr

    for name in _post_order(bodies, start):
        grown = _grown(bodies[name], sizes, small)
        done[name] = put(bodies[name]) if grown <= MAX_NODES else bodies[name]
        sizes[name] = _size(done[name])
        if sizes[name][0] <= max_size and sizes[name][1] <= max_depth and not any(names(done[name])):
            small.add(name)
    return done


def _grown(expr: Expr, sizes: Mapping[str, tuple[int, int]], small: set[str]) -> int:
    """Parts of ``expr`` once its small rules are written in place."""
    return _size(expr)[0] + sum(sizes[use.name][0] for use in names(expr) if use.name in small)


def _post_order(bodies: Rules, start: str) -> list[str]:
    """Rules reachable from ``start``, each after those that it uses unless they are recursive."""
    order: list[str] = []
    seen = {start}
    stack = [(start, iter([use.name for use in names(bodies[start])]))]
    while stack:
        name, uses = stack[-1]
        new = next((use for use in uses if use not in seen), None)
        if new is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(new)
            stack.append((new, iter([use.name for use in names(bodies[new])])))
    return order


def _reachable(bodies: Rules, start: str) -> Rules:
    order = _post_order(bodies, start)
    return {name: bodies[name] for name in reversed(order)}
