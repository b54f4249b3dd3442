"""``ensure_ascii``: the texts are in ASCII, and they are the escaped texts of the same schema without the option."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_spec.errors import RequestError
from constrained_spec.grammars.ascii_json import with_all_bytes
from constrained_spec.grammars.base import Matcher
from constrained_spec.grammars.compile import All, JsonSchema, Lazy, Regex, Then, compile_constraint
from constrained_spec.grammars.completion import find_completion
from constrained_spec.grammars.escapes import ILLEGAL, LONGEST, code_points, escaped, resolve
from constrained_spec.grammars.lengths import CloseOnLength
from constrained_spec.grammars.tokens import token_index
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.types import Vocabulary

# Tokens that begin an escape, go on with one, end one, hold two, and mix them with other text.
PIECES = (
    b"ab", b'{"', b'": ', b'"}', b"true", b", ", b"12", b"\xc3\xa9", b"\xf0\x9f", b"\\u", b"\\u00", b"u00", b"00",
    b"e9", b'e9"', b"d8", b"\\ud83d", b"\\ud83d\\ude00", b"ude", b"3d", b'"\\u', b"\\\\", b"\\u00e9\\u00", b"n\\u",
    b"1f\\ud", b"a\\u00e9b", b"u20ac", b"E9", b"0e9", b"83d\\", b"\\u00e9\xc3",
)  # fmt: skip


def _vocabulary(single: range) -> Vocabulary:
    return Vocabulary(
        (None, None, b"", *(bytes([b]) for b in single), *PIECES, None), (0, 1), {},
        lambda text: [b - single[0] + 3 for b in text.encode() if b in single],
    )  # fmt: skip


ALL_BYTES = _vocabulary(range(256))
PRINTABLE = _vocabulary(range(32, 127))  # no token of a byte beyond ASCII

SCHEMAS: dict[str, Any] = {
    "string": {"type": "string"},
    "length": {"type": "string", "minLength": 2, "maxLength": 3},
    "const": {"const": "é"},
    "enum": {"enum": ["né😀", "nó", "n\n", "€", "\\u00e9", "\x7f", "\x01é"]},
    "class": {"type": "string", "pattern": "^[é-ü]{2}$"},
    "pairs": {"type": "string", "pattern": "^[😀-😂€]{1,3}$"},
    "keys": {
        "type": "object", "properties": {"é": {"enum": ["ü", 1]}, "ö": {"type": "string"}}, "required": ["é"],
        "additionalProperties": False,
    },
    "other-keys": {"type": "object", "properties": {"é": {"const": 1}}, "additionalProperties": {"const": "日本"}},
    "key-pattern": {
        "type": "object", "patternProperties": {"^é+$": {"const": 1}}, "additionalProperties": False, "minProperties": 1
    },
    "format": {"type": "array", "items": {"type": "string", "format": "date"}},
}  # fmt: skip


def matcher_of(schema: Any, vocabulary: Vocabulary = ALL_BYTES, ascii_only: bool = True) -> Matcher:
    return compile_constraint(JsonSchema(schema, ensure_ascii=ascii_only), vocabulary).matcher()


def accepts(matcher: Matcher, data: bytes) -> bool:
    by_byte = {t[0]: i for i, t in enumerate(ALL_BYTES.tokens) if t and len(t) == 1}
    return all(matcher.advance(by_byte[b]) for b in data) and matcher.is_complete


def legal(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, np.int32)
    matcher.mask_into(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert not bits[vocabulary.size :].any()
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def walk(matcher: Matcher, vocabulary: Vocabulary, rng: random.Random, steps: int) -> list[int]:
    """A random text with rollbacks, its end searched for; every mask on the way is compared with every token's fate,
    and what is called forced with what is legal."""
    ids: list[int] = []
    for _ in range(steps):
        allowed = legal(matcher, vocabulary)
        taken = [t for t in range(vocabulary.size) if _would_take(matcher, t)]
        assert allowed == taken, b"".join(vocabulary.tokens[t] or b"" for t in ids)
        assert allowed, "no mask on the way to a text is empty"
        texts = [t for t in allowed if t not in vocabulary.eos_ids]
        if not texts:
            break
        forced = matcher.forced()
        pieces = [vocabulary.tokens[t] or b"" for t in texts]
        assert all(forced.startswith(piece) or piece.startswith(forced) for piece in pieces)
        if ids and rng.random() < 0.15:
            cut = rng.randrange(len(ids))
            matcher.rollback(cut)
            del ids[cut:]
            continue
        escapes = [t for t in texts if b"\\" in (vocabulary.tokens[t] or b"")]
        token = rng.choice(escapes if escapes and rng.random() < 0.3 else texts)
        assert matcher.advance(token)
        ids.append(token)
    end = find_completion(matcher, token_index(vocabulary), 80, 400)
    assert isinstance(end, tuple)
    assert all(matcher.advance(t) for t in end)
    return [*ids, *end]


def _would_take(matcher: Matcher, token: int) -> bool:
    mark = matcher.mark()
    taken = matcher.advance(token)
    matcher.rollback(mark)
    return taken


@pytest.mark.parametrize("vocabulary", [ALL_BYTES, PRINTABLE], ids=["all-bytes", "printable"])
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_random_texts_are_ascii_and_valid_and_masks_are_exact(name: str, vocabulary: Vocabulary) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema)
    for seed in range(3):
        matcher = matcher_of(schema, vocabulary)
        ids = walk(matcher, vocabulary, random.Random(seed), 14)
        text = b"".join(vocabulary.tokens[t] or b"" for t in ids).decode("ascii")
        value = json.loads(text)
        value_text = json.dumps(value, ensure_ascii=False)
        value_text.encode()  # whole characters only
        assert validator.is_valid(value), text
        replayed = matcher_of(schema, vocabulary)
        assert all(replayed.advance(t) for t in ids)
        assert replayed.fingerprint() == matcher.fingerprint()
        forked = matcher.fork()
        matcher.rollback(0)
        assert forked.fingerprint() == replayed.fingerprint()
        assert matcher.fingerprint() == matcher_of(schema, vocabulary).fingerprint()


VALUES = st.one_of(
    st.text(alphabet='aé€😀\n"\\\x7f\x01\ud7ff\ue000\uffff\U0010ffff', max_size=4),
    st.dictionaries(st.text(alphabet="aé😀", max_size=2), st.sampled_from(["é", 1, None]), max_size=2),
)


@given(VALUES, st.sampled_from(sorted(SCHEMAS)))
def test_the_escaped_text_is_legal_exactly_where_the_plain_one_is(value: Any, name: str) -> None:
    plain = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    written = json.dumps(value).replace("\x7f", "\\u007f")  # the engine never writes a raw DEL
    assert escaped(plain) == written.encode()
    schema = SCHEMAS[name]
    assert accepts(matcher_of(schema), written.encode()) == accepts(
        matcher_of(schema, ascii_only=False), plain.encode()
    )
    if plain != written:
        assert not accepts(matcher_of(schema), plain.encode())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (rb'"\u00E9"', "one spelling: lower case"),
        (rb'"\u0041"', "a character that needs no escape"),
        (rb'"\ud83d"', "half a pair"),
        (rb'"\ude00"', "the other half"),
        (rb'"\ud83d\u0041"', "a pair that is none"),
        (rb'"\ud83dx"', "a pair that stops"),
    ],
)
def test_no_other_escape_is_legal(text: bytes, reason: str) -> None:
    assert not accepts(matcher_of({"type": "string"}), text), reason


def test_an_escaped_name_is_the_declared_one() -> None:
    schema = {"type": "object", "properties": {"é": {"type": "integer"}, "a": {"type": "integer"}}}
    assert accepts(matcher_of(schema), rb'{"\u00e9": 1}')
    assert not accepts(matcher_of(schema), rb'{"\u00e9": "x"}')
    assert not accepts(matcher_of(schema), rb'{"\u0061": "x"}')


def test_what_is_forced_is_escaped() -> None:
    matcher = matcher_of({"const": "né😀!"})
    assert matcher.forced() == rb'"n\u00e9\ud83d\ude00!"'
    assert all(matcher.advance(ALL_BYTES.encode(c)[0]) for c in '"n\\u0')
    assert matcher.forced() == rb'0e9\ud83d\ude00!"'


def test_in_an_intersection_and_with_a_length() -> None:
    both = All(JsonSchema({"type": "string"}, ensure_ascii=True), Regex(r'"(é|\\u00e[89]){2}"'))
    assert accepts(compile_constraint(both, ALL_BYTES).matcher(), rb'"\u00e9\u00e8"')
    assert not accepts(compile_constraint(both, ALL_BYTES).matcher(), '"éé"'.encode())
    inner = matcher_of({"type": "string", "pattern": "^é{3,}$"})
    assert isinstance(inner, TrackingMatcher)
    closing = CloseOnLength(inner, 30)
    while not closing.is_complete:
        assert closing.advance(next(t for t in legal(closing, ALL_BYTES) if t not in ALL_BYTES.eos_ids))


def test_relaxed_schemas_say_so_with_escapes_too() -> None:
    grammar = compile_constraint(
        JsonSchema({"type": "array", "uniqueItems": True}, on_unsupported="validate", ensure_ascii=True), ALL_BYTES
    )
    assert grammar.relaxed == (("/uniqueItems", "uniqueItems"),)  # type: ignore[attr-defined]


@pytest.mark.parametrize("outer", [lambda x: Then(x, Regex("a")), lambda x: Lazy("go", x)])
def test_within_another_constraint_it_is_refused(outer: Any) -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(outer(JsonSchema({"type": "string"}, ensure_ascii=True)), ALL_BYTES)
    assert caught.value.param == "ensure_ascii"


def test_canonical_tokenization_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(JsonSchema({}, ensure_ascii=True), ALL_BYTES, tokenization="canonical")
    assert caught.value.param == "ensure_ascii"


def test_only_a_vocabulary_without_some_bytes_gets_more_tokens() -> None:
    whole, lacking = token_index(ALL_BYTES), token_index(PRINTABLE)
    assert with_all_bytes(whole) is whole
    more = with_all_bytes(lacking).vocabulary
    assert more.tokens[: PRINTABLE.size] == PRINTABLE.tokens and more.size > PRINTABLE.size


@given(st.characters(exclude_categories=["Cs"], min_codepoint=0x80))
def test_escapes_by_the_byte(character: str) -> None:
    data = escaped(character)
    assert json.loads(b'"' + data + b'"') == character and len(data) in (6, LONGEST)
    for size in range(1, len(data)):
        assert resolve(data[:size]) is None
        assert any(low <= ord(character) <= high for low, high in code_points(data[:size]))
    assert resolve(data) == character.encode()


def test_code_points_of_a_partial_escape_are_all_of_them() -> None:
    for partial in (b"\\", b"\\u", b"\\u0", b"\\u00", b"\\u00e", b"\\ud", b"\\ud8", b"\\ud83d\\ude0", b"\\ud83d\\u"):
        ends = {0, 0x80, 0x7FF, 0xD7FF, 0xE000, 0x1F5FF, 0x1F600, 0x1F60F, 0x1F610, 0x10FFFF, 0xE0, 0xEF, 0xF0, 0xFF}
        for code in sorted(ends | set(range(0x80, 0x110000, 997)) - set(range(0xD800, 0xE000))):
            inside = any(low <= code <= high for low, high in code_points(partial))
            assert inside == (code >= 0x80 and escaped(chr(code)).startswith(partial)), (partial, hex(code))
    assert resolve(b"\\ud83d\\u0041") == ILLEGAL
