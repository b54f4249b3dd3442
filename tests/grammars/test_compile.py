"""Choice and Lark by their errors, the caches, threads, and odd vocabularies."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from constrained_spec.errors import (
    ConfigError,
    ConstrainedSpecError,
    GrammarBudgetError,
    GrammarSyntaxError,
    RequestError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)
from constrained_spec.grammars.base import Matcher
from constrained_spec.grammars.compile import (
    All,
    Choice,
    Constraint,
    JsonSchema,
    Lark,
    Lazy,
    Optional,
    Regex,
    Tag,
    Tagged,
    Then,
    ToolCalls,
    Without,
    compile_constraint,
)
from constrained_spec.grammars.lru import ByteLru
from constrained_spec.grammars.tokens import is_set, spell
from constrained_spec.types import Vocabulary


@pytest.mark.parametrize(
    ("options", "kind", "param"),
    [
        ((), UnsatisfiableError, "choice"),
        (("a", 3), RequestError, "choice/1"),
        (("\ud800",), RequestError, "choice/0"),
        ("abc", RequestError, "choice"),
        (5, RequestError, "choice"),
    ],
)
def test_bad_choices(options: tuple[str, ...], kind: type[RequestError], param: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(kind) as caught:
        compile_constraint(Choice(options), vocabulary)
    assert caught.value.param == param


def test_a_choice_of_the_empty_string_alone_is_finished_at_once(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Choice(("",)), vocabulary).matcher()
    assert matcher.is_complete and matcher.is_finished


def test_a_long_choice(vocabulary: Vocabulary) -> None:
    options = tuple(f"option {i * 7919 % 30011}" for i in range(30_000))
    matcher = compile_constraint(Choice(options), vocabulary).matcher()
    assert matcher.forced() == b"option "
    for token in vocabulary.encode(options[17]):
        assert matcher.advance(token)
    assert matcher.is_complete


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("start: /a(/", 7),
        ('x: "a"\nstart: foo', 14),
        ('start "a"', 6),
        ('%llguidance {"no_forcing": false}\nstart: foo', 41),
        ("%llguidance {bad}\nstart: x", 13),
        ('start: "a" <|nope|>', 7),
        ("", None),
        ('foo: "a"', None),
    ],
)
def test_lark_errors_say_where(text: str, position: int | None, vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        compile_constraint(Lark(text), vocabulary)
    assert (caught.value.position, caught.value.param) == (position, "grammar")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("start: s\ns: s", UnsatisfiableError),
        ("start: A\nA: /a/ & /b/", UnsatisfiableError),
        ('start: %json {"not": {}}', UnsupportedSchemaError),
        ('start: %json {"enum": []}', UnsatisfiableError),
        ('start: %json {"not": {}, "x-guidance": {"lenient": true}}', RequestError),
        ("start: " + '"a" ' * 300_000, GrammarBudgetError),
        (5, RequestError),
        ('start: "a" <|eos|>', RequestError),
        ('start: "a" <[1]>', RequestError),
    ],
)
def test_other_lark_errors_are_typed(text: str, kind: type[RequestError], vocabulary: Vocabulary) -> None:
    with pytest.raises(kind):
        compile_constraint(Lark(text), vocabulary)


def test_a_callers_header_cannot_bring_forced_masks_back(vocabulary: Vocabulary) -> None:
    text = '%llguidance {"no_forcing": false}\nstart: "abab"'
    row = np.empty(vocabulary.mask_words, np.int32)
    counts = {}
    for tokenization in ("any", "canonical"):
        compile_constraint(Lark(text), vocabulary, tokenization=tokenization).matcher().mask_into(row)
        counts[tokenization] = sum(is_set(row, i) for i in range(vocabulary.size))
    assert counts["any"] == 5  # a, ab, its twin, aba, abab
    assert counts["canonical"] == 1


def test_equal_constraints_share_one_grammar_and_others_do_not(vocabulary: Vocabulary) -> None:
    a = compile_constraint(Regex("x+"), vocabulary)
    assert compile_constraint(Regex("x+"), vocabulary) is a
    others = {
        compile_constraint(Regex("x*"), vocabulary).key,
        compile_constraint(Choice(("x+",)), vocabulary).key,
        compile_constraint(Regex("x+"), vocabulary, tokenization="canonical").key,
        compile_constraint(JsonSchema({"type": "string", "pattern": "x+"}), vocabulary).key,
    }
    assert len(others | {a.key}) == 5


def test_keys_tell_combinations_apart(vocabulary: Vocabulary) -> None:
    x, y = Regex("x"), Regex("y")
    tool = {"name": "f"}
    constraints: tuple[Constraint, ...] = (
        x,
        All(x),
        Then(x),
        Then(x, y),
        Then(y, x),
        Then(Then(x, y)),
        Optional(x),
        Without(x, "y"),
        Without(Optional(x), "y"),
        Lazy("a", x),
        Lazy("b", x),
        Lazy("a", y),
        Tagged((Tag("a", x),)),
        Tagged((Tag("a", x, "a"),)),
        Tagged((Tag("a", x),), at_least_one=True),
        Tagged((Tag("a", x),), stop_after_first=True),
        ToolCalls((tool,)),
        ToolCalls((tool,), "f"),
        ToolCalls((tool,), parallel=False),
        ToolCalls((tool,), syntax="json"),
        JsonSchema({"type": "string"}),
        JsonSchema({"type": "string"}, ensure_ascii=True),
        JsonSchema({"type": "string"}, max_depth=1),
        JsonSchema({"type": "string"}, registry={"u:x": {"type": "string"}}),
    )
    grammars = [compile_constraint(c, vocabulary) for c in constraints]
    assert len({g.key for g in grammars}) == len(constraints)
    assert all(compile_constraint(c, vocabulary) is g for c, g in zip(constraints, grammars, strict=True))


def test_unknown_tokenization_and_no_constraint(vocabulary: Vocabulary) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_constraint(Regex("a"), vocabulary, tokenization="best")
    assert caught.value.param == "tokenization"
    with pytest.raises(RequestError):
        compile_constraint(5, vocabulary)  # type: ignore[arg-type]


def test_the_cache_is_bounded_builds_once_and_forgets_failures() -> None:
    cache: ByteLru[int, str] = ByteLru(100)
    for i in range(50):
        assert cache.get(i, lambda i=i: (str(i), 30)) == str(i)  # type: ignore[misc]
    assert cache.nbytes <= 100 and len(cache) == 3
    assert cache.get(99, lambda: ("huge", 10**6)) == "huge" and len(cache) == 1

    def fail() -> tuple[str, int]:
        raise RequestError("no")

    with pytest.raises(RequestError):
        cache.get(7, fail)
    assert cache.get(7, lambda: ("yes", 1)) == "yes"

    builds, barrier = [], threading.Barrier(10)

    def build() -> tuple[str, int]:
        builds.append(1)
        return "one", 1

    def ask() -> None:
        barrier.wait()
        assert cache.get(1234, build) == "one"

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert builds == [1]


def test_threads_share_a_grammar(vocabulary: Vocabulary) -> None:
    constraints = (
        Regex("[ab]{2,9}"),
        JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
    )
    faults: list[BaseException] = []

    def walk(seed: int) -> None:
        try:
            rng = random.Random(seed)
            for constraint in constraints * 6:
                matcher = compile_constraint(constraint, vocabulary).matcher()
                row = np.empty(vocabulary.mask_words, np.int32)
                for _ in range(12):
                    matcher.mask_into(row)
                    legal = [i for i in range(2, vocabulary.size) if is_set(row, i)]
                    if not legal:
                        break
                    assert matcher.advance(rng.choice(legal))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=walk, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert faults == []


def _helpers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grammar_vocabulary", Path(__file__).parent / "conftest.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["grammar_vocabulary"] = module
    spec.loader.exec_module(module)
    return module


def test_what_no_token_sequence_can_spell_is_left_out_or_refused() -> None:
    """Without single bytes above ASCII: only what whole tokens can finish is legal."""
    vocabulary: Vocabulary = _helpers().make_vocabulary(pieces=(b"\xf0\x9f", b"\x98\x80", b"\xc3"), all_bytes=False)
    lead = vocabulary.tokens.index(b"\xf0\x9f")
    row = np.empty(vocabulary.mask_words, np.int32)

    def legal(matcher: Matcher) -> set[int]:
        matcher.mask_into(row)
        return {i for i in range(2, vocabulary.size) if is_set(row, i)}

    grammar = compile_constraint(Regex("😀|😃x|é|a"), vocabulary)
    assert legal(grammar.matcher()) == {lead, vocabulary.tokens.index(b"a")}
    matcher = grammar.matcher()
    assert matcher.advance(lead)
    assert legal(matcher) == {vocabulary.tokens.index(b"\x98\x80")}
    with pytest.raises(UnsatisfiableError):
        compile_constraint(Regex("😃|é"), vocabulary)
    with pytest.raises(UnsatisfiableError):
        compile_constraint(Choice(("é",)), vocabulary)


def test_spelling_stops_at_what_is_not_the_text(vocabulary: Vocabulary) -> None:
    assert vocabulary.bytes_of(spell(vocabulary, b'{"a": tr')) == b'{"a": tr'
    assert vocabulary.bytes_of(spell(vocabulary, "é".encode() + b"\xf0\x9f")) == "é".encode()
    spaced = Vocabulary(vocabulary.tokens, (0, 1), {}, lambda text: vocabulary.encode(" " + text))
    assert spell(spaced, b"ab") == []
    special = Vocabulary(vocabulary.tokens, (0, 1), {}, lambda text: [*vocabulary.encode(text[:1]), 2])
    assert vocabulary.bytes_of(spell(special, b"ab")) == b"a"


def test_an_engine_limit_is_a_typed_error_and_rollback_recovers(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    from constrained_spec.grammars import llg

    monkeypatch.setattr(llg, "STEP_MAX_ITEMS", 200)
    text = 'start: s\ns: s s | "a" | "b"  // limits'
    matcher = compile_constraint(Lark(text), vocabulary).matcher()
    a = vocabulary.tokens.index(b"a")
    row = np.empty(vocabulary.mask_words, np.int32)
    before = matcher.fingerprint()
    with pytest.raises(ConstrainedSpecError) as caught:
        for _ in range(200):
            assert matcher.advance(a)
            matcher.mask_into(row)
    assert isinstance(caught.value, GrammarBudgetError)
    with pytest.raises(GrammarBudgetError):  # not silently EOS
        matcher.mask_into(row)
    matcher.rollback(0)
    assert matcher.fingerprint() == before
