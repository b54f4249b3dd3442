"""What a drafter is: something that extends open proposals, and cannot change the law of the output."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from constrained_spec.errors import ConstrainedSpecError
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction


class DrafterFault(ConstrainedSpecError):
    """A drafter proposed something no drafter may propose. It is disabled for the request; decoding goes on."""


@contextmanager
def draft_forward(proposals: Seq[Proposal]) -> Iterator[None]:
    """Times a forward of a draft model or of trained heads for all of ``proposals`` together."""
    start = time.perf_counter()
    try:
        yield
    finally:
        if proposals:
            # The round adds up what its rows tell, so one of them tells it.
            proposals[0].sequence.draft_seconds += time.perf_counter() - start


class Proposal:
    """The drafts of one sequence in one round, as a drafter sees them.

    Every draft is either a point mass (a deterministic guess: cutting it when it is illegal cannot bias anything) or
    sampled from ``q``, which must already be masked and normalised: once sampled it stays in the block, whatever
    happens later, because dropping it by looking at it would bias the output (DESIGN 7).

    ``point`` and ``sampled`` continue a chain. ``child`` puts a draft below any other one, so that the drafts form a
    tree: after it, and after ``move``, history, matcher and mask of the sequence are those at that draft, and so a
    drafter of chains goes on from there.
    """

    __slots__ = ("alone", "budget", "first", "q", "round", "tx", "verifier")

    def __init__(self, tx: Transaction, budget: int, verifier: str, *, alone: bool = True) -> None:
        self.tx = tx
        self.budget = budget
        self.alone = alone  # no other sequence shares the forward that judges it, and it may matter
        self.verifier = verifier  # how the drafts will be judged: a drafter may draw with the same noise
        self.first = tx.position.output_index  # place in the output of the first draft
        self.q: list[Tensor | None] = []  # per draft: the [V] row it was sampled from, or None for a point mass
        self.round = tx.sequence.counts.rounds

    @property
    def sequence(self) -> Sequence:
        return self.tx.sequence

    @property
    def tokens(self) -> list[int]:
        return self.tx.drafts

    @property
    def room(self) -> int:
        """Drafts that may still be added here."""
        return min(self.budget - len(self.tx.drafts), self.tx.draft_room)

    def point(self, token: int, source: str) -> bool:
        """Append a deterministic guess. False: illegal here, not appended, and nothing may be guessed after it."""
        self._check(token)
        if not self.tx.extend(token, source):
            return False
        self.q.append(None)
        return True

    def sampled(self, token: int, q: Tensor, source: str) -> None:  # q [V]
        """Append a token drawn from ``q``, the very tensor it was drawn from."""
        self._check(token)
        if not self.tx.extend(token, source):
            raise DrafterFault(f"drafter {source!r} sampled id {token}, which the grammar forbids")
        self.q.append(q)

    def child(self, parent: int, token: int, source: str, q: Tensor | None = None) -> int | None:  # q [V]
        """Put a draft below draft ``parent`` (-1: the root) and move there. Returns its index.

        Without ``q`` it is a guess; None: it is illegal there, or nothing fits. One that stands there already is found
        again. With ``q`` it was drawn from ``q`` without the earlier children of ``parent`` (their tokens set to zero,
        the rest renormalised): the children of a node are judged one after another. How many a node gets must not
        depend on which tokens were drawn for it. Raises ``DrafterFault`` for a drawn token that cannot stand there, and
        where the target scores no trees.
        """
        self._check(token)
        siblings = [i for i, above in enumerate(self.tx.parents) if above == parent]
        twin = next((i for i in siblings if self.tokens[i] == token), None)
        if twin is not None:
            if q is not None:
                raise DrafterFault(f"drafter {source!r} drew id {token} twice below one prefix")
            self.tx.move(twin)
            return twin
        if siblings and not self.sequence.takes_trees:
            raise DrafterFault("the target scores no trees of drafts")
        self.tx.move(parent)
        if self.room <= 0:
            if q is not None:
                raise DrafterFault(f"drafter {source!r} sampled id {token} where no draft has room")
            return None
        if q is not None:
            self.sampled(token, q, source)
        elif not self.point(token, source):
            return None
        return self.tx.at

    def move(self, node: int) -> None:
        """Stand after draft ``node`` (-1: at the root): the next draft is its child."""
        self.tx.move(node)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.sequence.vocabulary.size:
            raise DrafterFault(f"draft id {token} lies outside the vocabulary of {self.sequence.vocabulary.size}")


class Drafter(Protocol):
    """A source of proposals. One object serves many sequences; what it keeps per sequence is a participant.

    One that leaves out itself what costs more than it brings has an attribute ``sizes_itself``, which is true.
    """

    @property
    def name(self) -> str: ...

    def open(self, sequence: Sequence) -> None:
        """Attach per-sequence state: before the first round, or after a preemption, when there is output already."""
        ...

    def close(self, sequence: Sequence) -> None:
        """Release what ``open`` took."""
        ...

    def propose(self, proposals: Seq[Proposal]) -> None:
        """Extend each proposal by at most ``room`` tokens."""
        ...
