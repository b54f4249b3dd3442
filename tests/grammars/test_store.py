"""The tries on disk: the same masks, and nothing that a broken or foreign file could change."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from constrained_spec.grammars import store
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.tokens import TokenIndex
from constrained_spec.grammars.tries import Level
from constrained_spec.types import Vocabulary


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSTRAINED_SPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "MIN_TOKENS", 1)


def same(a: tuple[Level, ...], b: tuple[Level, ...]) -> bool:
    names = Level.__slots__
    return len(a) == len(b) and all(
        np.array_equal(getattr(x, name), getattr(y, name)) and getattr(x, name).dtype == getattr(y, name).dtype
        for x, y in zip(a, b, strict=True)
        for name in names
    )


def built(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> TokenIndex:
    with monkeypatch.context() as patch:
        patch.setattr(store, "MIN_TOKENS", vocabulary.size + 1)
        return TokenIndex(vocabulary)


def test_what_is_read_is_what_was_built(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = built(vocabulary, monkeypatch)
    assert not store.path_of(vocabulary.digest).exists()
    first = TokenIndex(vocabulary)
    assert store.path_of(vocabulary.digest).is_file()
    assert list(store.cache_folder().glob("*.tmp")) == []

    def fail() -> tuple[Level, ...]:
        raise AssertionError("it is on disk")

    read = store.levels_of(vocabulary.digest, vocabulary.size, fail)
    second = TokenIndex(vocabulary)
    for index in (first, second):
        assert same(index.levels, wanted.levels) and same(read, wanted.levels)
        assert np.array_equal(index.text_row, wanted.text_row)
        assert index.single_bytes == wanted.single_bytes == frozenset(range(256))
    automaton = compile_constraint(Regex("[ab]{3,12}(-[0-9]{2})?|é+"), vocabulary)
    assert isinstance(automaton, DfaGrammar)
    for state in range(automaton.automaton.size):
        rows = [DfaGrammar(automaton.automaton, index, "k", "regex").view(state).row for index in (wanted, second)]
        assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("fault", ["empty", "cut", "flipped", "text", "folder", "pickle"])
def test_a_damaged_file_is_ignored_and_written_anew(
    fault: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = built(vocabulary, monkeypatch)
    TokenIndex(vocabulary)
    path = store.path_of(vocabulary.digest)
    whole = path.read_bytes()
    if fault == "empty":
        path.write_bytes(b"")
    elif fault == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif fault == "flipped":
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0x40]) + whole[middle + 1 :])
    elif fault == "text":
        path.write_text("not an archive")
    elif fault == "pickle":
        np.savez(path, allow_pickle=True, digest=np.array([{"a": 1}], dtype=object))
    else:
        path.unlink()
        path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert same(TokenIndex(vocabulary).levels, wanted.levels)
    assert caplog.records
    if fault != "folder":  # which no rename can replace, and that is only reported
        caplog.clear()
        assert same(TokenIndex(vocabulary).levels, wanted.levels)
        assert not caplog.records


def test_another_vocabularys_file_is_not_taken(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Vocabulary((b"x", b"xy", None), (2,), {}, lambda text: [])
    store.write(store.path_of(vocabulary.digest), other.digest, TokenIndex(other).levels)
    assert same(TokenIndex(vocabulary).levels, built(vocabulary, monkeypatch).levels)


def test_offsets_outside_the_arrays_are_not_believed(vocabulary: Vocabulary) -> None:
    index = TokenIndex(vocabulary)
    path = store.path_of(vocabulary.digest)
    for name, position, value in (("child_start", -1, 10**6), ("ids", 0, vocabulary.size), ("parent", 0, 7)):
        levels = list(index.levels)
        wrong = getattr(levels[0], name).copy()
        wrong[position] = value
        fields = {field: getattr(levels[0], field) for field in Level.__slots__} | {name: wrong}
        store.write(path, vocabulary.digest, [Level(**fields), *levels[1:]])
        assert store.read(path, vocabulary.digest, vocabulary.size) is None
    assert same(TokenIndex(vocabulary).levels, index.levels)


def test_no_file_can_be_written(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("CONSTRAINED_SPEC_CACHE", str(blocker))
    with caplog.at_level(logging.WARNING):
        assert same(TokenIndex(vocabulary).levels, built(vocabulary, monkeypatch).levels)
    assert any("cannot be kept" in record.message for record in caplog.records)


def test_small_vocabularies_and_empty_ones_leave_no_file(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(vocabulary, monkeypatch)
    assert not store.cache_folder().exists()
    empty = Vocabulary((None,), (0,), {}, lambda text: [])
    assert TokenIndex(empty).levels == () and TokenIndex(empty).levels == ()
    assert not TokenIndex(empty).text_row.any()


def test_only_the_newest_files_stay() -> None:
    for i in range(store.MAX_FILES + 3):
        vocabulary = Vocabulary((b"a", bytes([i]) * 2, None), (2,), {}, lambda text: [])
        TokenIndex(vocabulary)
        path = store.path_of(vocabulary.digest)
        os.utime(path, (i, i))
    files = sorted(p.stat().st_mtime for p in store.cache_folder().iterdir())
    assert len(files) == store.MAX_FILES and files[0] >= 2
