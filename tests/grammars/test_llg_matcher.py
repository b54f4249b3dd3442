"""llguidance behind our face: one tokenizer for all, masks from many threads, and errors that stay errors."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from llguidance import LLMatcher

from constrained_spec.grammars.compile import Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.tokens import TokenIndex, token_index
from constrained_spec.types import Vocabulary

CONSTRAINTS: list[Constraint] = [
    Regex("[ab]{2,9}(-[0-9]+)?"),
    JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
    Lark('start: "a" start "b" | "ab"'),
]


def trace(constraint: Constraint, vocabulary: Vocabulary, seed: int) -> list[bytes]:
    """Masks along a random walk that also forks, drafts and rolls back."""
    rng = random.Random(seed)
    matcher = compile_constraint(constraint, vocabulary).matcher()
    row = np.empty(vocabulary.mask_words, np.int32)
    seen = []
    for _ in range(14):
        matcher.mask_into(row)
        seen.append(row.tobytes())
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        legal = [i for i in np.flatnonzero(bits).tolist() if i not in vocabulary.eos_ids]
        if not legal:
            break
        token = rng.choice(legal)
        rows = np.empty((2, vocabulary.mask_words), np.int32)
        assert matcher.draft_masks([token], rows) == 1
        seen.append(rows.tobytes())
        mark = matcher.mark()
        matcher.advance(token)
        if rng.random() < 0.3:
            matcher.rollback(mark)
        elif rng.random() < 0.3:
            matcher = matcher.fork()
    return seen


def test_masks_from_ten_threads_are_those_of_one(vocabulary: Vocabulary) -> None:
    jobs = [(constraint, seed) for constraint in CONSTRAINTS for seed in range(10)]
    wanted = [trace(constraint, vocabulary, seed) for constraint, seed in jobs]
    found: dict[int, list[bytes]] = {}
    faults: list[BaseException] = []
    barrier = threading.Barrier(10)

    def work(own: list[int]) -> None:
        try:
            barrier.wait()
            for i in own:
                found[i] = trace(jobs[i][0], vocabulary, jobs[i][1])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(list(range(t, len(jobs), 10)),)) for t in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert faults == []
    assert [found[i] for i in range(len(jobs))] == wanted


def test_ten_threads_cause_one_compilation(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []
    build = LlgGrammar.build

    def counted(text: str, index: TokenIndex) -> LLMatcher:
        builds.append(text)
        return build(text, index)

    monkeypatch.setattr(LlgGrammar, "build", staticmethod(counted))
    compile_constraint(Lark('start: "asked for by one thread"'), vocabulary)
    by_one = len(builds)
    builds.clear()
    grammars, barrier = [], threading.Barrier(10)

    def ask() -> None:
        barrier.wait()
        grammars.append(compile_constraint(Lark('start: "asked for by ten threads"'), vocabulary))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(builds) == by_one
    assert len(grammars) == 10 and len(set(map(id, grammars))) == 1


def test_our_mask_is_the_engines_where_nothing_is_special(vocabulary: Vocabulary) -> None:
    """Bit for bit, EOS apart, along a text."""
    text = '{"a": true, "b": [1, 2.5, null], "c": "é"}'
    raw = LLMatcher(token_index(vocabulary).engine, '%llguidance {"no_forcing": true}\nstart: %json '
                    '{"type": "object", "x-guidance": {"whitespace_flexible": false, "item_separator": ", ", '
                    '"key_separator": ": "}}\n', log_level=0)  # fmt: skip
    matcher = compile_constraint(JsonSchema({"type": "object"}), vocabulary).matcher()
    ours, theirs = (np.empty(vocabulary.mask_words, np.int32) for _ in range(2))
    eos = token_index(vocabulary).eos_row
    for token in vocabulary.encode(text):
        matcher.mask_into(ours)
        raw.unsafe_compute_mask_ptr(theirs.ctypes.data, theirs.nbytes)
        assert np.array_equal(ours & ~eos, theirs & ~eos)
        assert matcher.advance(token) and raw.try_consume_tokens([token]) == 1
    assert matcher.is_complete


def test_the_engine_is_built_once_and_only_when_it_is_needed(vocabulary: Vocabulary) -> None:
    fresh = Vocabulary((*vocabulary.tokens, b"lazily"), vocabulary.eos_ids, vocabulary.special, vocabulary.encode)
    compile_constraint(Regex("[a-z]+"), fresh)
    index = token_index(fresh)
    assert "_engine" not in vars(index)
    compile_constraint(JsonSchema({"type": "string"}), fresh)
    engine = index.engine
    compile_constraint(Lark('start: "a"'), fresh)
    assert token_index(fresh).engine is engine and engine.vocab_size == fresh.size


def test_warnings_are_the_engines_own(vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(JsonSchema({"type": "integer"}), vocabulary)
    assert grammar.warnings == []  # type: ignore[attr-defined]
