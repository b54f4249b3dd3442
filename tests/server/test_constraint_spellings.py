"""Every spelling of a constraint gives the same value; what cannot be honoured is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.constraints import Choice, Constraint, JsonSchema, Lark, Regex
from constrained_spec.grammars.json_schema import FLEXIBLE_WHITESPACE
from constrained_spec.server.plan import Limits
from tests.server.plan_facts import VOCABULARY, chat, legal, refused

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
TEXT = json.dumps(SCHEMA)
REGEX, CHOICE = r"[a-c]{2}", ["yes", "no"]
LARK, GBNF, EBNF = 'start: "a" "b"+', 'root ::= "a" "b"+', 'root = "a", "b", {"b"};'

SPELLINGS: list[tuple[dict[str, Any], Constraint]] = [
    *(
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "P", "schema": SCHEMA, **strict}}}, made)
        for made in [JsonSchema(SCHEMA)]
        for strict in ({"strict": True}, {"strict": False}, {"strict": None}, {})
    ),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_schema", "name": "P", "schema": SCHEMA, "strict": True}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_schema", "value": {"name": "P", "schema": SCHEMA}}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_object"}}, JsonSchema({"type": "object"})),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json", "value": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "regex", "value": REGEX}}, Regex(REGEX)),
    ({"response_format": {"type": "regex", "pattern": REGEX}}, Regex(REGEX)),
    ({"response_format": {"type": "grammar", "grammar": LARK}}, Lark(LARK)),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json": TEXT}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"regex": REGEX}}, Regex(REGEX)),
    ({"structured_outputs": {"choice": CHOICE}}, Choice(("yes", "no"))),
    ({"structured_outputs": {"grammar": LARK}}, Lark(LARK)),
    ({"structured_outputs": {"json_object": True}}, JsonSchema({"type": "object"})),
    ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": ""}}, JsonSchema(SCHEMA, "compact")),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, JsonSchema(SCHEMA, "compact")),
    ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
    ({"guided_json": TEXT}, JsonSchema(SCHEMA)),
    ({"guided_regex": REGEX}, Regex(REGEX)),
    ({"guided_choice": CHOICE}, Choice(("yes", "no"))),
    ({"guided_grammar": LARK}, Lark(LARK)),
    ({"guided_json_object": True}, JsonSchema({"type": "object"})),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": FLEXIBLE_WHITESPACE}, JsonSchema(SCHEMA, "flexible")),
    ({"regex": REGEX}, Regex(REGEX)),
    ({"ebnf": LARK}, Lark(LARK)),
    ({"grammar": LARK}, Lark(LARK)),
    ({"json_schema": SCHEMA}, JsonSchema(SCHEMA)),
    ({"json_schema": TEXT}, JsonSchema(SCHEMA)),
    ({"json_schema": SCHEMA, "extra": {"whitespace": "compact"}}, JsonSchema(SCHEMA, "compact")),
    (
        {"json_schema": SCHEMA, "extra": {"on_unsupported": "validate", "nullable": True}},
        JsonSchema(SCHEMA, on_unsupported="validate", nullable=True),
    ),
    (
        {"json_schema": SCHEMA, "extra": {"ensure_ascii": True, "max_depth": 3}},
        JsonSchema(SCHEMA, ensure_ascii=True, max_depth=3),
    ),
]


@pytest.mark.parametrize(("body", "constraint"), SPELLINGS)
def test_spelling(body: dict[str, Any], constraint: Constraint) -> None:
    plan = chat(**body)
    assert plan.output_type == constraint
    if isinstance(constraint, JsonSchema):
        # The order of keys is the order of output.
        assert isinstance(plan.output_type, JsonSchema)
        assert json.dumps(plan.output_type.schema) == json.dumps(constraint.schema)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None, "guided_json": None, "regex": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False, "disable_fallback": True}},
        {"guided_json_object": False},
    ],
)
def test_no_constraint(body: dict[str, Any]) -> None:
    assert chat(**body).output_type is None


@pytest.mark.parametrize("field", ["grammar", "ebnf", "guided_grammar"])
@pytest.mark.parametrize("text", [LARK, GBNF, EBNF])
def test_the_notation_of_a_grammar_is_told_by_its_text(field: str, text: str) -> None:
    constraint = chat(**{field: text}).output_type
    assert isinstance(constraint, Lark)
    assert legal(constraint, "abb")
    assert not legal(constraint, "a")


def test_equal_constraints_in_two_spellings_are_one() -> None:
    body = {"guided_json": TEXT, "response_format": {"type": "json_object", "schema": SCHEMA}, "json_schema": SCHEMA}
    assert chat(**body).output_type == JsonSchema(SCHEMA)


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        ({"regex": "a", "guided_regex": "b"}, "/guided_regex", "/regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "/structured_outputs/regex",
         "/structured_outputs/choice"),
        ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "/response_format", "/json_schema"),
        # Another order of keys is another output, and 1 is not true.
        ({"guided_json": {"enum": [1]}, "json_schema": {"enum": [True]}}, "/guided_json", "/json_schema"),
        (
            {"guided_json": {"properties": {"a": {}, "b": {}}}, "json_schema": {"properties": {"b": {}, "a": {}}}},
            "/guided_json",
            "/json_schema",
        ),
    ],
)  # fmt: skip
def test_two_constraints_are_refused_and_both_named(body: dict[str, Any], first: str, second: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**body)
    assert refused(chat, **body) == ("conflicting_constraints", second)
    assert first in caught.value.message
    assert second in caught.value.message


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"response_format": {"type": "xml"}}, "invalid_value", "/response_format/type"),
        ({"response_format": {}}, "missing_field", "/response_format/type"),
        ({"response_format": "json"}, "invalid_type", "/response_format"),
        ({"response_format": {"type": "json_schema"}}, "missing_field", "/response_format/schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "missing_field",
         "/response_format/json_schema/schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "shcema": {}}}}, "unknown_field",
         "/response_format/json_schema/shcema"),
        ({"response_format": {"type": "text", "schema": {}}}, "unknown_field", "/response_format/schema"),
        ({"response_format": {"type": "json_object", "schema": {}, "value": {}}}, "conflicting_constraints",
         "/response_format/value"),
        ({"response_format": {"type": "regex"}}, "missing_field", "/response_format/value"),
        ({"structured_outputs": {"jsn": {}}}, "unknown_field", "/structured_outputs/jsn"),
        ({"structured_outputs": {"disable_additional_properties": True}}, "unsupported_value",
         "/structured_outputs/disable_additional_properties"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": r"\s+"}}, "unsupported_value",
         "/structured_outputs/whitespace_pattern"),
        ({"guided_decoding_backend": "outlines"}, "unsupported_value", "/guided_decoding_backend"),
        ({"guided_choice": []}, "invalid_value", "/guided_choice"),
        ({"guided_choice": "ab"}, "invalid_type", "/guided_choice"),
        ({"guided_choice": ["a", 1]}, "invalid_type", "/guided_choice/1"),
        ({"guided_json": [1]}, "invalid_type", "/guided_json"),
        ({"regex": "\ud800"}, "invalid_value", "/regex"),
        ({"json_schema": {"const": "\ud800"}}, "invalid_value", "/json_schema"),
        ({"json_schema": {"const": float("nan")}}, "invalid_value", "/json_schema"),
        ({"guided_jsn": SCHEMA}, "unknown_field", "/guided_jsn"),
    ],
)  # fmt: skip
def test_refused(body: dict[str, Any], code: str, param: str) -> None:
    assert refused(chat, **body) == (code, param)


@pytest.mark.parametrize("field", ["json_schema", "guided_json"])
def test_a_schema_that_is_no_json_says_where(field: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{field: '{"type": oops}'})
    assert caught.value.param == f"/{field}"
    assert getattr(caught.value, "position", None) == 9


def test_a_grammar_that_does_not_parse_names_its_field() -> None:
    for text in ("", "???", 'root ::= ( "a"'):
        assert refused(chat, ebnf=text)[1] == "/ebnf"


def test_limits() -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    assert refused(chat, json_schema=deep) == ("limit_exceeded", "/json_schema")
    small = Limits(max_schema_bytes=20, max_regex_chars=3, max_grammar_chars=3, max_choices=2)
    for body in (
        {"json_schema": SCHEMA}, {"json_schema": TEXT}, {"regex": "a" * 4}, {"grammar": LARK},
        {"guided_choice": ["a", "b", "c"]},
    ):  # fmt: skip
        assert refused(lambda body=body: chat(limits=small, **body)) == ("limit_exceeded", f"/{next(iter(body))}")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"x": {"type": 7}}}}}},
            "/response_format/json_schema/schema/properties/x/type",
        ),
        ({"guided_json": {"properties": {"x": {"pattern": "("}}}}, "/guided_json/properties/x/pattern"),
        ({"regex": "("}, "/regex"),
        ({"structured_outputs": {"grammar": "start: undefined_rule"}}, "/structured_outputs/grammar"),
        ({"json_schema": False}, "/json_schema"),
        ({"response_format": {"type": "structural_tag", "triggers": ["<a>"],
                              "structures": [{"begin": "<a>", "schema": {"type": 7}, "end": ""}]}}, "/response_format"),
    ],
)  # fmt: skip
def test_errors_of_the_compiler_point_into_the_body(body: dict[str, Any], place: str) -> None:
    plan = chat(**body)
    assert plan.output_type is not None
    with pytest.raises(RequestError) as caught:
        compile_constraint(plan.output_type, VOCABULARY)
    assert plan.locate(caught.value.param) == place


NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
STRUCTURES = {
    "triggers": ["<n", "<w>"],
    "structures": [
        {"begin": "<n=1>", "schema": NUMBER, "end": "</n>"},
        {"begin": "<w>", "schema": {"enum": ["x"]}, "end": "</w>"},
    ],
}
TAGS = {
    "type": "triggered_tags",
    "triggers": ["<n=1>", "<w>"],
    "tags": [
        {"type": "tag", "begin": "<n=1>", "content": {"type": "json_schema", "json_schema": NUMBER}, "end": "</n>"},
        {"begin": "<w>", "content": {"type": "any_text"}, "end": "</w>"},
    ],
}


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "structural_tag", **STRUCTURES}},
        {"response_format": {"type": "structural_tag", "format": TAGS}},
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **STRUCTURES})}},
        {"structured_outputs": {"structural_tag": {"format": TAGS}}},
    ],
)
def test_structural_tags(body: dict[str, Any]) -> None:
    constraint = chat(**body).output_type
    for text in ("free", "a <n=1>7</n> b"):
        assert legal(constraint, text), text
    for text in ("a <n=1>77</n> b", "<n=1>7", "<n=1>x</n>"):
        assert not legal(constraint, text), text


def test_tags_may_share_a_trigger() -> None:
    tags = {**STRUCTURES, "triggers": ["<"]}
    constraint = chat(response_format={"type": "structural_tag", **tags}).output_type
    texts = ("free", 'a<n=1>7</n><w>"x"</w>b', "a < b", "<n=1>77</n>", '<n=1>"x"</n>', "<w>7</w>")
    assert [legal(constraint, text) for text in texts] == [True, True, False, False, False, False]


def test_structural_tags_may_be_required() -> None:
    tags = {**TAGS, "at_least_one": True, "stop_after_first": True}
    constraint = chat(response_format={"type": "structural_tag", "format": tags}).output_type
    assert [legal(constraint, t) for t in ("free", "a<n=1>7</n>", "a<n=1>7</n>b")] == [False, True, False]


def test_structural_formats() -> None:
    format = {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "n="},
            {"type": "json_schema", "json_schema": NUMBER},
            {"type": "tag", "begin": "(", "content": {"type": "any_text"}, "end": ")"},
            {"type": "regex", "pattern": "[xy]"},
        ],
    }
    constraint = chat(structured_outputs={"structural_tag": {"format": format}}).output_type
    texts = ("n=7(hi)x", "n=7()y", "n=7(a)b)x", "n=x()x", "n=7(hi)")
    assert [legal(constraint, t) for t in texts] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("tag", "code", "param"),
    [
        ({"structures": []}, "missing_field", "/triggers"),
        ({"structures": STRUCTURES["structures"], "triggers": ["<w>"]}, "invalid_value", "/triggers"),
        ({"format": {"type": "or", "elements": []}}, "invalid_value", "/format/type"),
        ({"format": {"type": "sequence", "elements": [{"type": "const_string"}]}}, "missing_field",
         "/format/elements/0/value"),
        ({"format": {**TAGS, "stop": 1}}, "unknown_field", "/format/stop"),
        ({"structures": [{"begin": "<a>", "schema": {}, "stop": ""}], "triggers": ["<a>"]}, "unknown_field",
         "/structures/0/stop"),
    ],
)  # fmt: skip
def test_structural_tags_refused(tag: dict[str, Any], code: str, param: str) -> None:
    assert refused(chat, structured_outputs={"structural_tag": tag}) == (
        code,
        f"/structured_outputs/structural_tag{param}",
    )
