"""Combined constraints to grammars.

Made of ``Regex`` and ``Choice`` alone: one byte automaton, exact. Beyond its budget, or with a ``JsonSchema``, a
``Lark`` grammar or a special token inside: one llguidance grammar, the regular parts as its terminals; a place where
longest-match lexing would lose texts is refused (``combine_tree``). A ``Lark`` part ends as its own longest match says.
``All`` and ``Without`` over what is not regular run side by side (``product``), at the outermost level only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError
from constrained_spec.grammars import tools
from constrained_spec.grammars.automaton import TableAutomaton, TooLarge, TrieAutomaton
from constrained_spec.grammars.automaton_algebra import intersect, subtract
from constrained_spec.grammars.choice import compile_choice
from constrained_spec.grammars.combine_dfa import (
    ANYTHING,
    accepts,
    as_table,
    containing,
    first_at_end,
    free_of,
    from_tree,
    literal,
)
from constrained_spec.grammars.combine_embed import embed, refuse_relaxed
from constrained_spec.grammars.combine_lark import (
    ANY_TEXT,
    SOME_TEXT,
    Writer,
    meet,
    other_than,
    terminal_of,
    text_of,
    texts_of,
    with_within,
)
from constrained_spec.grammars.combine_tree import Either, Many, Seq, Token, Tree, Word, check_boundaries, fold
from constrained_spec.grammars.constraints import (
    All,
    AnyOf,
    Choice,
    Constraint,
    JsonSchema,
    Lark,
    Lazy,
    Optional,
    Regex,
    Tagged,
    Then,
    ToolCalls,
    Without,
    is_regular,
)
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.llg import EngineError, LlgGrammar, header, refuse
from constrained_spec.grammars.nfa import build_automaton
from constrained_spec.grammars.product import ProductGrammar
from constrained_spec.grammars.regex_syntax import Concat, parse
from constrained_spec.grammars.regex_tree import simplify
from constrained_spec.grammars.simple import compile_simple
from constrained_spec.grammars.tokens import TokenIndex, Tokenization

MAX_TERMINAL_OPTIONS = 5_000

_ANY = Regex("(?s).*")


def compile_combination(
    constraint: Constraint, index: TokenIndex, key: str, tokenization: Tokenization
) -> DfaGrammar | LlgGrammar | ProductGrammar:
    """Raises what the parts' compilers raise, ``UnsatisfiableError`` naming the parts that exclude each other,
    ``GrammarBudgetError``, and ``RequestError`` for a combination that cannot be enforced exactly."""
    if isinstance(constraint, JsonSchema | Regex | Choice | Lark):
        return compile_simple(constraint, index, key, tokenization)
    factors = _factors(constraint)
    if len(factors) > 1:
        plain = [f for f in factors if is_regular(f)]
        rest: list[Constraint] = [f for f in factors if not is_regular(f)]
        return _side_by_side(([All(*plain)] if plain else []) + rest, factors, index, key, tokenization)
    (constraint,) = factors
    try:
        return _joined(constraint, index, key, tokenization)
    except GrammarBudgetError:
        # Each part may fit where their product does not.
        if isinstance(constraint, All) and len(constraint.parts) > 1:
            return _side_by_side(constraint.parts, constraint.parts, index, key, tokenization)
        if isinstance(constraint, Without) and constraint.base != _ANY:
            parts = (constraint.base, Without(_ANY, constraint.banned))
            return _side_by_side(parts, parts, index, key, tokenization)
        raise


def _side_by_side(
    parts: Sequence[Constraint], named: Sequence[Constraint], index: TokenIndex, key: str, tokenization: Tokenization
) -> ProductGrammar:
    grammars = [compile_combination(p, index, f"{key}/{i}", tokenization) for i, p in enumerate(parts)]
    for grammar in grammars:
        refuse_relaxed(grammar)
    return ProductGrammar(grammars, index, key, _names(named), sum(g.nbytes for g in grammars))


def _joined(constraint: Constraint, index: TokenIndex, key: str, tokenization: Tokenization) -> DfaGrammar | LlgGrammar:
    tree = fold(Builder(index).tree(constraint))
    if isinstance(tree, Word) and tree.automaton is not None:
        return DfaGrammar(tree.automaton, index, key, "combination", tokenization)
    check_boundaries(tree)
    writer = Writer()
    text = header(tokenization) + writer.text(tree)
    try:
        return LlgGrammar(text, index, key, "combination", tokenization, sorted(set(writer.named)))
    except EngineError as error:
        raise refuse(error, "combination", "combination") from None


def _factors(constraint: Constraint) -> list[Constraint]:
    """Constraints whose intersection ``constraint`` is; one alone if it is regular or no intersection."""
    if is_regular(constraint):
        return [constraint]
    if isinstance(constraint, All):
        return [f for part in constraint.parts for f in _factors(part)]
    if isinstance(constraint, Without):
        if not isinstance(constraint.banned, str) and not is_regular(constraint.banned):
            raise RequestError(
                f"what is banned is made of Regex and Choice only, not {describe(constraint.banned)}",
                param="banned",
                hint="pass a regex",
            )
        return [*_factors(constraint.base), Without(_ANY, constraint.banned)]
    return [constraint]


def describe(constraint: Constraint) -> str:
    text = repr(constraint)
    return text if len(text) <= 80 else text[:77] + "..."


def _names(constraints: Sequence[Constraint]) -> str:
    return " and ".join(map(describe, constraints))


class Builder:
    """Constraints to trees over ``index``'s vocabulary."""

    def __init__(self, index: TokenIndex) -> None:
        self.index = index
        vocabulary = index.vocabulary
        self.special: Mapping[str, int] = {
            name: i
            for name, i in vocabulary.special.items()
            if vocabulary.tokens[i] is None and i not in vocabulary.eos_ids
        }

    def tree(self, constraint: Constraint) -> Tree:
        if isinstance(constraint, JsonSchema | Lark):
            return embed(constraint, self.index, describe(constraint))
        if isinstance(constraint, Regex):
            return self._regex(constraint)
        if isinstance(constraint, Choice):
            return self._choice(constraint)
        if isinstance(constraint, All):
            return self._all(constraint)
        if isinstance(constraint, Without):
            return self._without(constraint)
        if isinstance(constraint, Then):
            return Seq(tuple(map(self.tree, constraint.parts)))
        if isinstance(constraint, AnyOf):
            return Either(tuple(map(self.tree, constraint.parts)))
        if isinstance(constraint, Optional):
            return Many(self.tree(constraint.part), 0, False)
        if isinstance(constraint, Lazy):
            return self.tagged([(constraint.trigger, self.tree(constraint.constraint), "")], False, True)
        if isinstance(constraint, Tagged):
            blocks = [(tag.begin, self.tree(tag.constraint), tag.end) for tag in constraint.tags]
            return self.tagged(blocks, constraint.at_least_one, constraint.stop_after_first)
        assert isinstance(constraint, ToolCalls)
        return tools.calls(constraint, self)

    def word(self, constraint: Constraint) -> Word:
        """The one word of a constraint without special tokens in it. Raises ``RequestError`` for any other."""
        if is_regular(constraint):
            tree = fold(self.tree(constraint))
            if isinstance(tree, Word):
                return tree
            raise RequestError(
                f"{describe(constraint)} holds a special token, so it cannot be intersected", param="combination"
            )
        raise RequestError(
            f"an intersection within another constraint is for Regex and Choice only, not for {describe(constraint)}",
            param="combination",
            hint="make All or Without the outermost constraint",
        )

    def text(self, text: str) -> Word:
        return Word(from_tree(literal(text)), text_of(text), repr(text))

    def free_unless_first(self, head: str) -> Word:
        """Text that does not begin with ``head``."""
        starting = from_tree(Concat((literal(head), ANYTHING)))
        rest = subtract(from_tree(ANYTHING), starting)
        assert rest is not None
        return Word(rest, meet(ANY_TEXT, other_than(f"({text_of(head)} {ANY_TEXT})")), "free text")

    def free(self, begins: Sequence[str]) -> Word:
        """Text without any of ``begins``; any text if there are none."""
        if not begins:
            return self._regex(_ANY)
        terminal = meet(ANY_TEXT, other_than(with_within(texts_of(tuple(begins)))))
        return Word(free_of(begins), terminal, "free text")

    def _regex(self, constraint: Regex) -> Word:
        tree = simplify(parse(constraint.pattern))
        automaton, limit = None, ""
        try:
            automaton = build_automaton(tree)
        except TooLarge as error:
            limit = error.limit
        return Word(automaton, terminal_of(tree), describe(constraint), limit)

    def _choice(self, constraint: Choice) -> Word:
        automaton = compile_choice(constraint.options, self.index, "").automaton
        terminal = texts_of(constraint.options) if len(constraint.options) <= MAX_TERMINAL_OPTIONS else None
        strings = tuple(sorted({option.encode() for option in constraint.options}))
        return Word(automaton, terminal, describe(constraint), "max_terminal_options", strings)

    def _all(self, constraint: All) -> Word:
        words = [self.word(part) for part in constraint.parts]
        terminals = [w.terminal for w in words if w.terminal is not None]
        terminal = meet(*terminals) if len(terminals) == len(words) else None
        what = _names(constraint.parts)
        listed = next((w for w in words if w.strings is not None), None)
        automata = [w.automaton for w in words if w.automaton is not None]
        if len(automata) < len(words):
            return Word(None, terminal, what, next(w.limit for w in words if w.automaton is None))
        if listed is not None and listed.strings is not None:
            strings = tuple(s for s in listed.strings if all(accepts(a, s) for a in automata))
            return self._listed(strings, terminal, f"no text satisfies all of {what}", what)
        try:
            both = reduce(_meet, map(as_table, automata))
        except TooLarge as error:
            return Word(None, terminal, what, error.limit)
        except UnsatisfiableError:
            raise UnsatisfiableError(f"no text satisfies all of {what}", param="combination") from None
        return Word(both, terminal, what)

    def _without(self, constraint: Without) -> Word:
        base = self.word(constraint.base)
        banned_constraint = Regex(constraint.banned) if isinstance(constraint.banned, str) else constraint.banned
        banned = self.word(banned_constraint)
        what = describe(constraint)
        terminal = None
        if base.terminal is not None and banned.terminal is not None:
            terminal = meet(base.terminal, other_than(with_within(banned.terminal)))
        nothing = f"every text of {describe(constraint.base)} holds a match of {describe(banned_constraint)}"
        for word in (base, banned):
            if word.automaton is None:
                return Word(None, terminal, what, word.limit)
        assert base.automaton is not None and banned.automaton is not None
        try:
            holding = containing(banned.automaton)
            if base.strings is not None:
                strings = tuple(s for s in base.strings if not accepts(holding, s))
                return self._listed(strings, terminal, nothing, what)
            rest = subtract(as_table(base.automaton), holding)
        except TooLarge as error:
            return Word(None, terminal, what, error.limit)
        if rest is None:
            raise UnsatisfiableError(nothing, param="combination")
        return Word(rest, terminal, what)

    def _listed(self, strings: tuple[bytes, ...], terminal: str | None, nothing: str, what: str) -> Word:
        if not strings:
            raise UnsatisfiableError(nothing, param="combination")
        return Word(TrieAutomaton(strings), terminal, what, "max_terminal_options", strings)

    def mark(self, text: str) -> Tree:
        """``text``, or the special token of that name."""
        word = self.text(text)
        return Either((word, Token(self.special[text]))) if text in self.special else word

    def tagged(self, tags: Sequence[tuple[str, Tree, str]], at_least_one: bool, stop: bool) -> Tree:
        """Free text with blocks in it; ``tags`` are their (begin, content, end). ``stop``: the first block ends it."""
        begins = [begin for begin, _, _ in tags]
        free = self.free(begins)
        blocks = Either(tuple(self._block(begin, inner, end, begins, free) for begin, inner, end in tags))
        if stop:
            return blocks if at_least_one else Either((free, blocks))
        return Seq((Many(blocks, int(at_least_one), True), free))

    def _block(self, begin: str, inner: Tree, end: str, begins: Sequence[str], free: Word) -> Tree:
        """Free text, ``begin``, ``inner`` and ``end``."""
        terminal = meet(
            f"({ANY_TEXT} {text_of(begin)})", other_than(f"({ANY_TEXT} {texts_of(tuple(begins))} {SOME_TEXT})")
        )
        head: Tree = Word(first_at_end(begins, begin), terminal, f"free text and {begin!r}")
        if begin in self.special:
            head = Either((head, Seq((free, Token(self.special[begin])))))
        if not end:
            return Seq((head, inner))
        plain = fold(inner)
        ended: Tree = self._until(plain, end) if isinstance(plain, Word) else Seq((plain, self.text(end)))
        if end in self.special:
            before = self._never(plain, end) if isinstance(plain, Word) else plain
            ended = Either((ended, Seq((before, Token(self.special[end])))))
        return Seq((head, ended))

    def _until(self, word: Word, end: str) -> Word:
        """A text of ``word`` and ``end``, where ``end`` has not appeared before."""
        joined = fold(Seq((word, self.text(end))))
        assert isinstance(joined, Word)
        first = Word(
            first_at_end((end,), end),
            meet(f"({ANY_TEXT} {text_of(end)})", other_than(f"({ANY_TEXT} {text_of(end)} {SOME_TEXT})")),
            repr(end),
        )
        return self._both(joined, first, f"no text of {word.what} can stand before its end {end!r}")

    def _never(self, word: Word, text: str) -> Word:
        return self._both(word, self.free((text,)), f"every text of {word.what} holds {text!r}")

    def _both(self, a: Word, b: Word, nothing: str) -> Word:
        terminal = None if a.terminal is None or b.terminal is None else meet(a.terminal, b.terminal)
        if a.automaton is None or b.automaton is None:
            return Word(None, terminal, a.what, a.limit or b.limit)
        try:
            both = intersect(as_table(a.automaton), as_table(b.automaton))
        except TooLarge as error:
            return Word(None, terminal, a.what, error.limit)
        if both is None:
            raise UnsatisfiableError(nothing, param="combination")
        return Word(both, terminal, a.what)


def _meet(a: TableAutomaton, b: TableAutomaton) -> TableAutomaton:
    both = intersect(a, b)
    if both is None:
        raise UnsatisfiableError("no text satisfies both")
    return both
