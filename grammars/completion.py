"""A bounded search for some way to end a text. It moves a fork, so the matcher itself stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from constrained_spec.grammars.base import MaskRow, Matcher
from constrained_spec.grammars.tokens import TokenIndex
from constrained_spec.grammars.tries import Ints

MAX_BRANCHES = 12  # tokens tried at one place before a search gives up proving anything
MAX_ALIKE = 2  # of them, how many may begin with the same byte
MAX_RANKED = 200
MAX_DEEPENING = 4


class Completion(Enum):
    """What a search that found no text has shown."""

    NONE = "there is no completion"
    TOO_LONG = "there is none of so few tokens"
    UNKNOWN = "the limits were reached first"


Found = tuple[int, ...] | Completion


@dataclass(slots=True)
class Meter:
    """Masks computed."""

    steps: int = 0


def find_completion(
    matcher: Matcher, index: TokenIndex, max_tokens: int, max_steps: int, meter: Meter | None = None
) -> Found:
    """Tokens (EOS not among them, at most ``max_tokens``) after which ``matcher`` is complete.

    Depth first with the closing tokens ahead, then with them last, then all ways of few tokens; ``max_steps`` masks
    each, counted in ``meter``. If a search finds a way, then after the first token of that way a search for one token
    less finds one too: each of its stages then looks at a part of what it looked at before.
    """
    stages = [(max_tokens, False), (max_tokens, True), *((n, False) for n in range(1, MAX_DEEPENING + 1))]
    for limit, backwards in stages:
        if limit > max_tokens:
            break
        found = _search(matcher.fork(), index, limit, max_steps, backwards, meter or Meter())
        if isinstance(found, tuple):
            return found
        if limit == max_tokens and found is not Completion.UNKNOWN:
            return found
    return Completion.UNKNOWN


def _search(
    walker: Matcher, index: TokenIndex, max_tokens: int, max_steps: int, backwards: bool, meter: Meter
) -> Found:
    if walker.is_complete:
        return ()
    row = np.empty(index.vocabulary.mask_words, np.int32)
    path: list[int] = []
    cut = too_long = False

    def branches() -> Iterator[int]:
        nonlocal cut, too_long
        if len(path) >= max_tokens:
            too_long = True
            return iter(())
        walker.mask_into(row)
        found, rest = _ranked(row, walker, index, backwards)
        cut |= rest
        return iter(found)

    stack = [branches()]
    steps = 1
    while stack:
        token = next(stack[-1], None)
        if token is None:
            stack.pop()
            if path:
                path.pop()
                walker.rollback(walker.mark() - 1)
            continue
        if steps >= max_steps:
            return Completion.UNKNOWN
        taken = walker.advance(token)
        assert taken, "a token of the mask is legal"
        path.append(token)
        if walker.is_complete:
            return tuple(path)
        steps += 1
        meter.steps += 1
        stack.append(branches())
    if cut:
        return Completion.UNKNOWN
    return Completion.TOO_LONG if too_long else Completion.NONE


def _ranked(row: MaskRow, matcher: Matcher, index: TokenIndex, backwards: bool) -> tuple[list[int], bool]:
    """(the first legal tokens of ``row``, those that are likely to end the text soon ahead; whether there are more)."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    # Where very many tokens are legal we are inside a quoted text, and only its quote ends it; brackets are text there.
    order = order_of(index, 4 * int(np.count_nonzero(bits)) > index.vocabulary.size)
    legal = order[bits[order] != 0]
    if backwards:
        legal = legal[::-1]
    head: list[int] = []
    if len(legal) > 1:
        head = [t for t in matcher.forced_tokens()[:1] if bits[t]]
    tokens = head + [t for t in legal[:MAX_RANKED].tolist() if t not in head]
    if len(tokens) > MAX_BRANCHES:  # of many, those that begin differently
        begins: dict[bytes, int] = {}
        for token in tokens:
            first = (index.vocabulary.tokens[token] or b"")[:1]
            begins[first] = begins.get(first, 0) + 1
            if begins[first] <= MAX_ALIKE:
                head += [] if token in head else [token]
            if len(head) == MAX_BRANCHES:
                break
        tokens = head
    return tokens, len(legal) > len(tokens)


@lru_cache(maxsize=16)
def order_of(index: TokenIndex, quoted: bool = False) -> Ints:
    """Text and special tokens by how well they close things: closing marks, separators, digits, letters, openings.
    ``quoted``: those first that begin with a quote and close more."""
    vocabulary = index.vocabulary
    eos = set(vocabulary.eos_ids)

    def rank(token: int) -> tuple[bool, int, int, int]:
        text = vocabulary.tokens[token] or b""
        worst = max((_KIND.get(b, 3 if b < 128 else 6) for b in text), default=7)
        late = quoted and (text[:1] != b'"' or worst > 1)
        return late, worst, len(text) if worst > 1 else -len(text), token

    # Special tokens come last: they are legal only where a grammar names them.
    ids = [i for i in range(vocabulary.size) if i not in eos and vocabulary.tokens[i] != b""]
    return np.array(sorted(ids, key=rank), np.int64)


@lru_cache(maxsize=8)
def is_wordlike(index: TokenIndex) -> NDArray[np.bool_]:
    """[V] tokens of letters, digits and spaces alone."""
    tokens = index.vocabulary.tokens
    return np.array([t is not None and t != b"" and not any(map(_marks, t)) for t in tokens], np.bool_)


def _marks(byte: int) -> bool:
    return byte < 128 and byte != 32 and not chr(byte).isalnum()


_KIND = {
    **dict.fromkeys(b"})]>", 0),
    **dict.fromkeys(b"\"'\n;/<", 1),
    **dict.fromkeys(b"0123456789", 2),
    **dict.fromkeys(b":, ", 4),
    **dict.fromkeys(b"\\{[(.+-", 5),
}
