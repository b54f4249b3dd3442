"""Constraints and options of the library's face on the real model, with speculation on."""

from __future__ import annotations

import json

import jsonschema
import pytest

import constrained_spec as cs
from constrained_spec.api import Engine
from constrained_spec.errors import ConfigError, UnsatisfiableError, UnsupportedSchemaError

pytestmark = pytest.mark.model

ASK = [{"role": "user", "content": "What is the weather in Paris? Then book a table for 4 at 19:30."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }
    for name, properties in (
        ("weather", {"city": {"type": "string", "maxLength": 12}}),
        (
            "book",
            {
                "people": {"type": "integer", "minimum": 1, "maximum": 20},
                "at": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
            },
        ),
    )
]


@pytest.mark.parametrize("syntax", ["hermes", "llama3", "mistral", "json"])
@pytest.mark.parametrize(("choice", "parallel"), [("required", True), ("required", False), ("book", False)])
def test_tool_calls_are_valid_and_the_same_with_drafts(
    smollm2: Engine, syntax: str, choice: str, parallel: bool
) -> None:
    wanted = cs.ToolCalls(TOOLS, choice=choice, parallel=parallel, syntax=syntax)  # type: ignore[arg-type]
    result = smollm2.generate(ASK, wanted, max_tokens=120)
    plain = smollm2.generate(ASK, wanted, max_tokens=120, speculation=False)
    assert result.tokens == plain.tokens
    if result.finish_reason == "stop":
        assert result.parsed is not None
        _, calls = result.parsed
        assert calls and (parallel or len(calls) == 1)
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}  # type: ignore[index]
        for name, arguments in calls:
            assert choice in ("required", name)
            jsonschema.validate(arguments, schemas[name])


def test_text_closes_within_the_limit(smollm2: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"story": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["story", "tags"],
        "additionalProperties": False,
    }
    ask = "Write a very long story as JSON."
    for drafter in ("none", "auto"):
        cut = smollm2.generate(ask, schema, max_tokens=40, drafter=drafter)
        assert cut.finish_reason == "length" and cut.parsed is None and cut.declared == ()
        whole = smollm2.generate(ask, schema, max_tokens=40, drafter=drafter, close_on_length=True)
        assert whole.parsed is not None
        assert whole.finish_reason == "stop" and set(whole.parsed) == {"story", "tags"}
        assert whole.usage.completion_tokens <= 40 and whole.declared == ("close_on_length",)
    with pytest.raises(UnsatisfiableError):
        smollm2.generate(ask, schema, max_tokens=3, close_on_length=True)
    with pytest.raises(ConfigError, match="close_on_length"):
        smollm2.generate(ask, max_tokens=3, close_on_length=True)


def test_what_cannot_be_enforced_is_refused_or_checked_and_told(smollm2: Engine) -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9},
        "uniqueItems": True,
        "minItems": 30,
        "maxItems": 40,
    }
    with pytest.raises(UnsupportedSchemaError) as caught:
        smollm2.generate("Digits:", schema, max_tokens=4)
    assert caught.value.pointer == "/uniqueItems"
    result = smollm2.generate("Digits:", schema, max_tokens=150, on_unsupported="validate")
    assert ("/uniqueItems", "uniqueItems") in result.unenforced
    if result.finish_reason == "stop":
        assert result.holds is False and result.violation is not None
    fine = smollm2.generate("A digit:", {"type": "integer", "maximum": 9, "minimum": 0}, on_unsupported="validate")
    assert fine.unenforced == () and fine.holds is None


def test_other_notations_and_the_library(smollm2: Engine) -> None:
    text = cs.normalise_grammar('root ::= ("yes" | "no") ", " [a-z]+ "."')
    result = smollm2.generate("Is it? Answer:", cs.Lark(text), max_tokens=20, close_on_length=True)
    assert result.text.split(",")[0] in ("yes", "no") and result.text.endswith(".")
    assert "email" in cs.library.names()
    result = smollm2.generate("Mail to", cs.library.get("uuid"), max_tokens=60)
    assert result.finish_reason == "stop" and len(result.text) == 36


def test_a_lazy_constraint_begins_in_the_accepted_run(smollm2: Engine) -> None:
    """The prompt holds the whole answer, so drafts run over the trigger; what follows it is JSON all the same."""
    wanted = cs.Lazy("JSON:", cs.JsonSchema({"type": "array", "items": {"type": "integer"}, "maxItems": 3}))
    ask = [{"role": "user", "content": "Repeat exactly, nothing else: JSON: one two three JSON: one two three"}]
    result = smollm2.generate(ask, wanted, max_tokens=48)
    plain = smollm2.generate(ask, wanted, max_tokens=48, speculation=False)
    assert result.tokens == plain.tokens
    _, trigger, tail = result.text.partition("JSON:")
    if trigger and result.finish_reason == "stop":
        assert isinstance(json.loads(tail), list)


def test_intersections(smollm2: Engine) -> None:
    both = cs.All(cs.Regex("[a-z]{3,8}"), cs.Without(cs.Regex(".*"), "e"))
    result = smollm2.generate("A word without e:", both, max_tokens=12)
    assert 3 <= len(result.text) <= 8 and "e" not in result.text
    with pytest.raises(UnsatisfiableError):
        smollm2.generate("x", cs.All(cs.Choice(("red", "blue")), cs.Regex("[0-9]+")))
