"""The same laws over a real vocabulary of 49,152 tokens, sampled."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from constrained_spec.backends.catalogue import ensure
from constrained_spec.backends.vocabulary import build_vocabulary
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.tokens import is_set, token_index
from constrained_spec.types import Vocabulary

pytestmark = pytest.mark.model

CONSTRAINTS: list[Constraint] = [
    Regex(r"[A-Z][a-z]{1,12}( [a-zé]+){0,5}\."),
    Choice(("positive", "negative", "neutral", "not sure")),
    JsonSchema({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"], "additionalProperties": False}),
    Lark('start: "SELECT " name (", " name)* " FROM " name\nname: /[a-z_]{1,20}/'),
]  # fmt: skip


@pytest.fixture(scope="module")
def real_vocabulary() -> Vocabulary:
    from transformers import AutoTokenizer

    folder = ensure("smollm2-135m")
    eos = json.loads((folder / "config.json").read_text()).get("eos_token_id", 2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return build_vocabulary(tokenizer, 49152, eos if isinstance(eos, list) else [eos])


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("tokenization", ["any", "canonical"])
def test_a_mask_bit_is_set_exactly_when_advance_succeeds(
    constraint: Constraint, tokenization: str, real_vocabulary: Vocabulary
) -> None:
    grammar = compile_constraint(constraint, real_vocabulary, tokenization=tokenization)
    rng = random.Random(1)
    row = np.empty(real_vocabulary.mask_words, np.int32)
    eos = set(real_vocabulary.eos_ids)
    for _ in range(3):
        matcher = grammar.matcher()
        for _ in range(10):
            matcher.mask_into(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            legal = np.flatnonzero(bits).tolist()
            assert not {i for i in legal if real_vocabulary.tokens[i] is None} - eos
            for token in {*rng.sample(range(real_vocabulary.size), 300), *rng.sample(legal, min(50, len(legal)))}:
                mark = matcher.mark()
                assert matcher.advance(token) == is_set(row, token)
                matcher.rollback(mark)
            text = [t for t in legal if t not in eos]
            if not text:
                break
            assert matcher.advance(rng.choice(text))


def test_llguidance_reads_the_tokeniser_itself(real_vocabulary: Vocabulary) -> None:
    assert token_index(real_vocabulary).engine.is_canonical


def test_forced_text_is_spelled_as_the_tokeniser_does(real_vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    matcher = compile_constraint(JsonSchema(schema), real_vocabulary).matcher()
    assert matcher.forced() == b'{"name": "'
    assert matcher.forced_tokens() == real_vocabulary.encode('{"name": "')
    assert all(matcher.advance(t) for t in matcher.forced_tokens())
