"""Regex to grammar: our automaton where it fits its budget, llguidance's regex for the same tree where it does not."""

from __future__ import annotations

from constrained_spec.errors import GrammarBudgetError
from constrained_spec.grammars.automaton import TooLarge
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.llg import LlgGrammar, header
from constrained_spec.grammars.nfa import build_automaton
from constrained_spec.grammars.regex_syntax import parse
from constrained_spec.grammars.regex_tree import render_rust, simplify
from constrained_spec.grammars.tokens import TokenIndex, Tokenization


def compile_regex(
    pattern: str, index: TokenIndex, key: str, *, tokenization: Tokenization = "any"
) -> DfaGrammar | LlgGrammar:
    """The flavour is ``regex_syntax``'s.

    Raises ``GrammarSyntaxError`` with a position, ``UnsatisfiableError``, ``GrammarBudgetError``.
    """
    tree = simplify(parse(pattern))
    try:
        automaton = build_automaton(tree)
    except TooLarge as error:
        text = render_rust(tree)
        if text is None:
            raise GrammarBudgetError(
                f"the automaton of a regex with lookaheads exceeds {error.limit}", limit=error.limit, param="regex"
            ) from None
        # No slash needs escaping: every character is written as a number.
        return LlgGrammar(f"{header(tokenization)}start: /{text}/\n", index, key, "regex", tokenization)
    return DfaGrammar(automaton, index, key, "regex", tokenization)
