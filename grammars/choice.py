"""One of a list of strings: a byte trie behind the same token automaton. Any number of strings, any prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError
from constrained_spec.grammars.automaton import TrieAutomaton
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.tokens import TokenIndex, Tokenization

MAX_CHOICE_BYTES = 1 << 24


def compile_choice(
    options: Sequence[str], index: TokenIndex, key: str, *, tokenization: Tokenization = "any"
) -> DfaGrammar:
    """Duplicates count once; the empty string means that nothing need be written.

    Raises ``UnsatisfiableError`` for an empty list, ``RequestError`` for what is no text, ``GrammarBudgetError``.
    """
    if not options:
        raise UnsatisfiableError("the list of choices is empty", param="choice")
    encoded = set()
    for i, option in enumerate(options):
        if not isinstance(option, str):
            raise RequestError(f"choice {i} is not a string: {option!r}", param=f"choice/{i}")
        try:
            encoded.add(option.encode())
        except UnicodeEncodeError:
            raise RequestError(f"choice {i} holds half a surrogate pair", param=f"choice/{i}") from None
    total = sum(map(len, encoded))
    if total > MAX_CHOICE_BYTES:
        raise GrammarBudgetError(
            f"the choices hold {total} bytes, the limit is {MAX_CHOICE_BYTES}",
            limit="max_choice_bytes",
            param="choice",
        )
    return DfaGrammar(TrieAutomaton(sorted(encoded)), index, key, "list of choices", tokenization)
