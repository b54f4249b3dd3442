"""What the playground says of a constraint while it is typed: verdicts, and places in the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_spec.errors import GrammarSyntaxError, RequestError
from constrained_spec.grammars.schema_walk import escape
from constrained_spec.server.check import illegal, legal, place_of, read
from constrained_spec.types import Vocabulary


def vocabulary() -> Vocabulary:
    tokens = (None, *(bytes([b]) for b in range(256)), b"ab", b"tru")
    return Vocabulary(tokens, (0,), {"<eos>": 0}, lambda text: [b + 1 for b in text.encode()])


def verdict(kind: str, text: str) -> dict[str, Any]:
    try:
        typed = read(kind, text)
    except RequestError as error:
        return illegal(error, kind, text)
    try:
        return legal(typed, vocabulary())
    except RequestError as error:
        return illegal(error, kind, text, translated=typed.translated)


@pytest.mark.parametrize(
    ("kind", "text", "engine", "finite", "count", "example"),
    [
        ("regex", "[0-9]{2}", "DFA", True, 100, "00"),
        ("regex", "a+", "DFA", False, None, "a"),
        ("regex", "", "DFA", True, 1, ""),
        ("choice", "yes\nno\n\nyes", "DFA", True, 2, "no"),
        ("choice", "a\r\x0bb", "DFA", True, 1, "a\r\x0bb"),  # only a line feed ends a line
        ("schema", '{"enum": [1, 2]}', "llguidance", True, 2, "1"),
        ("schema", '{"type": "string"}', "llguidance", None, None, '""'),
        ("grammar", 'start: "a" | "b"', "llguidance", True, 2, "a"),
        ("grammar", 'root ::= "a" | "b" | "c"', "llguidance", True, 3, "a"),
    ],
)
def test_a_legal_constraint(
    kind: str, text: str, engine: str, finite: bool | None, count: int | None, example: str
) -> None:
    assert verdict(kind, text) == {
        "ok": True, "error": None, "engine": engine, "finite": finite, "count": count, "example": example, "notes": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "pointer", "marked"),
    [
        ("schema", '{"type": "object"', None, ""),
        ("schema", '{\n "properties": {"a": {"type": "strin"}}}', "/properties/a/type", '"type": "strin"'),
        (
            "schema",
            '{"anyOf": [{"const": 1}, {"type": "string", "pattern": "(("}]}',
            "/anyOf/1/pattern",
            '"pattern": "(("',
        ),
        ("schema", '{"$ref": "#/$defs/no"}', "/$ref", '"$ref"'),
        ("regex", "é(b", None, "(b"),
        ("grammar", "start: a", None, "a"),
        ("grammar", 'root ::= "é" b', None, "b"),
    ],
)
def test_an_illegal_constraint_and_its_place(kind: str, text: str, pointer: str | None, marked: str) -> None:
    said = verdict(kind, text)
    assert said["ok"] is False and said["error"]["message"]
    assert said["error"]["pointer"] == pointer
    assert text[said["error"]["position"] :].startswith(marked)
    assert said["engine"] is said["finite"] is said["example"] is None


def test_nothing_satisfies_it() -> None:
    for kind, text in (("schema", "false"), ("schema", '{"type": "integer", "minimum": 2, "maximum": 1}')):
        said = verdict(kind, text)
        assert said["ok"] is False and "satisf" in said["error"]["message"]


def test_a_position_in_a_translation_is_not_shown() -> None:
    text = 'root ::= "a"'
    assert read("grammar", text).translated and not read("grammar", 'start: "a"').translated
    error = GrammarSyntaxError("wrong", position=3)
    assert illegal(error, "grammar", text)["error"]["position"] == 3
    assert illegal(error, "grammar", text, translated=True)["error"]["position"] is None


def test_what_is_not_enforced_is_said() -> None:
    said = verdict("schema", '{"type": "string", "format": "our-own"}')
    assert said["ok"] is True
    assert said["notes"] == ["/format is an annotation, not enforced"]


def test_half_a_surrogate_pair_and_an_unknown_kind() -> None:
    said = verdict("regex", "ab\ud800")
    assert said["error"]["position"] == 2
    with pytest.raises(RequestError) as caught:
        read("xml", "<a/>")
    assert caught.value.param == "/kind"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~\"\\é ", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def pointers(value: Any, above: str = "") -> list[tuple[str, str | None, Any]]:
    """(pointer, key or None, value) of every place."""
    children: list[tuple[str | None, str, Any]] = []
    if isinstance(value, dict):
        children = [(key, escape(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        children = [(None, str(i), item) for i, item in enumerate(value)]
    found = []
    for key, part, item in children:
        found += [(f"{above}/{part}", key, item), *pointers(item, f"{above}/{part}")]
    return found


@given(JSON, st.sampled_from([None, 0, 2]), st.booleans())
def test_every_pointer_leads_to_its_member(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = " \n" + json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    decode = json.JSONDecoder().raw_decode
    assert place_of(text, "") == 2
    for pointer, key, item in pointers(value):
        at = place_of(text, pointer)
        assert at is not None
        first, end = decode(text, at)
        if key is not None:
            assert first == key
            first, _ = decode(text, len(text) - len(text[end:].lstrip(": \n\t")))
        assert first == item
    assert place_of(text, "/not/there") is None


def test_of_two_members_with_one_name_the_last_counts() -> None:
    text = '{"a": 1, "b": {"a": 3}, "a": {"c": 2}}'
    assert place_of(text, "/a") == text.rindex('"a"')
    assert place_of(text, "/a/c") == text.index('"c"')
