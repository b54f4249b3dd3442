"""One round's changes to one sequence: open, extend with drafts, then commit a verdict or leave no trace."""

from __future__ import annotations

import itertools
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
from constrained_spec.state.tree import TreeKv, branch, child_history, require_path
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

    Drafts are nodes, numbered as they come. Each ``extend`` adds a child of the node ``at`` and moves there, so that
    they form a chain, unless ``move`` goes back to an earlier node: then they form a tree, and ``commit_path`` takes
    the path that stands. Matcher and history of the sequence always stand at ``at``, so that masks and counts of a node
    know nothing of its siblings; what a processor reads later is a branch of its own.

    Leaving the block without ``commit`` restores the state of entry, whatever the reason.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.drafts: list[int] = []
        self.sources: list[str] = []
        self.parents: list[int] = []  # of each draft, -1 for the root
        self.positions: list[Position] = []  # of the root, then of the place after each draft
        self.is_tree = False  # two drafts have one parent
        self.at = -1  # the draft after which the next one would stand, -1 at the root
        self._open = False
        self._committed = False
        self.closed = False  # the draft ``at`` ended the request: nothing may be drafted after it
        self._base = 0
        self._branched = False  # positions own their histories
        self._matcher_marks: list[int] = []  # at the root and after each draft from there to ``at``
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
            self.positions.append(Position(s.history, self._base, s.sampling, self._mask()))
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
    def base(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._base

    @property
    def position(self) -> Position:
        """The place where the next draft would stand."""
        return self.positions[self.at + 1]

    @property
    def draft_room(self) -> int:
        """How many more drafts make sense here: each round also commits one token of the target's own."""
        if self.closed:
            return 0
        room = self.sequence.room - 1  # the history, and so the room, counts the drafts before this place
        if self._branched:
            room = min(room, self.sequence.capacity - self._base - len(self.drafts))  # in a slot every draft counts
        return max(0, room)

    def is_legal(self, token: int) -> bool:
        """May ``token`` stand at the current place? Reads the mask; O(1)."""
        mask = self.position.mask
        return mask is None or bool((int(mask[token >> 5]) >> (token & 31)) & 1)

    def extend(self, token: int, source: str) -> bool:
        """Append a draft after ``at`` and move there. False: it is illegal here, and nothing has changed."""
        if not self._open or self._committed or self.closed:
            raise TransactionError("extend outside an open transaction, or after a draft that ends the request")
        s = self.sequence
        if not 0 <= token < s.vocabulary.size:
            raise TransactionError(f"draft id {token} lies outside the vocabulary")
        if not self.is_legal(token):
            return False
        eos = token in s.eos_ids
        ended, mask = False, None
        if s.matcher is not None:
            if not s.matcher.advance(token):
                raise TransactionError(f"the mask allows id {token}, the matcher refuses it")
            try:
                # A grammar's end finishes the request once min_tokens is met or not: the grammar wins over min_tokens.
                ended = s.matcher.is_finished
                mask = None if eos or ended else self._mask()
            except BaseException:
                s.matcher.rollback(self._matcher_marks[-1])
                raise
            self._matcher_marks.append(s.matcher.mark())
        for p in s.leading:
            p.advance(token)
        parent, self.at = self.at, len(self.drafts)
        if parent != self.at - 1:
            self.is_tree = True
        self.drafts.append(token)
        self.sources.append(source)
        self.parents.append(parent)
        self._ends.append(ended)
        self.closed = eos or ended
        history = child_history(self.positions[parent + 1], token) if self._branched else s.history
        self.positions.append(Position(history, len(s.history), s.sampling, mask))
        return True

    def move(self, node: int) -> None:
        """Stand after draft ``node`` (-1: at the root): what is drafted next is its child."""
        if not self._open or self._committed or not -1 <= node < len(self.drafts):
            raise TransactionError(f"no move to draft {node} of {len(self.drafts)} here")
        if node == self.at:
            return
        s = self.sequence
        if not self._branched:
            # Until now the drafts are a chain, and the sequence's history is the one branch there is.
            own = branch(s.history, len(s.history))
            self.positions = [Position(own, p.index, p.sampling, p.mask) for p in self.positions]
            self._branched = True
        path = self._path_to(node)
        shared = self._shared(path)
        try:
            self._lead(path, shared)
        except BaseException:
            # Whoever drafts on after a failure finds everything at the root.
            self.at, self.closed = -1, False
            self._lead([], 0)
            raise
        for c in s.caches:
            if not isinstance(c, TreeKv):
                c.rollback(self._base + shared)  # it holds the path, and the rest of it is another one now
        self.at = node
        self.closed = node >= 0 and (self.drafts[node] in s.eos_ids or self._ends[node])

    def _lead(self, path: Seq[int], shared: int) -> None:
        """Bring matcher and leading participants to the end of ``path``, whose first ``shared`` drafts they follow."""
        s = self.sequence
        if s.matcher is not None:
            s.matcher.rollback(self._matcher_marks[shared])
            del self._matcher_marks[shared + 1 :]
            for i in path[shared:]:
                if not s.matcher.advance(self.drafts[i]):
                    raise TransactionError(f"the matcher refuses id {self.drafts[i]}, which it took before")
                self._matcher_marks.append(s.matcher.mark())
        for p, mark in zip(s.leading, self._leading_marks, strict=True):
            p.rollback(mark)
            for i in path:
                p.advance(self.drafts[i])

    def _path_to(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def _shared(self, path: Seq[int]) -> int:
        """Length of the common beginning of ``path`` and the path to ``at``."""
        pairs = zip(path, self._path_to(self.at), strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    # ---- committing -----------------------------------------------------------------------------------------------

    def commit(self, accepted: int, token: int, logprobs: Seq[TokenLogprob] = ()) -> Commit:
        """Make ``drafts[:accepted] + [token]`` authoritative, trimmed at the first end of the request.

        ``token`` is the recovered token, or the bonus token when every draft was accepted. ``logprobs`` holds one
        entry per token of the untrimmed run, or nothing.
        """
        if self.is_tree or not 0 <= accepted <= len(self.drafts):
            raise TransactionError(f"{accepted} accepted of {len(self.drafts)} drafts in a row")
        return self._commit(range(accepted), token, logprobs)

    def commit_path(self, path: Seq[int], token: int, logprobs: Seq[TokenLogprob] = ()) -> Commit:
        """As ``commit``, of the drafts ``path`` that lead from the root downwards."""
        require_path(self.parents, path)
        return self._commit(path, token, logprobs)

    def _commit(self, path: Seq[int], token: int, logprobs: Seq[TokenLogprob]) -> Commit:
        if not self._open or self._committed:
            raise TransactionError("commit outside an open transaction")
        s = self.sequence
        accepted = len(path)
        bonus = (path[-1] if path else -1) not in self.parents if self.is_tree else accepted == len(self.drafts)
        if self._branched and self._shared(path) < accepted:
            self.move(path[-1])  # what follows committed tokens reads them in the history
        run = [self.drafts[i] for i in path]
        run.append(token)
        cut, reason = self._trim(run, path)
        kept = min(cut, accepted)

        # Everything past the kept drafts goes first, then what is new comes in: no participant ever sees both.
        for p, mark in zip(s.leading, self._leading_marks, strict=True):
            p.rollback(mark)
        for t in run[:cut]:
            for p in s.leading:
                p.advance(t)
        self._settle_matcher(kept, token if cut > accepted else None)
        for c in s.caches:
            # The last committed token is fed by the next round: a slot never holds it, whatever ended the block.
            if self._branched and isinstance(c, TreeKv):
                c.keep(self._base, path[: cut - 1])
            else:
                c.rollback(self._base + cut - 1)
        reason = reason or self._grammar_end(cut > accepted)
        if reason is None and s.room == 0:
            reason = "length"

        last = ("bonus" if bonus else "recovered",) if cut > accepted else ()
        origins = (*[self.sources[i] for i in path[:kept]], *last)
        self._account(path[:kept], origins)
        s.logprobs.extend(logprobs[:cut])
        s.finish_reason = reason
        self._committed = True
        return Commit(tuple(run[:cut]), origins, reason)

    def _trim(self, run: list[int], path: Seq[int]) -> tuple[int, FinishReason | None]:
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
            if i < len(path) and self._ends[path[i]]:
                return i + 1, "stop"
            if output == s.sampling.max_tokens:
                # The last token may also complete the grammar; then it is a stop. Known for drafts, else asked below.
                return i + 1, None if i == len(path) else "length"
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

    def _account(self, kept: Seq[int], origins: tuple[str, ...]) -> None:
        counts = self.sequence.counts
        counts.rounds += 1
        counts.proposed += len(self.drafts)
        counts.accepted += len(kept)
        counts.forced += origins[: len(kept)].count("forced")
        counts.recovered += origins[-1] == "recovered"
        counts.bonus += origins[-1] == "bonus"
        for i, source in enumerate(self.sources):
            row = counts.by_source.setdefault(source, [0, 0])
            row[0] += 1
            row[1] += i in kept
        # A place was judged if all before it stood and there was a draft at it. A source that offered several tokens
        # there hit or missed once.
        last = kept[-1] if kept else -1
        reached = (-1, *kept)
        offers = dict.fromkeys(
            (p, source) for p, source in zip(self.parents, self.sources, strict=True) if p in reached
        )
        for _, source in offers:
            counts.judged[source] = counts.judged.get(source, 0) + 1
        judged = len(kept) + (last in self.parents)
        counts.by_position += [[0, 0] for _ in range(judged - len(counts.by_position))]
        for place in range(judged):
            counts.by_position[place][0] += 1
            counts.by_position[place][1] += place < len(kept)

    # ---- inside ---------------------------------------------------------------------------------------------------

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
