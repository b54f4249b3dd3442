"""Asking what is forced changes nothing, however far the engine looks; texts that are never closed are read in a time
that grows with their length."""

from __future__ import annotations

import numpy as np
import pytest

from constrained_spec.errors import GrammarSyntaxError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.constraints import Lark
from constrained_spec.grammars.llg import budget_of
from constrained_spec.grammars.notation import normalise_grammar
from constrained_spec.types import Vocabulary

BYTES = Vocabulary((None, *(bytes([i]) for i in range(256))), (0,), {}, lambda text: [b + 1 for b in text.encode()])
DOUBLING = "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60: "x"'


def test_looking_far_ahead_costs_the_next_step_nothing() -> None:
    """2**60 characters are forced; the engine's limits on one step hold for steps, not for the look ahead."""
    matcher = compile_constraint(Lark(DOUBLING), BYTES).matcher()
    row = np.zeros(BYTES.mask_words, np.int32)
    for _ in range(5):
        assert set(matcher.forced()) <= {ord("x")}
        matcher.mask_into(row)
        assert matcher.advance(ord("x") + 1)


def test_a_limit_of_the_engine_is_a_budget() -> None:
    assert budget_of("lexer error: too many expressions constructed") == "max_lexer_states"


@pytest.mark.parametrize(
    "text",
    ["root ::= " + "[" * 190_000, 'root ::= "' + '\\"' * 90_000, "x = " + "(*" * 90_000, "x = " + "/*" * 90_000],
)
def test_what_is_never_closed_is_refused(text: str) -> None:
    with pytest.raises(GrammarSyntaxError):
        normalise_grammar(text)


def test_a_long_text_of_escapes() -> None:
    assert normalise_grammar('root ::= "' + "\\n" * 90_000 + '"').startswith("start:")
