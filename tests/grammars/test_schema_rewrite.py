"""Schemas that the engine alone cannot enforce: the same values after rewriting, or a typed refusal."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.cli.conformance import accepts, byte_index, declared_order
from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.json_schema import SchemaGrammar, compile_json_schema
from constrained_spec.grammars.schema_relax import relax, validates
from constrained_spec.grammars.schema_rewrite import rewrite

INDEX = byte_index()
OBJECT = {"type": "object"}
CLOSED = {"type": "object", "properties": {"a": True, "b": True, "c": True}, "additionalProperties": False}


def compiled(schema: Any, **options: Any) -> SchemaGrammar:
    return compile_json_schema(schema, INDEX, "", **options)


def verdict(grammar: SchemaGrammar, schema: Any, value: Any) -> bool:
    return accepts(grammar, value, declared_order(schema))


CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"not": {"type": "string"}}, [1, None, [], {}, True], ["", "a"]),
    ({"type": "string", "not": {"enum": ["a", "ab", "\n"]}}, ["", "b", "abc", "\n\n"], ["a", "ab", "\n", 1]),
    ({"type": "string", "not": {"pattern": "foo"}}, ["", "fo", "fooo"[:2]], ["foo", "xfoox", "\nfoo"]),
    ({"type": "string", "not": {"minLength": 2}}, ["", "é"], ["ab", "éé"]),
    ({"type": "integer", "not": {"const": 0}}, [1, -1, 10], [0]),
    ({"type": "number", "not": {"minimum": 3}}, [2, -5, 2.5], [3, 4]),
    ({"not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}, 3]),
    ({"not": {"const": {"a": 1}}}, [{}, {"a": 2}, {"a": 1, "b": 1}, 1], [{"a": 1}]),
    ({"not": {"const": [1]}}, [[], [2], [1, 1], 1], [[1]]),
    ({"not": {"anyOf": [{"type": "string"}, {"type": "object"}]}}, [1, [], None], ["", {}]),
    (
        {"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
         "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]}, "then": {"required": ["n"]},
         "else": {"properties": {"n": False}}},
        [{"k": "x", "n": 1}, {"k": "y"}, {}], [{"k": "x"}, {"k": "y", "n": 1}, {"n": 1}],
    ),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, [0, "a", []], [""]),
    ({**OBJECT, "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    (
        {**OBJECT, "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}},
        [{"b": 1}, {"a": 1}, {"a": 1, "b": None}], [{"a": 1, "b": 1}],
    ),
    ({**OBJECT, "dependencies": {"a": ["b"]}}, [{}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, ["abcd"], ["", "abc", 1]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    (
        {"type": "object", "required": ["t"], "oneOf": [
            {"properties": {"t": {"const": 1}, "n": {"type": "integer"}}},
            {"properties": {"t": {"const": 2}}},
        ]},
        [{"t": 1, "n": 1}, {"t": 2}], [{"t": 3}, {"t": 1, "n": "a"}],
    ),
    ({**OBJECT, "propertyNames": {"pattern": "^a"}}, [{}, {"ab": 1}], [{"b": 1}, {"ab": 1, "b": 1}]),
    ({**OBJECT, "propertyNames": {"enum": ["a", "b"]}}, [{}, {"b": 1}], [{"c": 1}]),
    ({"not": {"propertyNames": {"not": {"enum": ["a", "b"]}}}}, [{"b": 1}, {"a": 1, "c": 1}], [{}, {"c": 1}, 1]),
    ({"not": {"patternProperties": {"^(a|b)$": {"type": "null"}}}}, [{"a": 1}], [{}, {"a": None}, {"c": 1}]),
    ({**OBJECT, "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({**OBJECT, "minProperties": 1, "properties": {"a": True, "b": True}}, [{"a": 1}, {"b": 1}, {"z": 1}], [{}]),
    ({**CLOSED, "minProperties": 2}, [{"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}], [{}, {"b": 1}]),
    (
        {**OBJECT, "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": False,
         "minProperties": 2},
        [{"a": None, "b": None}], [{"a": None}, {"a": 1, "b": None}, {"c": None, "a": None}],
    ),
    ({**CLOSED, "maxProperties": 1}, [{}, {"b": 1}], [{"a": 1, "c": 1}]),
    (
        {**OBJECT, "properties": {"a": True}, "maxProperties": 1},
        [{}, {"a": 1}, {"z": 1}], [{"a": 1, "z": 1}, {"y": 1, "z": 1}],
    ),
    (
        {"type": "array", "items": {"enum": [1, 2, "x"]}, "uniqueItems": True},
        [[], [1, "x"], ["x", 2, 1]], [[1, 1], [1, 2, 1]],
    ),
    (
        {"type": "array", "contains": {"type": "string"}, "maxItems": 3},
        [["a"], [1, "a"], ["a", "b", 1]], [[], [1], [1, 2, 3]],
    ),
    (
        {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 2, "maxItems": 4},
        [[1, 1], [1, 0, 1]], [[1], [1, 1, 1], []],
    ),
    (
        {"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": True}, "type": "object",
         "unevaluatedProperties": False},
        [{}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}],
    ),
    (
        {"type": "object", "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
                                     {"properties": {"b": {"const": 1}}, "required": ["b"]}],
         "unevaluatedProperties": False},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], [{}, {"a": 1, "b": 2}, {"a": 1, "c": 1}],
    ),
    (
        {"prefixItems": [{"type": "integer"}], "type": "array", "unevaluatedItems": False},
        [[], [1]], [[1, 2], ["a"]],
    ),
    (
        {**OBJECT, "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}}},
        [{"a": 1}, {"ab": 3}, {"b": "x"}], [{"ab": 1}, {"a": "x"}, {"ab": "x"}, {"b": 1}],
    ),
    ({"type": "string", "pattern": "^(?!foo)[a-z]+$"}, ["bar", "fo"], ["foo", "foobar", ""]),
    ({"type": "string", "format": "json-pointer"}, ["", "/a~0/b"], ["a", "/~2"]),
    (
        {"$defs": {"n": {"$anchor": "node", "type": "object", "properties": {"next": {"$ref": "#node"}},
                         "not": {"required": ["stop"]}}}, "$ref": "#node"},
        [{}, {"next": {"next": {}}}], [{"next": {"stop": 1}}, {"next": 1}],
    ),
    (
        {"$id": "https://x.test/list", "$ref": "items", "$defs": {
            "s": {"$dynamicAnchor": "T", "type": "string"},
            "items": {"$id": "items", "type": "array", "items": {"$dynamicRef": "#T"},
                      "$defs": {"any": {"$dynamicAnchor": "T"}}}}},
        [[], ["a"]], [[1], "a"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "yes", "no"), CASES)
def test_exactly_the_values_of_the_schema(schema: Any, yes: list[Any], no: list[Any]) -> None:
    grammar = compiled(schema)
    assert [verdict(grammar, schema, v) for v in yes] == [True] * len(yes)
    assert [verdict(grammar, schema, v) for v in no] == [False] * len(no)
    assert grammar.relaxed == ()


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "/uniqueItems", "uniqueItems"),
        ({"properties": {"a": {"type": "array", "contains": {"const": 1}}}}, "/properties/a/contains", "contains"),
        ({"type": "number", "not": {"multipleOf": 2}}, "/not/multipleOf", "multipleOf"),
        ({"type": "object", "minProperties": 2}, "/minProperties", "minProperties"),
        ({"type": "string", "not": {"format": "date"}}, "/not/format", "format"),
        ({"not": {"patternProperties": {"^a": False}}}, "/not/patternProperties", "patternProperties"),
        ({"$ref": "https://x.test/none"}, "/$ref", "$ref"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(schema: Any, pointer: str, keyword: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        compiled(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}, {"not": {"type": "string"}}]},
        {"type": "integer", "enum": [1, 2], "not": {"enum": [1, 2]}},
        {**CLOSED, "minProperties": 4},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
        {"type": "object", "required": ["a"], "dependentSchemas": {"a": False}},
        {"$ref": "#"},
    ],
)
def test_what_nothing_satisfies_is_unsatisfiable(schema: Any) -> None:
    with pytest.raises(UnsatisfiableError):
        compiled(schema)


def test_declared_order_survives_merging() -> None:
    schema: Any = {
        "allOf": [
            {"type": "object", "properties": {"first": {"type": "integer"}}},
            {"properties": {"second": {"type": "integer"}}, "required": ["third", "second"]},
        ],
        "properties": {"last": {"const": 1}},
    }
    made = rewrite(schema).schema
    text = json.dumps(made)
    assert [text.index(f'"{n}": ') for n in ("first", "second", "last", "third")] == sorted(
        text.index(f'"{n}": ') for n in ("first", "second", "last", "third")
    )


def test_a_registry_is_used_and_nothing_else() -> None:
    registry = {"https://x.test/int": {"type": "integer", "$defs": {"s": {"$anchor": "s", "type": "string"}}}}
    schema = {"anyOf": [{"$ref": "https://x.test/int"}, {"type": "array", "items": {"$ref": "https://x.test/int#s"}}]}
    grammar = compiled(schema, registry=registry)
    assert [verdict(grammar, schema, v) for v in (1, ["a"], "a", [1])] == [True, True, False, False]


def test_nullable_means_something_only_where_it_is_asked_for() -> None:
    schema = {"type": "integer", "nullable": True}
    assert not verdict(compiled(schema), schema, None)
    assert verdict(compiled(schema, nullable=True), schema, None)


def test_relaxation_is_wider_and_says_what_it_left_out() -> None:
    schema: Any = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1}},
        "required": ["a"],
    }
    grammar = compiled(schema, on_unsupported="validate")
    assert grammar.relaxed == (("/properties/a/uniqueItems", "uniqueItems"),)
    assert verdict(grammar, schema, {"a": ["x", "x"]}) and not verdict(grammar, schema, {"a": []})
    assert validates(schema, '{"a": ["x", "y"]}') is None
    assert "/a" in str(validates(schema, '{"a": ["x", "x"]}'))
    assert "not JSON" in str(validates(schema, "{"))
    assert relax({"type": "string", "minLength": 2}) == ({"type": "string", "minLength": 2}, [])


def test_options_are_checked() -> None:
    with pytest.raises(RequestError) as caught:
        compiled({}, on_unsupported="ignore")
    assert caught.value.param == "on_unsupported"


def test_an_exponential_pattern_is_refused_quickly() -> None:
    with pytest.raises(RequestError):
        compiled({"type": "string", "not": {"pattern": "^(a|b)*a(a|b){40}$"}})


def test_blow_up_is_a_budget_error() -> None:
    branches = [{"properties": {f"p{i}": {"const": i}, f"q{i}": {"const": i}}} for i in range(20)]
    with pytest.raises(GrammarBudgetError):
        compiled({"type": "object", "not": {"anyOf": branches}, "allOf": [{"not": {"allOf": branches}}]})


SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 2.5, "", "a", "ab", "b"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=4,
)
LEAVES = st.sampled_from(
    [
        True, False, {"type": "integer"}, {"type": "string"}, {"type": ["null", "object"]}, {"const": 1},
        {"minimum": 1}, {"enum": ["a", None, [], {"a": 1}]}, {"maxLength": 1}, {"pattern": "^a"}, {"maxItems": 1},
        {"required": ["a"]}, {"type": "number", "exclusiveMaximum": 2}, {"type": "array", "minItems": 1},
        {"maxProperties": 1},
    ]
)  # fmt: skip


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
    keyword = {
        "not": inner, "allOf": pairs, "anyOf": pairs, "oneOf": pairs, "if": inner, "then": inner, "else": inner,
        "properties": named, "additionalProperties": inner, "items": inner, "prefixItems": pairs, "contains": inner,
        "dependentSchemas": named, "propertyNames": inner, "minProperties": st.integers(0, 2),
        "uniqueItems": st.just(True), "unevaluatedProperties": inner, "unevaluatedItems": inner,
        "required": st.just(["b"]), "maxItems": st.just(2),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, min_size=1, max_size=2),
    }  # fmt: skip
    return st.lists(st.sampled_from(sorted(keyword)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: keyword[name] for name in names})
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(schema=st.recursive(LEAVES, _combined, max_leaves=5), values=st.lists(VALUES, min_size=4, max_size=8))
def test_verdicts_are_jsonschemas(schema: Any, values: list[Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    try:
        grammar = compiled(schema)
    except (UnsupportedSchemaError, GrammarBudgetError):
        return
    except UnsatisfiableError:
        assert not any(validator.is_valid(v) for v in values)
        return
    for value in values:
        assert verdict(grammar, schema, value) == validator.is_valid(value), (value, rewrite(schema).schema)


def test_many_references_to_one_schema_are_no_deep_nest() -> None:
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"$ref": "#"} for i in range(300)},
        "not": {"required": ["x"]},
    }
    assert verdict(compiled(schema), schema, {"p7": {"p299": {}}}) and not verdict(compiled(schema), schema, {"x": 1})
    chain: dict[str, Any] = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(999)}
    deep = {"$ref": "#/$defs/d0", "not": {"maxItems": 0}, "$defs": {**chain, "d999": {"type": "null"}}}
    with pytest.raises(GrammarBudgetError) as caught:
        compiled(deep)
    assert caught.value.limit == "max_unfolded"
