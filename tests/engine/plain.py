"""What tests of drafters share: a drafter without state of its own, and a text committed without drafts."""

from __future__ import annotations

from collections.abc import Iterable

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction


class Stateless:
    """The part of a drafter that has nothing to keep; ``propose`` is its heir's."""

    def open(self, sequence: Sequence) -> None:
        pass

    def close(self, sequence: Sequence) -> None:
        pass


def commit_singly(model: ToyModel, s: Sequence, tokens: Iterable[int]) -> None:
    """A forward and a commit per token, as target-only decoding does."""
    for token in tokens:
        with Transaction(s) as step:
            model.score([Block(s.kv.slot, s.pending, want=1)])
            step.commit(0, token)
