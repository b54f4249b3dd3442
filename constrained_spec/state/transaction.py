"""One round's changes to one sequence: open, extend with drafts, then commit a verdict or leave no trace."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constrained_spec.errors import TransactionError
from constrained_spec.processors.base import Position
from constrained_spec.state.sequence import Sequence, TokenLogprob
from constrained_spec.types import FinishReason


@dataclass(frozen=True, slots=True)
class Commit:
    """What one round made authoritative. ``origins[i]`` is the source of a kept draft, or recovered / bonus."""

    tokens: tuple[int, ...]
    origins: tuple[str, ...]
    finish_reason: FinishReason | None


class Transaction:
    """The only code that calls the participants of a sequence.

        with Transaction(sequence) as tx:
            tx.extend(token, "ngram")           # any number of drafts, each legal at its position
            ...
            tx.commit(accepted, token, rejected) # trim -> roll back the rest -> advance -> account

    Leaving the block without ``commit`` restores the state of entry, whatever the reason.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.drafts: list[int] = []
        self.sources: list[str] = []
        self.positions: list[Position] = []
        self._open = False
        self._committed = False
        self.closed = False  # a draft ended the request: nothing may be drafted after it
        self._base = 0
        self._matcher_marks: list[int] = []
        self._ends: list[bool] = []  # does the grammar end after draft i?
        self._leading_marks: list[Any] = []
        self._lagging_marks: list[Any] = []
        self._cache_marks: list[int] = []

    def __enter__(self) -> Transaction:
        if self._open:
            raise TransactionError("a transaction is entered once")
        s = self.sequence
        if s.finished:
            raise TransactionError("the sequence has finished")
        self._open = True
        self._base = len(s.history)
        self._leading_marks = [p.mark() for p in s.leading]
        self._lagging_marks = [p.mark() for p in s.lagging]
        self._cache_marks = [c.mark() for c in s.caches]
        if s.matcher is not None:
            self._matcher_marks.append(s.matcher.mark())
        try:
            self.positions.append(self._position())
        except BaseException:
            # A failing mask must leave the block as cleanly as a failure inside it: __exit__ is not called for us.
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._committed:
            self._restore()
        self._open = False

    # ---- drafting -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The place where the next draft would stand."""
        return self.positions[-1]

    @property
    def draft_room(self) -> int:
        """How many more drafts make sense: each round also commits one token of the target's own."""
        return 0 if self.closed else max(0, self.sequence.room - 1 - len(self.drafts))

    def is_legal(self, token: int) -> bool:
        """May ``token`` stand at the current place? Reads the mask; O(1)."""
        mask = self.position.mask
        return mask is None or bool((int(mask[token >> 5]) >> (token & 31)) & 1)

    def extend(self, token: int, source: str) -> bool:
        """Append a draft. False: it is illegal here, and nothing has changed."""
        if not self._open or self._committed or self.closed:
            raise TransactionError("extend outside an open transaction, or after a draft that ends the request")
        s = self.sequence
        if not 0 <= token < s.vocabulary.size:
            raise TransactionError(f"draft id {token} lies outside the vocabulary")
        if not self.is_legal(token):
            return False
        if s.matcher is not None:
            if not s.matcher.advance(token):
                raise TransactionError(f"the mask allows id {token}, the matcher refuses it")
            self._matcher_marks.append(s.matcher.mark())
        for p in s.leading:
            p.advance(token)
        self.drafts.append(token)
        self.sources.append(source)
        eos = token in s.eos_ids
        # A grammar's end finishes the request once min_tokens is met or not: the grammar wins over min_tokens.
        self._ends.append(s.matcher is not None and s.matcher.is_finished)
        self.closed = eos or self._ends[-1]
        self.positions.append(self._position(after_end=self.closed))
        return True

    # ---- committing -----------------------------------------------------------------------------------------------

    def commit(self, accepted: int, token: int, logprobs: Seq[TokenLogprob] = ()) -> Commit:
        """Make ``drafts[:accepted] + [token]`` authoritative, trimmed at the first end of the request.

        ``token`` is the recovered token, or the bonus token when every draft was accepted. ``logprobs`` holds one
        entry per token of the untrimmed run, or nothing.
        """
        if not self._open or self._committed:
            raise TransactionError("commit outside an open transaction")
        if not 0 <= accepted <= len(self.drafts):
            raise TransactionError(f"{accepted} accepted of {len(self.drafts)} drafts")
        s = self.sequence
        bonus = accepted == len(self.drafts)
        run = [*self.drafts[:accepted], token]
        cut, reason = self._trim(run, accepted)
        kept = min(cut, accepted)

        # Everything past the kept drafts goes first, then what is new comes in: no participant ever sees both.
        for p, mark in zip(s.leading, self._leading_marks, strict=True):
            p.rollback(mark)
        for t in run[:cut]:
            for p in s.leading:
                p.advance(t)
        self._settle_matcher(kept, run[cut - 1] if cut > accepted else None)
        for c in s.caches:
            # The last committed token is fed by the next round: a slot never holds it, whatever ended the block.
            c.rollback(self._base + cut - 1)
        reason = reason or self._grammar_end(cut > accepted)
        if reason is None and s.room == 0:
            reason = "length"

        last = ("bonus" if bonus else "recovered",) if cut > accepted else ()
        origins = (*self.sources[:kept], *last)
        self._account(kept, origins)
        s.logprobs.extend(logprobs[:cut])
        s.finish_reason = reason
        self._committed = True
        return Commit(tuple(run[:cut]), origins, reason)

    def _trim(self, run: list[int], accepted: int) -> tuple[int, FinishReason | None]:
        """Advance the lagging participants token by token up to the first end. Returns (kept tokens, reason).

        Which of several ends at one token is named does not matter to the state; a stop is reported before the limit.
        """
        s = self.sequence
        for i, token in enumerate(run):
            for p in s.lagging:
                p.advance(token)
            output = self._base + i + 1 - s.history.prompt_length
            if token in s.eos_ids:
                return i + 1, "stop"
            if s.stop_hit:
                return i + 1, "stop"
            if i < accepted and self._ends[i]:
                return i + 1, "stop"
            if output == s.sampling.max_tokens:
                # The last token may also complete the grammar; then it is a stop. Known for drafts, else asked below.
                return i + 1, None if i == accepted else "length"
        return len(run), None

    def _settle_matcher(self, kept: int, token: int | None) -> None:
        matcher = self.sequence.matcher
        if matcher is None:
            return
        matcher.rollback(self._matcher_marks[kept])
        if token is not None and not matcher.advance(token):
            raise TransactionError(f"the matcher refuses the committed id {token}")

    def _grammar_end(self, own_token: bool) -> FinishReason | None:
        matcher = self.sequence.matcher
        return "stop" if own_token and matcher is not None and matcher.is_finished else None

    def _account(self, kept: int, origins: tuple[str, ...]) -> None:
        counts = self.sequence.counts
        counts.rounds += 1
        counts.proposed += len(self.drafts)
        counts.accepted += kept
        counts.forced += self.sources[:kept].count("forced")
        counts.recovered += origins[-1] == "recovered"
        counts.bonus += origins[-1] == "bonus"
        for i, source in enumerate(self.sources):
            row = counts.by_source.setdefault(source, [0, 0])
            row[0] += 1
            row[1] += i < kept

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _position(self, *, after_end: bool = False) -> Position:
        s = self.sequence
        return Position(s.history, len(s.history), s.sampling, None if after_end else self._mask())

    def _mask(self) -> NDArray[np.int32] | None:
        s = self.sequence
        if s.matcher is None:
            return None
        row = np.empty(s.vocabulary.mask_words, dtype=np.int32)
        start = time.perf_counter()
        s.matcher.mask_into(row)
        s.mask_seconds += time.perf_counter() - start
        if s.sampling.ignore_eos:
            for eos in s.vocabulary.eos_ids:
                row[eos >> 5] &= ~np.int32(np.uint32(1 << (eos & 31)).view(np.int32))
        return row

    def _restore(self) -> None:
        s = self.sequence
        for p, mark in zip(s.leading, self._leading_marks, strict=True):
            p.rollback(mark)
        for p, mark in zip(s.lagging, self._lagging_marks, strict=True):
            p.rollback(mark)
        for c, length in zip(s.caches, self._cache_marks, strict=True):
            c.rollback(length)
        if s.matcher is not None and self._matcher_marks:
            s.matcher.rollback(self._matcher_marks[0])
