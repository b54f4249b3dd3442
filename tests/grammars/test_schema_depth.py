"""``max_depth`` against the definition: the values of the schema that nest at most so many levels."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.compile import JsonSchema, Then, compile_constraint
from constrained_spec.grammars.constraints import Regex
from constrained_spec.grammars.output_types import JsonOptions, to_constraint
from constrained_spec.grammars.schema_depth import MAX_DEPTH, bounded
from constrained_spec.types import Vocabulary

VOCABULARY = Vocabulary(
    (None, *(bytes([b]) for b in range(256))), (0,), {}, lambda text: [b + 1 for b in text.encode()]
)

TREE = {
    "type": "object", "properties": {"v": {"type": "integer"}, "a": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v"], "additionalProperties": False,
}  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "empty": {},
    "object": {"type": "object"},
    "itself": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "itself-closed": {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    "arrays": {"type": "array", "items": {"$ref": "#"}},
    "endless": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "linked": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}]},
    "tree": TREE,
    "mutual": {
        "$ref": "#/$defs/x",
        "$defs": {
            "x": {"type": ["array", "integer"], "items": {"$ref": "#/$defs/y"}},
            "y": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/x"}},
        },
    },
    "enum": {"enum": [1, [], [[]], {"a": []}]},
    "const": {"const": [[1]]},
    "needs-two": {
        "type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"], "additionalProperties": False
    },
    "prefix": {"prefixItems": [{}, {"type": "array"}]},
    "prefix-needed": {"type": "array", "prefixItems": [{}, {"type": "array"}], "minItems": 2},
    "prefix-closed": {"type": "array", "prefixItems": [{"type": "array"}], "items": False},
    "patterns": {"patternProperties": {"^a": {"type": "array"}}, "additionalProperties": False},
    "counted": {"minProperties": 1, "additionalProperties": {"type": "object"}},
    "one-of-two": {
        "type": "object", "properties": {"a": {"type": "object"}, "b": {"type": "integer"}}, "minProperties": 1,
        "additionalProperties": False,
    },
    "not": {"not": {"type": "array"}},
    "all": {"allOf": [{"type": ["array", "object"]}, {"items": {"type": ["array", "integer"]}}]},
    "draft-7": {"type": "array", "items": [{"type": "array"}, {}], "additionalItems": {"type": "integer"}},
}  # fmt: skip
LEAST = {  # levels that any value has
    "object": 1, "itself": 1, "itself-closed": 1, "arrays": 1, "endless": 99, "tree": 1, "const": 2, "needs-two": 2,
    "prefix-needed": 2, "prefix-closed": 1, "one-of-two": 1, "all": 1, "draft-7": 1,
}  # fmt: skip
VALUES: list[Any] = [
    1, None, [], {}, [1], [[]], {"a": 1}, {"a": []}, {"a": {"a": {}}}, [[[1]]], {"a": None}, {"b": [1]}, [{}, []],
    {"a": {"a": {"a": {}}}}, {"a": {"a": {}}, "b": 1}, {"v": 1}, {"v": 1, "a": []}, {"v": 1, "a": [{"v": 2}]}, [1, []],
    {"v": 1, "a": [{"v": 2, "a": []}]}, [{"a": 1}], [{"a": [None]}], {"b": 1}, [None, 1], [[], 1], [[1], [1], 1],
]  # fmt: skip


def depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def valid(schema: Any, value: Any) -> bool:
    old = isinstance(schema, dict) and isinstance(schema.get("items"), list)
    judge = jsonschema.Draft7Validator if old else jsonschema.Draft202012Validator
    return bool(judge(schema).is_valid(value))


def accepts(constraint: JsonSchema, value: Any) -> bool:
    matcher = compile_constraint(constraint, VOCABULARY).matcher()
    return all(matcher.advance(t) for t in VOCABULARY.encode(json.dumps(value))) and matcher.is_complete


@pytest.mark.parametrize("levels", range(4))
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_exactly_the_values_of_so_many_levels(name: str, levels: int) -> None:
    constraint = JsonSchema(SCHEMAS[name], max_depth=levels)
    wanted = [v for v in VALUES if valid(SCHEMAS[name], v) and depth(v) <= levels]
    if levels < LEAST.get(name, 0):
        assert wanted == []
        with pytest.raises(UnsatisfiableError) as caught:
            compile_constraint(constraint, VOCABULARY)
        assert caught.value.param == "max_depth"
        return
    assert [v for v in VALUES if accepts(constraint, v)] == wanted


JSON = st.recursive(
    st.sampled_from([None, True, 1, "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@given(JSON, st.integers(0, 5))
def test_free_json_is_bounded(value: Any, levels: int) -> None:
    assert accepts(JsonSchema(True, max_depth=levels), value) == (depth(value) <= levels)


def test_a_schema_that_needs_more_is_unsatisfiable() -> None:
    schema = {"type": "object", "properties": {"a": {"const": {"b": [1]}}}, "required": ["a"]}
    with pytest.raises(UnsatisfiableError) as caught:
        compile_constraint(JsonSchema(schema, max_depth=2), VOCABULARY)
    assert caught.value.param == "max_depth" and "2 levels" in caught.value.message
    assert accepts(JsonSchema(schema, max_depth=3), {"a": {"b": [1]}})


def test_a_keyword_that_cannot_be_enforced_is_refused_or_relaxed_as_ever() -> None:
    schema = {"type": "array", "uniqueItems": True}
    with pytest.raises(UnsupportedSchemaError) as caught:
        compile_constraint(JsonSchema(schema, max_depth=1), VOCABULARY)
    assert caught.value.pointer == "/uniqueItems"
    relaxed = JsonSchema(schema, on_unsupported="validate", max_depth=1)
    assert accepts(relaxed, [1, 1]) and not accepts(relaxed, [[]])


def test_within_another_constraint() -> None:
    grammar = compile_constraint(Then(Regex("x"), JsonSchema({"type": "array"}, max_depth=1)), VOCABULARY)
    for text, legal in (("x[1]", True), ("x[[]]", False)):
        matcher = grammar.matcher()
        assert (all(matcher.advance(t) for t in VOCABULARY.encode(text)) and matcher.is_complete) == legal


@pytest.mark.parametrize("bad", [-1, 1.0, True, "2", MAX_DEPTH + 1])
def test_what_is_no_depth(bad: Any) -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(JsonSchema({}, max_depth=bad), VOCABULARY)
    assert caught.value.param == "max_depth"


def test_the_greatest_depth() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert accepts(JsonSchema(True, max_depth=MAX_DEPTH), value)
    assert not accepts(JsonSchema(True, max_depth=MAX_DEPTH), [value])


def test_the_unrolled_schema_is_bounded() -> None:
    wide: Any = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/x"} for i in range(2_000)}}
    with pytest.raises(GrammarBudgetError) as caught:
        bounded({"$ref": "#/$defs/x", "$defs": {"x": wide}}, MAX_DEPTH)
    assert (caught.value.limit, caught.value.param) == ("max_rewritten_schema", "max_depth")
    many: Any = {"type": "object", "properties": {f"p{i}": {"$ref": "#"} for i in range(300)}}
    assert accepts(JsonSchema(many, max_depth=3), {"p1": {"p2": {}}, "p9": {}})
    with pytest.raises(GrammarBudgetError) as caught:  # the engine's own limit
        compile_constraint(JsonSchema(many, max_depth=MAX_DEPTH), VOCABULARY)
    assert caught.value.limit == "max_grammar_size"


def test_the_option_reaches_the_schema_and_the_key() -> None:
    assert to_constraint({"type": "array"}, JsonOptions(max_depth=2)) == JsonSchema({"type": "array"}, max_depth=2)
    keys = {compile_constraint(JsonSchema({}, max_depth=n), VOCABULARY).key for n in (None, 1, 2)}
    assert len(keys) == 3
