"""Ends every text within a number of tokens: near the end only what can still be finished is legal.

This changes what the model would draw, so it is asked for by name (``close_on_length``).
"""

from __future__ import annotations

import numpy as np

from constrained_spec.errors import GrammarBudgetError, UnsatisfiableError
from constrained_spec.grammars.base import MaskRow, Matcher
from constrained_spec.grammars.completion import Completion, Meter, find_completion, is_wordlike, order_of
from constrained_spec.grammars.dfa import DfaMatcher
from constrained_spec.grammars.distances import FAR
from constrained_spec.grammars.tokens import is_set, pack
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.grammars.tries import Ints

ZONE = 128  # slack in tokens from which on a searched grammar's mask is narrowed
NEAR = 16  # slack from which on nothing is legal that was not searched
MAX_STEPS = 100  # masks of one search
MAX_FEW = 64  # legal tokens up to which each is searched
MAX_ROW_STEPS = 1_000  # masks of all searches at one place, about
MAX_CHECKED = 24  # of more legal tokens, so many are searched: those first that end things


class CloseOnLength(TrackingMatcher):
    """``inner`` with at most ``budget_tokens`` consumed tokens, EOS included.

    Over a token automaton a token is legal exactly if a completion and EOS still fit behind it. Over llguidance, and
    where grammars run side by side, completions are found by a bounded search. While the found one leaves ``ZONE``
    tokens or more to spare, the mask is ``inner``'s. From there on a token is legal if a search after it finds a
    completion that fits; of more than ``MAX_FEW`` legal tokens only ``MAX_CHECKED`` are searched, and while ``NEAR``
    tokens are to spare letters and digits are legal unsearched: within a string they leave its completion as it is.
    Where no completion is found, which takes a single token that lengthens the text by more than was to spare, the mask
    is ``inner``'s again, and the text may end unfinished.

    The mask is a function of the consumed tokens. Raises ``UnsatisfiableError`` if the shortest text does not fit at
    the start, ``GrammarBudgetError`` if the search finds none that does.
    """

    def __init__(self, inner: TrackingMatcher, budget_tokens: int) -> None:
        assert not inner._ended, "a text that has ended needs no closing"
        self._setup(inner, budget_tokens)
        left = self._left
        if isinstance(inner, DfaMatcher):
            need = inner.grammar.shortest(inner.state) + 1
            if FAR > need > left:
                raise UnsatisfiableError(
                    f"the shortest text takes {need} tokens with its end, {left} are allowed",
                    param="max_tokens",
                    hint="allow more tokens",
                )
            found = need <= left
        else:
            plan = self._plan(inner, left - 1)
            if plan in (Completion.NONE, Completion.TOO_LONG):
                raise UnsatisfiableError(
                    f"no text ends within {left} tokens", param="max_tokens", hint="allow more tokens"
                )
            found = isinstance(plan, tuple)
        if not found:
            raise GrammarBudgetError(
                f"no text that ends within {left} tokens was found",
                limit="max_completion_steps",
                param="max_tokens",
                hint="allow more tokens, or leave out close_on_length",
            )

    def _setup(self, inner: TrackingMatcher, budget: int) -> None:
        super().__init__(inner._index, inner._ids)
        self._inner = inner
        self._budget = budget
        self._rows: dict[int, MaskRow | None] = {}  # by mark: legal text tokens, None for all of inner's

    def fork(self) -> CloseOnLength:
        twin = CloseOnLength.__new__(CloseOnLength)
        inner = self._inner.fork()
        assert isinstance(inner, TrackingMatcher)
        twin._setup(inner, self._budget)
        twin._ids, twin._ended = list(self._ids), self._ended  # ``inner`` never sees EOS
        twin._rows = dict(self._rows)
        return twin

    @property
    def _left(self) -> int:
        return self._budget - len(self._ids)

    def _plan(self, walker: Matcher, tokens: int, meter: Meter | None = None) -> tuple[int, ...] | Completion:
        return find_completion(walker, self._index, tokens, MAX_STEPS, meter) if tokens >= 0 else Completion.NONE

    def _narrowed(self) -> MaskRow | None:
        """Legal text tokens, or None for all of ``inner``'s."""
        mark = len(self._ids)
        if mark not in self._rows:
            self._rows[mark] = self._closing_row()
        return self._rows[mark]

    def _closing_row(self) -> MaskRow | None:
        left, inner = max(self._left, 0), self._inner
        if isinstance(inner, DfaMatcher):
            return inner.grammar.closing_row(inner.state, left)
        plan = self._plan(inner, left - 1)
        spare = left - 1 - len(plan) if isinstance(plan, tuple) else -1
        if spare >= ZONE:
            return None
        row = np.empty(self._index.vocabulary.mask_words, np.int32)
        inner.mask_into(row)
        order = order_of(self._index)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        legal: Ints = order[bits[order] != 0]
        kept: list[int] = []
        if len(legal) <= MAX_FEW:
            checked = legal.tolist()
        else:
            words = is_wordlike(self._index)[legal]
            if spare >= NEAR:
                kept = legal[words].tolist()
            others = legal[~words].tolist()[:MAX_CHECKED]
            checked = others + (legal[words].tolist()[:MAX_CHECKED] if spare < NEAR else [])
        if isinstance(plan, tuple) and plan:
            # The rest of the plan is a completion behind its first token, so that one needs no search.
            kept, checked = [plan[0], *kept], [t for t in checked if t != plan[0]]
        walker, meter = inner.fork(), Meter()
        for token in checked:
            if meter.steps > MAX_ROW_STEPS or not walker.advance(token):
                continue
            if isinstance(self._plan(walker, left - 2, meter), tuple):
                kept.append(token)
            walker.rollback(walker.mark() - 1)
        if not kept and left and not inner.is_complete:
            return None
        return pack(np.array(kept, np.int64), self._index.vocabulary.size)

    def _text_row(self) -> MaskRow:
        row = self._narrowed()
        return self._inner._text_row() if row is None else row

    def _consume(self, token: int) -> bool:
        row = self._narrowed()
        if row is not None and not is_set(row, token):
            return False
        return self._inner.advance(token)

    def _retract(self, count: int) -> None:
        self._inner.rollback(self._inner.mark() - count)
        # What was said of longer texts is of other texts now.
        self._rows = {mark: row for mark, row in self._rows.items() if mark <= len(self._ids)}

    def _accepts(self) -> bool:
        return self._left > 0 and self._inner.is_complete

    def _exhausted(self) -> bool:
        row = self._narrowed()
        return self._inner._exhausted() if row is None else not row.any()

    def _forced(self) -> bytes:
        return self._inner.forced()

    def forced_tokens(self) -> list[int]:
        """As many of ``inner``'s as are legal here: its spelling need not be the shortest."""
        start, spelled = self.mark(), super().forced_tokens()
        taken = 0
        while taken < len(spelled) and self.advance(spelled[taken]):
            taken += 1
        self.rollback(start)
        return spelled[:taken]
