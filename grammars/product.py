"""Several grammars side by side: a token is legal where all of them allow it.

What all allow next need not lead to a text that all accept: such a walk ends with an empty mask that is not complete,
and the pipeline raises ``DeadEndError``. Compiling searches for one text (bounded) and proves emptiness where it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from constrained_spec.errors import UnsatisfiableError
from constrained_spec.grammars.base import Grammar, MaskRow, Matcher
from constrained_spec.grammars.completion import Completion, find_completion
from constrained_spec.grammars.tokens import TokenIndex
from constrained_spec.grammars.tracking import TrackingMatcher

MAX_SEARCH_STEPS = 500
MAX_SEARCH_TOKENS = 400


class ProductGrammar(Grammar):
    """The texts of all of ``grammars`` (over ``index``'s vocabulary, ``nbytes`` in all), described as ``what``.

    Raises ``UnsatisfiableError`` if a search of every walk finds no text. A search that reaches its limits first
    decides nothing: ``witness`` is then None.
    """

    def __init__(self, grammars: Sequence[Grammar], index: TokenIndex, key: str, what: str, nbytes: int) -> None:
        self.index = index
        self.nbytes = nbytes
        self.parts = tuple(grammars)
        self._key = key
        found = find_completion(self.matcher(), index, MAX_SEARCH_TOKENS, MAX_SEARCH_STEPS)
        if found is Completion.NONE:
            raise UnsatisfiableError(f"no text satisfies all of {what}", param="combination")
        self.witness: tuple[int, ...] | None = found if isinstance(found, tuple) else None

    @property
    def key(self) -> str:
        return self._key

    def matcher(self) -> ProductMatcher:
        return ProductMatcher(self.index, [g.matcher() for g in self.parts])


class ProductMatcher(TrackingMatcher):
    """Matchers that have all consumed the same tokens."""

    def __init__(
        self, index: TokenIndex, parts: Sequence[Matcher], ids: Sequence[int] = (), ended: bool = False
    ) -> None:
        super().__init__(index, ids, ended)
        self._parts = list(parts)
        self._joint = np.empty(index.vocabulary.mask_words, np.int32)
        self._other = np.empty_like(self._joint)

    def fork(self) -> ProductMatcher:
        return ProductMatcher(self._index, [p.fork() for p in self._parts], self._ids, self._ended)

    def _text_row(self) -> MaskRow:
        self._parts[0].mask_into(self._joint)
        for part in self._parts[1:]:
            part.mask_into(self._other)
            self._joint &= self._other
        self._joint &= ~self._index.eos_row
        return self._joint

    def _consume(self, token: int) -> bool:
        for i, part in enumerate(self._parts):
            mark = part.mark()
            if not part.advance(token):
                for before in self._parts[:i]:
                    before.rollback(mark)  # all have consumed equally many
                return False
        return True

    def _retract(self, count: int) -> None:
        for part in self._parts:
            part.rollback(part.mark() - count)

    def _accepts(self) -> bool:
        return all(p.is_complete for p in self._parts)

    def _exhausted(self) -> bool:
        return not self._text_row().any()

    def _forced(self) -> bytes:
        # What one part forces, every text of all parts continues with; parts that disagree have no text at all.
        parts = [p.forced() for p in self._parts]
        longest = max(parts, key=len)
        agreed = len(longest)
        while not all(p.startswith(longest[: min(agreed, len(p))]) for p in parts):
            agreed -= 1
        return longest[:agreed]
