"""Faults of other engines, as their users reported them (CASES.md)."""

from __future__ import annotations

import numpy as np
import pytest

from constrained_spec.grammars.base import Matcher
from constrained_spec.grammars.compile import Choice, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.tokens import is_set
from constrained_spec.types import Vocabulary

SCHEMA = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "compact")


def byte(vocabulary: Vocabulary, text: str) -> list[int]:
    return [vocabulary.tokens.index(bytes([b])) for b in text.encode()]


def fed(matcher: Matcher, vocabulary: Vocabulary, text: str) -> Matcher:
    assert all(matcher.advance(t) for t in byte(vocabulary, text))
    return matcher


def legal(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    row = np.empty(vocabulary.mask_words, np.int32)
    matcher.mask_into(row)
    return {i for i in range(vocabulary.size) if is_set(row, i)}


def test_b04_a_draft_beyond_eos_has_no_effect(vocabulary: Vocabulary) -> None:
    matcher = fed(compile_constraint(SCHEMA, vocabulary).matcher(), vocabulary, '{"a":1')
    before = matcher.fingerprint()
    draft = [*byte(vocabulary, "}"), 0, *byte(vocabulary, "\n{")]
    rows = np.full((len(draft) + 1, vocabulary.mask_words), -1, np.int32)
    assert matcher.draft_masks(draft, rows) == 2
    assert not rows[2:].any()
    assert matcher.fingerprint() == before


@pytest.mark.parametrize("constraint", [SCHEMA, Regex(r'\{"a":[0-9]+\}'), Choice(('{"a":1}', '{"a":2}'))])
def test_b06_rollback_over_brace_and_eos(constraint: JsonSchema | Regex | Choice, vocabulary: Vocabulary) -> None:
    matcher = fed(compile_constraint(constraint, vocabulary).matcher(), vocabulary, '{"a":1')
    mark, before = matcher.mark(), matcher.fingerprint()
    assert all(matcher.advance(t) for t in (*byte(vocabulary, "}"), 1))
    matcher.rollback(mark)
    assert matcher.fingerprint() == before
    assert not matcher.is_complete and not matcher.is_finished


def test_b08_a_refused_token_leaves_nothing_behind(vocabulary: Vocabulary) -> None:
    matcher = fed(compile_constraint(SCHEMA, vocabulary).matcher(), vocabulary, '{"a":1}')
    assert matcher.advance(0)
    matcher.rollback(matcher.mark() - 2)
    assert matcher.advance(*byte(vocabulary, "}"))
    assert matcher.is_complete

    key = fed(compile_constraint(SCHEMA, vocabulary).matcher(), vocabulary, '{"a')
    before = key.fingerprint()
    wrong = vocabulary.tokens.index(b'": ')  # begins legally, ends illegally: compact JSON has no space
    assert not key.advance(wrong)
    assert key.fingerprint() == before
    fed(key, vocabulary, '":7}')


@pytest.mark.parametrize("schema", [{"type": "boolean"}, {"type": "null"}, {"enum": ["a"]}])
def test_b33_b35_after_the_value_only_eos(schema: dict[str, object], vocabulary: Vocabulary) -> None:
    text = {"boolean": "true", "null": "null"}.get(str(schema.get("type")), '"a"')
    matcher = fed(compile_constraint(JsonSchema(schema), vocabulary).matcher(), vocabulary, text)
    assert matcher.is_complete and matcher.is_finished
    assert legal(matcher, vocabulary) == {0, 1}


def test_complete_is_not_finished(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Regex("ab?"), vocabulary).matcher()
    assert not matcher.is_complete
    fed(matcher, vocabulary, "a")
    assert matcher.is_complete and not matcher.is_finished
    fed(matcher, vocabulary, "b")
    assert matcher.is_finished


def test_b51_an_emoji_over_several_tokens(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Regex("[😀-🙏]+"), vocabulary).matcher()
    assert matcher.forced() == b"\xf0\x9f"
    assert matcher.forced_tokens() == []  # no whole character, nothing to spell
    assert matcher.advance(vocabulary.tokens.index(b"\xf0\x9f"))
    assert not matcher.is_complete
    assert matcher.advance(vocabulary.tokens.index(b"\x98\x80"))
    assert matcher.is_complete


def test_b55_equal_tokens_are_both_legal_and_specials_never(vocabulary: Vocabulary) -> None:
    twins = {i for i, t in enumerate(vocabulary.tokens) if t == b"ab"}
    assert len(twins) == 2
    for constraint in (Choice(("abab",)), Lark('start: "abab"')):
        matcher = compile_constraint(constraint, vocabulary).matcher()
        assert twins <= legal(matcher, vocabulary)
    without_text = {i for i, t in enumerate(vocabulary.tokens) if not t}
    for free in (Regex("(?s:.*)"), Lark("start: /(?s:.*)/"), JsonSchema({"type": "string"})):
        matcher = compile_constraint(free, vocabulary).matcher()
        if isinstance(free, JsonSchema):
            fed(matcher, vocabulary, '"')
        assert not (legal(matcher, vocabulary) - {0, 1}) & without_text


def test_b55_the_name_of_a_special_token_as_text_is_not_the_token(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Choice(("<|tool|>",)), vocabulary).matcher()
    assert 2 not in legal(matcher, vocabulary)
    fed(matcher, vocabulary, "<|tool|>")
    assert matcher.is_finished


def test_a_quoted_name_is_text_in_a_grammar_too(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Lark('start: "<|eos|>" /<.tool.>/  // not <|end|>'), vocabulary).matcher()
    fed(matcher, vocabulary, "<|eos|><|tool|>")
    assert matcher.is_finished


def test_a_special_token_that_the_grammar_names_is_legal_there_alone(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Lark('start: "a" <|tool|> "b"'), vocabulary).matcher()
    assert matcher.forced() == b"a"
    fed(matcher, vocabulary, "a")
    assert legal(matcher, vocabulary) == {2}
    assert matcher.advance(2)
    fed(matcher, vocabulary, "b")
    assert matcher.is_finished
