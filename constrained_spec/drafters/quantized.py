"""The target's own weights in int8 draft (self-speculation with quantised weights: QuantSpec, Tiwari et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.draws import has_noise
from constrained_spec.drafters.own_slots import OwnDrafter, OwnSlots
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Counts

_DRAFT = 0.5  # target steps that a draft costs, roughly
_LEAST = 0.85  # chance of a chain, below which a further draft costs more than it brings
_SAMPLED = 0.97  # of a draft that is drawn from q
# Log-odds that the target chooses the same, by how far the best score is ahead of the second: at no distance, and for
# each unit of a logit. Measured: 0.5 at 0, 0.8 at 0.15, 0.93 at 0.3, and from 0.4 on next to always.
_EVEN, _AHEAD = -0.2, 9.5


class Quantizable(LanguageModel, Protocol):
    """A model that can compute with a quantised copy of its weights too."""

    def quantize_ahead(self) -> None:
        """Make the copy. Raises ``ConfigError`` where that is impossible."""
        ...

    def score_ahead_quantized(self, blocks: Seq[Block], starts: Seq[int]) -> Tensor:
        """As ``score`` with these weights, block b written from place ``starts[b]`` on, and no length changed.

        Raises ``ModelError`` where the copy was given back since.
        """
        ...


class QuantizedDrafter(OwnDrafter):
    """Drafts with a quantised copy of the target's weights behind the target's own keys and values.

    It agrees with the target more often than any trained head, and costs half a step a draft. Where it does not agree,
    its two best tokens were close: behind such a place the chain ends. Raises ``ConfigError`` as ``quantize_ahead``
    does.
    """

    name = "quantized"
    _least = _LEAST

    def __init__(self, target: Quantizable, pipeline: Pipeline) -> None:
        target.quantize_ahead()
        super().__init__(OwnSlots(target, target.score_ahead_quantized, f"{target.name}, int8 weights"), pipeline)

    def _keeps(self, processed: Processed, live: Seq[Proposal]) -> Tensor:
        keeps = torch.full((len(live),), _SAMPLED, device=processed.logits.device)
        for row, p in enumerate(live):
            scores, scale = processed.logits[row], 1.0
            if has_noise(p):
                # The scores are divided by the temperature, and so is what rounding did to them.
                scale = p.sequence.sampling.temperature
                noise = p.sequence.coins.gumbel(p.tx.position.output_index, len(scores))
                scores = scores + torch.from_numpy(noise).to(scores)
            elif not p.sequence.sampling.greedy:
                continue
            best, second = scores.topk(2).values
            # Without a second token (-inf) the difference is infinite, and the chance 1.
            keeps[row] = torch.sigmoid(_EVEN + _AHEAD * scale * (best - second))
        return keeps


def steps_taken(counts: Counts) -> float:
    """Target steps that drafting with the copy took so far, roughly."""
    return _DRAFT * counts.by_source.get(QuantizedDrafter.name, (0, 0))[0]
