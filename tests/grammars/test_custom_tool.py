"""OpenAI custom tools: the two forms, and every unknown part named."""

from __future__ import annotations

import pytest

from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import Lark, Regex, compile_constraint
from constrained_spec.grammars.custom_tool import from_custom_tool
from constrained_spec.types import Vocabulary


def test_both_forms_and_both_syntaxes(vocabulary: Vocabulary) -> None:
    lark = {"syntax": "lark", "definition": 'start: "ab"'}
    regex = {"syntax": "regex", "definition": "[0-9]{2}"}
    assert from_custom_tool({"type": "grammar", **lark}) == Lark('start: "ab"')
    assert from_custom_tool({"type": "grammar", "grammar": lark}) == Lark('start: "ab"')
    assert from_custom_tool({"type": "grammar", **regex}) == Regex("[0-9]{2}")
    assert from_custom_tool({"type": "grammar", "grammar": regex}) == Regex("[0-9]{2}")
    assert compile_constraint(from_custom_tool({"type": "grammar", **lark}), vocabulary).matcher().forced() == b"ab"


@pytest.mark.parametrize(
    ("format", "pointer"),
    [
        ({"type": "text"}, "/format/type"),
        ({"type": "json"}, "/format/type"),
        ({}, "/format/type"),
        ({"type": "grammar"}, "/format/syntax"),
        ({"type": "grammar", "syntax": "gbnf", "definition": "x"}, "/format/syntax"),
        ({"type": "grammar", "syntax": ["lark"], "definition": "x"}, "/format/syntax"),
        ({"type": "grammar", "syntax": "lark"}, "/format/definition"),
        ({"type": "grammar", "syntax": "lark", "definition": ""}, "/format/definition"),
        ({"type": "grammar", "syntax": "regex", "definition": 5}, "/format/definition"),
        ({"type": "grammar", "syntax": "lark", "definition": "x", "fl/ags": "i"}, "/format/fl~1ags"),
        ({"type": "grammar", "grammar": {"syntax": "lark", "definition": "x", "a": 1}}, "/format/grammar/a"),
        ({"type": "grammar", "grammar": {"syntax": "lark"}, "syntax": "lark"}, "/format/syntax"),
        ({"type": "grammar", "grammar": 'start: "a"'}, "/format/grammar"),
        ({"type": "grammar", "grammar": {"definition": "x"}}, "/format/grammar/syntax"),
        ("start", "/format"),
    ],
)  # fmt: skip
def test_everything_unknown_is_named(format: dict[str, object], pointer: str) -> None:
    with pytest.raises(RequestError) as caught:
        from_custom_tool(format)
    assert caught.value.param == pointer and caught.value.hint
