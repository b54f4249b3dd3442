"""A smaller model with the same tokeniser drafts token by token (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.appetite import Appetite
from constrained_spec.drafters.base import DrafterFault, Proposal, draft_forward
from constrained_spec.drafters.draws import draw
from constrained_spec.errors import ConfigError, VocabularyMismatchError
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.participant import KvState
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import Vocabulary

CHUNK = 256  # tokens of a prompt that the draft model reads in one round


class ModelDrafter:
    """Samples from q = pipeline(draft logits, the same Positions the target will see).

    For the "invariant" verifier it draws with the target's own Gumbel noise, keyed by position, so that the two often
    agree; for any other with the draft coin. At temperature 0 the draft is a point mass. One object per draft model: it
    owns the model's slots.
    """

    name = "model"
    _least = 0.0

    def __init__(self, model: LanguageModel, pipeline: Pipeline, target: Vocabulary) -> None:
        require_same_vocabulary(target, model.vocabulary)
        self._model = model
        self._pipeline = pipeline
        self._width = target.size
        self._caches: dict[int, KvState] = {}
        self._free = list(range(model.slots))
        self._appetites: dict[int, Appetite] = {}

    def _take(self, sequence: Sequence) -> int:
        """A slot of the draft model for ``sequence``."""
        if not self._free:
            raise ConfigError("the draft model has no free slot", param="slots", hint="load it with more slots")
        return self._free.pop()

    def _give(self, slot: int) -> None:
        self._free.append(slot)

    def open(self, sequence: Sequence) -> None:
        slot = self._take(sequence)
        self._model.set_length(slot, 0)
        cache = KvState(self._model, slot)
        self._caches[id(sequence)] = cache
        sequence.caches.append(cache)

    def close(self, sequence: Sequence) -> None:
        self._appetites.pop(id(sequence), None)
        cache = self._caches.pop(id(sequence), None)
        if cache is not None:
            self._give(cache.slot)
            sequence.caches.remove(cache)

    def propose(self, proposals: Seq[Proposal]) -> None:
        """One draft forward per position, for all rows together. Length is bounded before any token is drawn."""
        live = self._caught_up([p for p in proposals if self._fits(p)])
        trust = {id(p): 1.0 for p in live}
        while live:
            blocks = []
            for p in live:
                cache = self._caches[id(p.sequence)]
                blocks.append(Block(cache.slot, p.sequence.history.tokens[cache.length :], want=1))
            with draft_forward(live):
                logits = self._model.score(blocks)
            processed = self._process(logits, live)
            tokens, q = self._draw(processed, live)
            # One sync: the grammar needs each token on the host before the next position's mask exists.
            keeps = self._keeps(processed, live)
            told = torch.stack((tokens.double(), processed.dead.double(), keeps.double())).tolist()
            for p, row, token, dead, keep in zip(live, range(len(live)), *told, strict=True):
                if dead:
                    raise DrafterFault("the draft model's logits are not finite, or leave no token")
                # The invariant verifier makes the choice itself, so that a draft counts as a point mass there.
                if q is None or p.sequence.sampling.greedy or p.verifier == "invariant":
                    if not p.point(int(token), self.name):
                        raise DrafterFault(f"drafter {self.name!r} chose id {int(token)}, which the grammar forbids")
                else:
                    p.sampled(int(token), q[row], self.name)
                trust[id(p)] *= keep
            live = [p for p in live if trust[id(p)] >= self._least and self._fits(p)]

    def _keeps(self, processed: Processed, live: Seq[Proposal]) -> Tensor:
        """How likely the draft of each row is thought to be kept, [N]. Below a product of ``_least`` a chain ends.

        For a sampled draft it must not depend on its row, or the end of the chain would tell of the draft.
        """
        return torch.ones(len(live), device=processed.logits.device)

    def _caught_up(self, proposals: Seq[Proposal]) -> list[Proposal]:
        """Those whose slot lacks little. A long prompt is written over several rounds, which hold nobody else up."""
        lacking = [(p, self._caches[id(p.sequence)]) for p in proposals]
        late = [(p, cache) for p, cache in lacking if len(p.sequence.history) - cache.length > CHUNK]
        if late:
            blocks = []
            for p, cache in late:
                start = cache.length
                # Committed tokens alone: drafts of another source are rolled back with the round.
                blocks.append(
                    Block(cache.slot, p.sequence.history.tokens[start : min(start + CHUNK, p.tx.base)], want=0)
                )
            with draft_forward(proposals):
                self._model.score(blocks)
        return [p for p, cache in lacking if not any(cache is c for _, c in late)]

    def _fits(self, p: Proposal) -> bool:
        appetite = self._appetites.setdefault(id(p.sequence), Appetite(self.name))
        return appetite.left(p) > 0 and len(p.sequence.history) <= self._model.capacity

    def _process(self, logits: Tensor, live: Seq[Proposal]) -> Processed:  # logits [N, V of the draft]
        positions = [p.tx.position for p in live]
        return self._pipeline.process(
            _match_width(logits, self._width), positions, [p.sequence.processors for p in live]
        )

    def _draw(self, processed: Processed, live: Seq[Proposal]) -> tuple[Tensor, Tensor | None]:
        """Next draft of each row [N], and the rows [N, V] they were drawn from (None: all are point masses)."""
        if all(p.sequence.sampling.greedy for p in live):
            return processed.choices(), None
        return draw(processed, live), processed.probabilities()


def require_same_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Ids must mean the same text in both models; only a padded tail without text may differ in length.

    Raises ``VocabularyMismatchError`` naming the first id that differs.
    """
    shared = min(target.size, draft.size)
    tails = (*target.tokens[shared:], *draft.tokens[shared:])
    for i in range(shared):
        if target.tokens[i] != draft.tokens[i]:
            raise VocabularyMismatchError(
                f"id {i} is {target.tokens[i]!r} in the target and {draft.tokens[i]!r} in the draft model",
                param="draft_model",
                hint="use a draft model with the target's tokenizer",
            )
    if any(t is not None for t in tails) or any(
        i < shared and target.special.get(name) != draft.special.get(name)
        for name, i in (*target.special.items(), *draft.special.items())
    ):
        raise VocabularyMismatchError(
            f"the target has {target.size} ids and the draft model {draft.size}, and the difference is not padding",
            param="draft_model",
            hint="use a draft model with the target's tokenizer",
        )


def _match_width(logits: Tensor, width: int) -> Tensor:
    """Cut or pad [N, V'] to [N, width]; an id that the draft model does not have gets probability zero."""
    if logits.shape[-1] >= width:
        return logits[:, :width]
    return torch.nn.functional.pad(logits, (0, width - logits.shape[-1]), value=float("-inf"))
