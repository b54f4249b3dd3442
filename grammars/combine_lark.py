"""A tree of lexemes as one Lark text for llguidance."""

from __future__ import annotations

from constrained_spec.errors import GrammarBudgetError
from constrained_spec.grammars.combine_dfa import literal
from constrained_spec.grammars.combine_tree import Either, Embed, Many, Seq, Token, Tree, Word, nullable
from constrained_spec.grammars.regex_syntax import Alt, Concat, Meet, Node
from constrained_spec.grammars.regex_tree import render_rust

ANY_TEXT = "/(?s:.*)/"
SOME_TEXT = "/(?s:.+)/"


def terminal_of(tree: Node) -> str:
    """A regex tree as a Lark terminal; intersections, which only end a tree, become ``&`` and ``~``."""
    plain = render_rust(tree)
    if plain is not None:
        return f"/{plain}/"  # no slash needs escaping: every character is written as a number
    if isinstance(tree, Meet):
        look = terminal_of(tree.look)
        # ~ alone would also allow what is no UTF-8.
        other = f"(~({look}) & {ANY_TEXT})" if tree.negate else f"({look})"
        return f"(({terminal_of(tree.item)}) & {other})"
    assert isinstance(tree, Concat | Alt), "a repeat holds no intersection"
    return "(" + (" " if isinstance(tree, Concat) else " | ").join(map(terminal_of, tree.items)) + ")"


def text_of(text: str) -> str:
    """``text`` as a Lark terminal."""
    return terminal_of(literal(text)) if text else '""'


def texts_of(texts: tuple[str, ...]) -> str:
    return "(" + " | ".join(map(text_of, texts)) + ")"


def meet(*terminals: str) -> str:
    return "(" + " & ".join(f"({t})" for t in terminals) + ")"


def other_than(terminal: str) -> str:
    return f"(~({terminal}) & {ANY_TEXT})"


def with_within(terminal: str) -> str:
    """Texts with a substring out of ``terminal``."""
    return f"({ANY_TEXT} ({terminal}) {ANY_TEXT})"


class Writer:
    """Collects the definitions that the rule ``start`` needs."""

    def __init__(self) -> None:
        self.named: list[int] = []
        self._lines: list[str] = []
        self._names: dict[int, str] = {}

    def text(self, tree: Tree) -> str:
        start = self._rule(tree)
        return "\n".join([f"start: {start}", *self._lines]) + "\n"

    def _rule(self, tree: Tree) -> str:
        if isinstance(tree, Seq):
            return "(" + " ".join(map(self._rule, tree.items)) + ")"
        if isinstance(tree, Either):
            return "(" + " | ".join(map(self._rule, tree.items)) + ")"
        if isinstance(tree, Many):
            sign = ("+" if tree.low else "*") if tree.repeat else ("" if tree.low else "?")
            return f"({self._rule(tree.item)}){sign}"
        if isinstance(tree, Token):
            self.named.append(tree.token)
            return f"<[{tree.token}]>"
        if id(tree) not in self._names:
            self._names[id(tree)] = self._define(tree)
        return self._names[id(tree)]

    def _define(self, leaf: Word | Embed) -> str:
        number = len(self._lines)
        if isinstance(leaf, Embed):
            self.named += leaf.named
            self._lines.append(f"part_{number}: {leaf.body}")
            return f"part_{number}"
        if leaf.terminal is None:
            raise GrammarBudgetError(
                f"the automaton of {leaf.what} exceeds {leaf.limit}", limit=leaf.limit, param="combination"
            )
        # The empty text becomes an option of the rule; where it is not known to be a text, the engine finds out.
        empty = leaf.automaton is not None and nullable(leaf)
        self._lines.append(f"WORD_{number}: {meet(leaf.terminal, SOME_TEXT) if empty else leaf.terminal}")
        return f"WORD_{number}?" if empty else f"WORD_{number}"
