"""The real model under trees: the very tokens of target-only decoding, greedy and seeded, for every constraint kind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from constrained_spec.api import Engine, Result
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.drafters.tree_model import TreeModelDrafter
from constrained_spec.grammars.compile import Choice, Lark, Regex
from constrained_spec.processors.pipeline import Pipeline

pytestmark = pytest.mark.model

TIE = 1e-4  # a top-2 gap of log-probabilities below this on both paths excuses a difference
PROMPTS = (
    "Extract name and age: Ada Lovelace died at 36.",
    "Copy: aaaa bbbb aaaa bbbb aaaa bbbb",
    "Give a list of two people as JSON, then the same list again.",
)
CONSTRAINTS: dict[str, object] = {
    "none": None,
    "schema": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 200}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        "minItems": 2,
        "maxItems": 3,
    },
    "regex": Regex(r"[A-Z][a-z]{2,10}( [a-z]{1,8}){1,6}, \d{1,4}\."),
    "choice": Choice(("yes", "no", "yes, of course", "it depends on the weather", "not at all")),
    "lark": Lark('start: item (", " item){2,5}\nitem: /[a-z]{2,8}/ " = " NUMBER\nNUMBER: /[0-9]{1,3}/'),
}


@pytest.fixture(scope="module")
def drafters(smollm2: Engine, draft: TransformersModel) -> list[Drafter]:
    pipeline = Pipeline(smollm2.model.vocabulary)
    return [
        TreeDrafter(),
        TreeModelDrafter(draft, pipeline, smollm2.model.vocabulary, width=2, depth=3, beam=2),
    ]


def answer(engine: Engine, prompt: str, constraint: object, drafter: str | Drafter, **options: Any) -> Result[Any]:
    return engine.generate(
        [{"role": "user", "content": prompt}], constraint, max_tokens=24, logprobs=2, drafter=drafter, **options
    )


def excused(a: Result[Any], b: Result[Any]) -> bool:
    """A float tie at the first difference, seen by both."""
    at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a.tokens, b.tokens, strict=False)))
    gaps = [r.logprobs[at].top[0][1] - r.logprobs[at].top[1][1] for r in (a, b)]
    return max(gaps) < TIE


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_greedy_identity(smollm2: Engine, drafters: list[Drafter], name: str) -> None:
    ties = accepted = 0
    for prompt in PROMPTS:
        base = answer(smollm2, prompt, CONSTRAINTS[name], "none")
        for drafter in drafters:
            result = answer(smollm2, prompt, CONSTRAINTS[name], drafter, gamma=10)
            assert result.speculation.disabled_reason is None
            accepted += result.speculation.accepted
            if result.tokens != base.tokens:
                assert excused(base, result), (prompt, drafter.name, base.text, result.text)
                ties += 1
                continue
            assert (result.text, result.finish_reason) == (base.text, base.finish_reason)
            pairs = zip(result.logprobs, base.logprobs, strict=True)
            assert all(abs(a.logprob - b.logprob) < 1e-2 for a, b in pairs)
    assert ties <= 1
    assert accepted > 0


def test_seeded_identity(smollm2: Engine, drafters: list[Drafter]) -> None:
    """The invariant verifier: a seed gives one text, whatever the tree."""
    for name, prompt in (("none", PROMPTS[1]), ("schema", PROMPTS[0])):
        options: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95, "seed": 7, "verifier": "invariant"}
        base = answer(smollm2, prompt, CONSTRAINTS[name], "none", **options)
        for drafter in drafters:
            result = answer(smollm2, prompt, CONSTRAINTS[name], drafter, gamma=10, **options)
            assert result.speculation.disabled_reason is None
            assert result.tokens == base.tokens


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize("name", ["none", "schema", "regex"])
def test_the_shipped_heads_grow_trees(smollm2: Engine, kind: str, name: str) -> None:
    base = answer(smollm2, PROMPTS[0], CONSTRAINTS[name], "none")
    result = answer(smollm2, PROMPTS[0], CONSTRAINTS[name], kind, verifier="tree", gamma=12)
    assert result.speculation.disabled_reason is None
    assert result.speculation.proposed > 12, "a round has room for a dozen"
    assert result.speculation.accepted > 0
    assert result.tokens == base.tokens or excused(base, result)
