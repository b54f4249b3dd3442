"""JSON Schema: what it lets through, how it is spaced, and how it refuses."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel

from constrained_spec.errors import (
    GrammarBudgetError,
    GrammarSyntaxError,
    RequestError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import JsonSchema, Regex, Then, compile_constraint
from constrained_spec.grammars.json_schema import SchemaGrammar
from constrained_spec.grammars.tokens import is_set
from constrained_spec.types import Vocabulary

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def takes(grammar: Grammar, vocabulary: Vocabulary, text: str) -> bool:
    matcher = grammar.matcher()
    single = {t: i for i, t in enumerate(vocabulary.tokens) if t and len(t) == 1}
    return all(matcher.advance(single[bytes([b])]) for b in text.encode()) and matcher.is_complete


@pytest.mark.parametrize("root", ["plain", "ref"])
@pytest.mark.parametrize(
    ("whitespace", "yes", "no"),
    [
        ("one-space", ['{"a": 1, "b": [true, false]}', '{"a": 1, "b": []}'], ['{"a":1,"b":[]}', '{"a":  1, "b": []}']),
        ("compact", ['{"a":1,"b":[true,false]}'], ['{"a": 1,"b":[]}', '{"a":1, "b":[]}']),
        (
            "flexible",
            ['{"a":1,"b":[true]}', '{"a": 1, "b": [true, false]}', '{\n  "a": 1,\n  "b": [\n    true\n  ]\n}'],
            ['{   "a":1,"b":[]}', '{"a":1,"b":[]} ', '{\n\n"a":1,"b":[]}', ' {"a":1,"b":[]}'],
        ),
    ],
)
def test_whitespace(root: str, whitespace: Any, yes: list[str], no: list[str], vocabulary: Vocabulary) -> None:
    schema = SCHEMA if root == "plain" else {"$ref": "#/$defs/x", "$defs": {"x": SCHEMA}}
    grammar = compile_constraint(JsonSchema(schema, whitespace), vocabulary)
    assert [takes(grammar, vocabulary, t) for t in yes] == [True] * len(yes)
    assert [takes(grammar, vocabulary, t) for t in no] == [False] * len(no)


def test_key_order_is_part_of_the_content(vocabulary: Vocabulary) -> None:
    swapped = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}
    grammar, other = (compile_constraint(JsonSchema(s), vocabulary) for s in (SCHEMA, swapped))
    assert grammar.key != other.key
    assert takes(other, vocabulary, '{"b": [], "a": 1}') and not takes(grammar, vocabulary, '{"b": [], "a": 1}')


def test_dict_text_and_model_are_the_same_grammar(vocabulary: Vocabulary) -> None:
    class Person(BaseModel):
        name: str
        age: int

    schema = Person.model_json_schema()
    keys = {compile_constraint(JsonSchema(s), vocabulary).key for s in (schema, json.dumps(schema), Person)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"type": "string", "pattern": "^[a-z]{2,4}$"},
        {"type": "array", "items": {"enum": [1, "x", None]}, "minItems": 1, "maxItems": 3},
        {"anyOf": [{"type": "integer", "minimum": 3, "maximum": 17}, {"type": "null"}]},
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 2},
        {"type": "string", "format": "date"},
        {"items": [{"type": "string", "maxLength": 2}, {"type": "boolean"}], "type": "array", "minItems": 2,
         "additionalItems": False},
        {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}, "$ref": "#/$defs/n"},
    ],
)  # fmt: skip
def test_random_walks_end_in_valid_values(schema: dict[str, Any], vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(JsonSchema(schema), vocabulary)
    rng = random.Random(json.dumps(schema))
    row = np.empty(vocabulary.mask_words, np.int32)
    draft7 = isinstance(schema.get("items"), list)
    validator = (jsonschema.Draft7Validator if draft7 else jsonschema.Draft202012Validator)(
        schema, format_checker=jsonschema.FormatChecker()
    )
    ended = 0
    for _ in range(40):
        matcher, ids = grammar.matcher(), list[int]()
        while len(ids) < 60 and not matcher.is_finished and not (matcher.is_complete and rng.random() < 0.3):
            matcher.mask_into(row)
            legal = [i for i in range(2, vocabulary.size) if is_set(row, i)]
            # Closing early keeps recursive values short.
            closing = [i for i in legal if (vocabulary.tokens[i] or b"")[-1:] in (b'"', b"]", b"}")]
            ids.append(rng.choice(closing if closing and rng.random() < 0.6 else legal))
            assert matcher.advance(ids[-1])
        if matcher.is_complete:
            ended += 1
            try:
                text = vocabulary.bytes_of(ids).decode()
            except UnicodeDecodeError as error:
                raise AssertionError(ids) from error
            validator.validate(json.loads(text))
    assert ended > 5


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "integer"}}}}, "/properties/a/not/type", "type"),
        (
            {"properties": {"not": {"type": "string"}, "b": {"type": "array", "uniqueItems": True}}, "type": "object"},
            "/properties/b/uniqueItems",
            "uniqueItems",
        ),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "regex"}]},
         "/anyOf/1/format", "format"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "/oneOf/0/type", "type"),
        ({"type": "string", "pattern": "(?<=a)b"}, "/pattern", "pattern"),
        (
            {"anyOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "(?<=a)b"}]},
            "/anyOf/1/pattern",
            "pattern",
        ),
        ({"$ref": "#/$defs/none"}, "/$ref", "$ref"),
        (
            {"type": "object", "properties": {"a~/b": {"contains": {"const": 1}}}},
            "/properties/a~0~1b/contains",
            "contains",
        ),
        ({"$schema": "https://example.org/my-dialect"}, "/$schema", "$schema"),
        ({"x-guidance": {"lenient": True}}, "/x-guidance", "x-guidance"),
    ],
)  # fmt: skip
def test_unsupported_keywords_are_named(
    schema: dict[str, Any], pointer: str, keyword: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        compile_constraint(JsonSchema(schema), vocabulary)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "foo"}, "/type"),
        ({"properties": {"a/b": {"minLength": -1}}}, "/properties/a~1b/minLength"),
        ({"required": "a"}, "/required"),
        ("[1]", "schema"),
        ({"a": float("nan")}, "schema"),
        ({"enum": [{1, 2}]}, "schema"),
        ({"const": "\ud800"}, "schema"),
        (int, "schema"),
        (7, "schema"),
    ],
)
def test_invalid_schemas_name_the_place(schema: Any, param: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(JsonSchema(schema), vocabulary)
    assert caught.value.param == param


def test_a_text_that_is_not_json_says_where(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        compile_constraint(JsonSchema('{"type": }'), vocabulary)
    assert caught.value.position == 9


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "string", "format": "date", "maxLength": 5},
    ],
)
def test_unsatisfiable_before_generation(schema: Any, vocabulary: Vocabulary) -> None:
    with pytest.raises(UnsatisfiableError):
        compile_constraint(JsonSchema(schema), vocabulary)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def _endless() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"type": "integer", "multipleOf": 1234567}, "max_multiple_of"),
        ({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "max_multiple_of"),
        ({"enum": list(range(30_000))}, "max_enum"),
        (_nested(5000), "max_schema_depth"),
        (_endless(), "max_schema_depth"),
        ("[" * 100_000, "max_schema_depth"),
        ({"description": "x" * (1 << 20)}, "max_schema_bytes"),
    ],
)
def test_budgets(schema: Any, limit: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarBudgetError) as caught:
        compile_constraint(JsonSchema(schema), vocabulary)
    assert caught.value.limit == limit


def test_unknown_whitespace_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(JsonSchema({}, "lots"), vocabulary)  # type: ignore[arg-type]
    assert caught.value.param == "whitespace"


def test_a_format_of_no_specification_is_a_remark_and_is_told(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "topic"}, "format": {"const": 1}}}
    grammar = compile_constraint(JsonSchema(schema), vocabulary)
    assert isinstance(grammar, SchemaGrammar)
    assert grammar.relaxed == (("/properties/a/format", "format"),)
    known = compile_constraint(JsonSchema({"type": "string", "format": "date"}), vocabulary)
    assert isinstance(known, SchemaGrammar) and known.relaxed == ()


NAMED: list[Any] = [
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"a": {"const": "x"}}, "additionalProperties": {"const": 1}},
    {"patternProperties": {"^a": {"const": "x"}}},
    {"patternProperties": {"^a": {"const": "x"}}, "additionalProperties": {"const": 1}},
    {"properties": {"a": {"const": "x"}}, "patternProperties": {"^b": {"const": 1}}, "additionalProperties": False},
    {"properties": {"a": {"const": "x"}}, "required": ["a"], "minProperties": 2},
    {"not": {"required": ["b"]}, "properties": {"a": {"const": "x"}}},
    {"propertyNames": {"pattern": "^[bc]$"}, "properties": {"a": {}}},
]


@pytest.mark.parametrize("schema", NAMED)
@pytest.mark.parametrize("name", [r"\u0061", r"\u0062", r"\u0041", r"\u000a", r"\u00e9", r"b\u0061"])
def test_a_name_in_disguise_is_no_other_name(schema: Any, name: str, vocabulary: Vocabulary) -> None:
    """A declared name that is written with numbers would be read back as the declared name."""
    for outer in (lambda it: it, lambda it: Then(it, Regex("!"))):
        matcher = compile_constraint(outer(JsonSchema({"type": "object", **schema})), vocabulary).matcher()
        assert not all(matcher.advance(t) for t in vocabulary.encode(f'{{"{name}": 1')), name


def test_control_characters_where_objects_have_other_names(vocabulary: Vocabulary) -> None:
    closed = {"type": "object", "properties": {"a": {"const": "\x01"}}, "additionalProperties": False}
    matcher = compile_constraint(JsonSchema(closed), vocabulary).matcher()
    assert all(matcher.advance(t) for t in vocabulary.encode(r'{"a": "\u0001"}')) and matcher.is_complete
    for value in ({"const": "\x01"}, {"enum": ["\x7f", 1]}):
        with pytest.raises(UnsupportedSchemaError) as caught:
            compile_constraint(JsonSchema({"type": "object", "properties": {"a": value}}), vocabulary)
        assert caught.value.pointer == f"/properties/a/{next(iter(value))}"
    fine = JsonSchema({"type": "object", "properties": {"a": {"enum": ["\n", "\\u0001"]}}})
    for text in (r'{"a": "\n"}', r'{"a": "\\u0001"}'):
        matcher = compile_constraint(fine, vocabulary).matcher()
        assert all(matcher.advance(t) for t in vocabulary.encode(text)) and matcher.is_complete
