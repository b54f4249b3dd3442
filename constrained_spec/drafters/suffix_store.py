"""A bounded memory of finished outputs: who may read them is part of the key, and the oldest go first."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
import threading
import zipfile
import zlib
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from constrained_spec.drafters.suffix_automaton import NOTHING, Continuation, SuffixAutomaton
from constrained_spec.errors import ConfigError, ConstrainedSpecError, VocabularyMismatchError
from constrained_spec.types import Vocabulary

FORMAT = 1  # of the file
START = -1  # stands before the first token of every output: how outputs begin is worth remembering
CONTEXT = 32  # tokens of the tail that are matched, at most
_CHUNK = 64  # tokens that are learnt under one hold of the lock
_SEGMENTS = 8  # parts of the capacity: what is evicted at once
_TOKEN_BYTES = 8  # of the plain tokens, which two automata share
_BROKEN = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, OverflowError, RuntimeError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Key = tuple[str, str | None]  # namespace, grammar key


class SuffixStoreError(ConstrainedSpecError):
    """A file of a suffix store cannot be read or written, or is damaged."""


@dataclass(frozen=True, slots=True, eq=False)
class _Output:
    serial: int
    key: Key
    tokens: array[int]


@dataclass(slots=True, eq=False)
class _Segment:
    """A part of one group's history. It is evicted as a whole, so that nothing ever has to be taken out of it."""

    used: int
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    outputs: list[_Output] = field(default_factory=list)
    tokens: int = 0
    alive: bool = True

    @property
    def nbytes(self) -> int:
        return self.automaton.nbytes + self.tokens * _TOKEN_BYTES


class SuffixStore:
    """Finished outputs of one vocabulary, findable by what they contain (SuffixDecoding, Oliaro et al. 2024).

    Each output is kept under (namespace, grammar key) and under (namespace, None), in suffix automata that together
    hold at most ``capacity_bytes`` (an estimate, some 450 bytes a token and group; measured, not exact). Beyond that
    the parts go that were used least recently. What was added under one namespace is never found under another.
    Thread-safe: the lock is held for at most one chunk of an output or one search.
    """

    def __init__(self, capacity_bytes: int, vocabulary: Vocabulary) -> None:
        if not isinstance(capacity_bytes, int) or isinstance(capacity_bytes, bool) or capacity_bytes < 1:
            raise ConfigError(
                f"capacity_bytes must be a positive integer, got {capacity_bytes!r}", param="capacity_bytes"
            )
        self.capacity_bytes = capacity_bytes
        self.digest = vocabulary.digest
        self._size = vocabulary.size
        self._lock = threading.Lock()
        self._groups: dict[Key, list[_Segment]] = {}
        self._bytes = 0
        self._clock = 0
        self._serial = 0

    @property
    def nbytes(self) -> int:
        """Estimated bytes held; at most ``capacity_bytes`` whenever no ``add`` is under way."""
        return self._bytes

    def add(self, namespace: str, grammar_key: str | None, tokens: Seq[int]) -> None:
        """Remember the tokens of a *finished* output, its EOS included. About 5 µs a token and group."""
        if any(not 0 <= t < self._size for t in tokens):
            raise ConfigError(f"an output holds an id outside the vocabulary of {self._size}", param="tokens")
        if not tokens:
            return
        with self._lock:
            self._serial += 1
            output = _Output(self._serial, (namespace, grammar_key), array("q", tokens))
        for key in _keys(namespace, grammar_key):
            self._learn(key, output)

    def find(
        self, namespace: str, grammar_key: str | None, output: Seq[int], *, room: int, shortest: int, threshold: float,
        legal: Callable[[int], bool],
    ) -> Continuation:  # fmt: skip
        """What most probably follows ``output`` (all tokens of it so far), see ``SuffixAutomaton.continuation``.

        An output that is matched from its first token on counts as a match of ``shortest`` tokens more, but among
        outputs of one grammar only: those begin alike.
        """
        whole = len(output) < CONTEXT
        tail = [START, *output] if whole else list(output[-CONTEXT:])

        def bonus(n: int) -> int:
            return shortest if whole and n == len(tail) else 0

        best, source = NOTHING, None
        with self._lock:
            for key in _keys(namespace, grammar_key):
                for segment in self._groups.get(key, ()):
                    worth = bonus if key[1] is not None else _nothing_more
                    found = segment.automaton.continuation(tail, room, shortest, threshold, legal, worth)
                    if found.expected > best.expected:
                        best, source = found, segment
            if source is not None:
                source.used = self._tick()
        return best

    def clear(self, namespace: str | None = None) -> None:
        """Forget everything, or everything of one namespace."""
        with self._lock:
            for key in [k for k in self._groups if namespace is None or k[0] == namespace]:
                for segment in self._groups.pop(key):
                    self._bytes -= segment.nbytes
                    segment.alive = False

    # ---- on disk --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the outputs to ``path``; it appears, or is replaced, by one rename. Raises ``SuffixStoreError``."""
        with self._lock:
            held = {o.serial: o for group in self._groups.values() for segment in group for o in segment.outputs}
        outputs = [held[serial] for serial in sorted(held)]
        header = {"format": FORMAT, "vocabulary": self.digest, "keys": [list(o.key) for o in outputs]}
        content: dict[str, NDArray[np.generic]] = {
            "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
            "lengths": np.array([len(o.tokens) for o in outputs], np.int64),
            "tokens": np.concatenate([np.empty(0, np.int32), *(np.array(o.tokens, np.int32) for o in outputs)]),
        }
        target, temporary = Path(path), None
        try:
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
            with os.fdopen(handle, "wb") as out:
                np.savez(out, allow_pickle=False, **content)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, target)
            temporary = None
        except OSError as error:
            raise SuffixStoreError(f"the suffix store cannot be written: {error}", param="path") from error
        finally:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    @classmethod
    def load(cls, path: str | os.PathLike[str], capacity_bytes: int, vocabulary: Vocabulary) -> SuffixStore:
        """The store that was saved to ``path``, its oldest outputs left out where ``capacity_bytes`` is smaller.

        Raises ``SuffixStoreError`` for a missing or damaged file, ``VocabularyMismatchError`` for another vocabulary's.
        """
        store = cls(capacity_bytes, vocabulary)
        try:
            # numpy leaves a file open that it cannot read, if it opened it.
            with (
                open(path, "rb") as raw,
                np.load(raw, allow_pickle=False) as file,
            ):  # zip members carry checksums, which reading verifies
                header = json.loads(bytes(file["header"]))
                lengths, tokens = file["lengths"].astype(np.int64), file["tokens"].astype(np.int64)
            kind, digest = header["format"], header["vocabulary"]
            keys = [(str(n), None if g is None else str(g)) for n, g in header["keys"]]
            sound = len(keys) == len(lengths) and (lengths > 0).all() and lengths.sum() == len(tokens)
        except _BROKEN as error:
            raise SuffixStoreError(
                f"the suffix store cannot be read: {error}", param="path", hint=f"delete {path} and start anew"
            ) from error
        if digest != vocabulary.digest:
            raise VocabularyMismatchError("the suffix store holds ids of another vocabulary", param="path")
        if kind != FORMAT or not sound or (len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary.size):
            raise SuffixStoreError("the suffix store is damaged", param="path", hint=f"delete {path} and start anew")
        at = 0
        for (namespace, grammar_key), n in zip(keys, lengths.tolist(), strict=True):
            store.add(namespace, grammar_key, tokens[at : at + n].tolist())
            at += n
        return store

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _learn(self, key: Key, output: _Output) -> None:
        with self._lock:
            group = self._groups.setdefault(key, [])
            if not group or group[-1].nbytes > self.capacity_bytes // _SEGMENTS:
                group.append(_Segment(self._tick()))
                self._bytes += group[-1].nbytes
            segment = group[-1]
            segment.used = self._tick()
            segment.outputs.append(output)
        last, run = 0, [START, *output.tokens]
        for at in range(0, len(run), _CHUNK):
            # Others may search, add or evict between two chunks: ``last`` stays the state of this prefix, whatever is
            # split, because a split moves only shorter strings out of a state.
            with self._lock:
                if not segment.alive:
                    return
                before = segment.nbytes
                for token in run[at : at + _CHUNK]:
                    last = segment.automaton.extend(last, token)
                segment.tokens += len(run[at : at + _CHUNK])
                self._bytes += segment.nbytes - before
                self._evict()

    def _evict(self) -> None:
        while self._bytes > self.capacity_bytes:
            held = ((s, k) for k, group in self._groups.items() for s in group)
            victim, key = min(held, key=lambda pair: pair[0].used)
            group = self._groups[key]
            victim.alive = False
            group.remove(victim)
            self._bytes -= victim.nbytes
            if not group:
                del self._groups[key]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _keys(namespace: str, grammar_key: str | None) -> tuple[Key, ...]:
    """The groups that an output belongs to; the first of two that promise the same is believed."""
    everything: Key = (namespace, None)
    return (everything,) if grammar_key is None else ((namespace, grammar_key), everything)


def _nothing_more(n: int) -> int:
    return 0
