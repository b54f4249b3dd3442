"""The target's own slots as those of a draft model: what a cheaper pass over the target's weights drafts in."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import Vocabulary

_LATE = 32  # tokens that are read before the first draft, at most

Ahead = Callable[[Seq[Block], Seq[int]], Tensor]


class OwnSlots:
    """A cheaper pass of a model as a model of its own, in the same slots, behind the target's keys and values.

    A slot is as long as the target's, or longer by what was drafted since. No pass over a prompt is needed, and what
    was drafted is seen by nobody else: it lies behind the target's length, and the target's forward overwrites it.
    """

    def __init__(self, target: LanguageModel, ahead: Ahead, name: str) -> None:
        """``ahead(blocks, starts)``: logits as ``score`` gives them, block b written from place ``starts[b]`` of its
        slot on, and no length changed.
        """
        self._target = target
        self._score = ahead
        self._name = name
        self._ahead: dict[int, int] = {}  # per slot: its length here

    @property
    def vocabulary(self) -> Vocabulary:
        return self._target.vocabulary

    @property
    def name(self) -> str:
        return self._name

    @property
    def device(self) -> torch.device:
        return self._target.device

    @property
    def slots(self) -> int:
        return self._target.slots

    @property
    def capacity(self) -> int:
        return self._target.capacity

    def score(self, blocks: Seq[Block]) -> Tensor:
        starts = [self.length(b.slot) for b in blocks]
        logits = self._score(blocks, starts)
        for block, start in zip(blocks, starts, strict=True):
            self._ahead[block.slot] = start + len(block.tokens)
        return logits

    def length(self, slot: int) -> int:
        return max(self._target.length(slot), self._ahead.get(slot, 0))

    def set_length(self, slot: int, length: int) -> None:
        self._ahead[slot] = length

    def clear(self, slot: int) -> None:
        self._target.clear(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        self._target.copy(source, target, length)

    def fingerprint(self, slot: int) -> bytes:
        return self._target.fingerprint(slot)


class OwnDrafter(ModelDrafter):
    """A ``ModelDrafter`` in the target's own slots. It reads no prompt: the target's forward of the round does."""

    def __init__(self, model: OwnSlots, pipeline: Pipeline) -> None:
        super().__init__(model, pipeline, model.vocabulary)

    def _take(self, sequence: Sequence) -> int:
        return sequence.slot

    def _give(self, slot: int) -> None:
        """The slot is the target's."""

    def _caught_up(self, proposals: Seq[Proposal]) -> list[Proposal]:
        """Those whose slot lacks little: the newest token, and what another source has drafted."""
        return [p for p in proposals if len(p.sequence.history) - self._caches[id(p.sequence)].length <= _LATE]
