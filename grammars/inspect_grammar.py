"""What can be said of a compiled grammar: its engine, its size, how many strings it has, one of them, and where a text
leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from constrained_spec.grammars.automaton import DEAD, ByteAutomaton
from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.tokens import TokenIndex
from constrained_spec.grammars.tries import Ints, expand
from constrained_spec.types import Vocabulary

MAX_COUNTED = 1_000_000  # strings; beyond, only "finite" is said
MAX_EXAMPLE_BYTES = 100_000  # of an automaton's shortest text
MAX_WALK_TOKENS = 400  # of an example that is found by walking
MAX_CANDIDATES = 24  # next tokens that a walk tries
MAX_NODES = 2_000  # prefixes that are looked at to count the texts of a grammar without an automaton
MAX_TOKENS_SHOWN = 12
_CLOSING = b'"}]),;.\n'

Size = Literal["finite", "infinite", "unknown"]


@dataclass(frozen=True, slots=True)
class Language:
    """How many texts there are. ``count`` is exact where it is given, and given below ``MAX_COUNTED`` only."""

    size: Size
    count: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stops being legal. ``byte`` and ``char`` are offsets of the first byte, or character, that no text
    of the language has there; at the end of the text they say that it is cut short."""

    byte: int
    char: int
    complete: bool  # the whole text is in the language
    cut_short: bool  # the whole text is a prefix of a text of the language, but not one itself
    allowed: bytes  # bytes that may stand there, ascending
    tokens: tuple[bytes, ...]  # some of the legal tokens, in the order of their ids
    may_stop: bool  # the text may end there


def describe(grammar: Grammar, vocabulary: Vocabulary) -> Language:
    """Exact for token automata. The texts of another grammar are counted if they have few prefixes, else unknown."""
    if isinstance(grammar, DfaGrammar):
        return count_texts(grammar.automaton)
    count = count_prefixes(grammar.matcher(), vocabulary)
    return Language("unknown", None) if count is None else Language("finite", count)


def count_prefixes(matcher: Matcher, vocabulary: Vocabulary) -> int | None:
    """The number of texts, by a walk over all prefixes, byte by byte; None beyond ``MAX_NODES`` of them."""
    by_byte = single_byte_tokens(vocabulary)
    singles = np.array(list(by_byte.values()), np.int64)
    others = np.array([i for i, t in enumerate(vocabulary.tokens) if t and t[0] not in by_byte], np.int64)
    legal = np.zeros(vocabulary.size, np.bool_)
    count = nodes = 0
    todo: list[tuple[int, int | None]] = [(matcher.mark(), None)]  # (mark before, token)
    while todo:
        mark, token = todo.pop()
        nodes += 1
        if nodes > MAX_NODES:
            return None
        matcher.rollback(mark)
        if token is not None and not matcher.advance(token):
            return None  # a byte that only longer tokens spell here: the walk does not see every text
        count += matcher.is_complete
        legal[:] = False
        legal[_legal(matcher, vocabulary)] = True
        if legal[others].any():
            return None
        todo += [(matcher.mark(), token) for token in singles[legal[singles]].tolist()]
    return count


def count_texts(automaton: ByteAutomaton) -> Language:
    """Every state of a byte automaton reaches acceptance, so its language is infinite exactly if it has a cycle."""
    edges = _edges(automaton)
    order = _topological(edges, automaton.initial)
    if order is None:
        return Language("infinite", None)
    counts: dict[int, int] = {}
    for state in reversed(order):
        total = int(automaton.accepting[state]) + sum(counts[target] for target in edges.get(state, ()))
        counts[state] = min(total, MAX_COUNTED)  # sums of capped terms stay capped
    count = counts[automaton.initial]
    return Language("finite", count if count < MAX_COUNTED else None)


def shortest_text(automaton: ByteAutomaton, alphabet: frozenset[int]) -> bytes | None:
    """A shortest text over the bytes ``alphabet``, of printable characters where that is free.

    None if there is none of at most ``MAX_EXAMPLE_BYTES``.
    """
    usable = alphabet & automaton.alphabet()
    distance = _distances(automaton, usable)
    readable = sorted(usable, key=lambda byte: (not 0x20 <= byte < 0x7F, byte))
    state, out = automaton.initial, bytearray()
    if not 0 <= distance[state] <= MAX_EXAMPLE_BYTES:
        return None
    while distance[state]:
        for byte in readable:
            end = automaton.step(state, byte)
            if end != DEAD and distance[end] == distance[state] - 1:
                out.append(byte)
                state = end
                break
        else:
            raise AssertionError("a state at a distance has an edge that shortens it")
    return bytes(out)


def example(grammar: Grammar, vocabulary: Vocabulary, index: TokenIndex) -> bytes | None:
    """A text of the language: for an automaton a shortest one that single-byte tokens spell, if there is one; else what
    a bounded walk finds, or None."""
    if isinstance(grammar, DfaGrammar):
        found = shortest_text(grammar.automaton, index.single_bytes)
        if found is not None:
            return found
    return walk(grammar.matcher(), vocabulary)


def walk(matcher: Matcher, vocabulary: Vocabulary) -> bytes | None:
    """A greedy walk to an end: forced text first, then what closes. It prefers short tokens that end strings and
    brackets, and stops at the first complete place."""
    preferred = np.array(sorted((i for i, t in enumerate(vocabulary.tokens) if t), key=lambda i: _rank(vocabulary, i)))
    out = bytearray()
    start = matcher.mark()
    try:
        for _ in range(MAX_WALK_TOKENS):
            if matcher.is_complete:
                return bytes(out)
            token = _closest(matcher, preferred, vocabulary)
            if token is None:
                return None
            taken = matcher.advance(token)
            assert taken, "a token of the mask is taken"
            out += vocabulary.tokens[token] or b""
        return None
    finally:
        matcher.rollback(start)


def locate(grammar: Grammar, text: str, vocabulary: Vocabulary) -> Place:
    """Where ``text`` leaves the language. The text is read byte by byte where the vocabulary has all its bytes, so the
    place does not depend on a tokenisation."""
    data = text.encode()
    by_byte = single_byte_tokens(vocabulary)
    matcher = grammar.matcher()
    at = 0
    for token, length in _spelling(data, by_byte, vocabulary):
        if not matcher.advance(token):
            break
        at += length
    complete = at == len(data) and matcher.is_complete
    return Place(
        byte=at,
        char=len(data[:at].decode(errors="ignore")),
        complete=complete,
        cut_short=at == len(data) and not complete,
        allowed=allowed_bytes(matcher, vocabulary),
        tokens=tuple(vocabulary.tokens[i] or b"" for i in _legal(matcher, vocabulary)[:MAX_TOKENS_SHOWN].tolist()),
        may_stop=matcher.is_complete,
    )


def allowed_bytes(matcher: Matcher, vocabulary: Vocabulary) -> bytes:
    """First bytes of the legal tokens, ascending and distinct."""
    tokens = vocabulary.tokens
    return bytes(sorted({piece[0] for i in _legal(matcher, vocabulary).tolist() if (piece := tokens[i])}))


def _legal(matcher: Matcher, vocabulary: Vocabulary) -> Ints:
    """Ids of the legal tokens, EOS left out."""
    row = np.empty(vocabulary.mask_words, np.int32)
    matcher.mask_into(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    bits[list(vocabulary.eos_ids)] = 0
    return np.flatnonzero(bits)


def single_byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """The token of every byte that has one."""
    eos = set(vocabulary.eos_ids)
    return {t[0]: i for i, t in reversed(list(enumerate(vocabulary.tokens))) if t and len(t) == 1 and i not in eos}


def _spelling(data: bytes, by_byte: dict[int, int], vocabulary: Vocabulary) -> Iterator[tuple[int, int]]:
    """(token, bytes it stands for): single bytes where all of them are tokens, else the tokeniser's own spelling."""
    if all(byte in by_byte for byte in set(data)):
        for byte in data:
            yield by_byte[byte], 1
        return
    at = 0
    for token in vocabulary.encode(data.decode()):
        piece = vocabulary.tokens[token]
        if not piece or not data.startswith(piece, at):
            return
        yield token, len(piece)
        at += len(piece)


def _rank(vocabulary: Vocabulary, token: int) -> tuple[int, bytes]:
    """What closes comes first, then the shortest."""
    piece = vocabulary.tokens[token] or b""
    closing = _CLOSING.find(piece) if len(piece) == 1 else -1
    return (closing if closing >= 0 else len(_CLOSING) + len(piece), piece)


def _closest(matcher: Matcher, preferred: Ints, vocabulary: Vocabulary) -> int | None:
    """The next token of a walk: the tokeniser's own for forced text, else a preferred one after which the text may
    stop, else the most preferred."""
    legal = np.zeros(vocabulary.size, np.bool_)
    legal[_legal(matcher, vocabulary)] = True
    forced = matcher.forced_tokens()
    if forced and legal[forced[0]]:
        return forced[0]
    candidates = preferred[legal[preferred]][:MAX_CANDIDATES].tolist()
    for token in candidates:
        mark = matcher.mark()
        matcher.advance(token)
        ends = matcher.is_complete
        matcher.rollback(mark)
        if ends:
            return int(token)
    return int(candidates[0]) if candidates else None


def _edges(automaton: ByteAutomaton) -> dict[int, list[int]]:
    """Targets of every state's bytes, one entry a byte."""
    out: dict[int, list[int]] = {}
    for byte in sorted(automaton.alphabet()):
        sources = np.arange(automaton.size, dtype=np.int64)
        ends = automaton.step_many(sources, np.full(automaton.size, byte, np.uint8))
        live = ends != DEAD
        for source, target in zip(sources[live].tolist(), ends[live].tolist(), strict=True):
            out.setdefault(source, []).append(target)
    return out


def _topological(edges: dict[int, list[int]], initial: int) -> list[int] | None:
    """States that ``initial`` reaches, each before its targets; None if there is a cycle."""
    order: list[int] = []
    open_states: set[int] = {initial}
    done: set[int] = set()
    stack: list[tuple[int, Iterator[int]]] = [(initial, iter(set(edges.get(initial, ()))))]
    while stack:
        state, targets = stack[-1]
        target = next(targets, None)
        if target is None:
            stack.pop()
            open_states.discard(state)
            done.add(state)
            order.append(state)
        elif target in open_states:
            return None
        elif target not in done:
            open_states.add(target)
            stack.append((target, iter(set(edges.get(target, ())))))
    return order[::-1]


def _distances(automaton: ByteAutomaton, alphabet: frozenset[int]) -> list[int]:
    """Bytes of ``alphabet`` from every state to the nearest accepting one, [size]; -1 where they lead to none."""
    sources, targets = automaton.edges(alphabet)
    order = np.argsort(targets, kind="stable")
    sources, starts = sources[order], np.searchsorted(targets[order], np.arange(automaton.size + 1)).astype(np.int64)
    distance = np.where(automaton.accepting, 0, -1)
    new = np.flatnonzero(automaton.accepting)
    steps = 0
    while len(new):
        steps += 1
        found = np.unique(sources[expand(starts, new)[0]])
        new = found[distance[found] < 0]
        distance[new] = steps
    return list(map(int, distance))
