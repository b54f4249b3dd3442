"""What one round judged, place by place, for a person to look at. Costs a device sync of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from constrained_spec.coins import Role
from constrained_spec.drafters.base import Proposal
from constrained_spec.engine.judge import Decision
from constrained_spec.processors.base import Position
from constrained_spec.processors.pipeline import Processed

TOP = 5


@dataclass(frozen=True, slots=True)
class Place:
    """One judged place. ``p`` and ``q`` are the draft's probability in the target's law and in its source's.

    ``q`` is None for a guess, and where nothing was drafted, as ``draft``, ``source`` and ``coin`` are then. ``legal``
    is the number of tokens that the grammar allows, None without one. ``top`` are the most probable ids of the law,
    which at temperature 0 is shown at temperature 1. ``token`` is what was committed there.
    """

    draft: int | None
    source: str | None
    p: float | None
    q: float | None
    coin: float | None
    accepted: bool
    legal: int | None
    top: tuple[tuple[int, float], ...]
    token: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The places of one round; the first is place ``first`` of the output."""

    first: int
    places: tuple[Place, ...]


def inspect(proposal: Proposal, processed: Processed, start: int, decision: Decision) -> Inspection:
    """Every place up to the one where the round's own token was drawn. ``start``: row of the root in ``processed``."""
    tx, path = proposal.tx, list(decision.path)
    nodes = [-1, *path]
    # At each place the draft that stood, or the first one that did not.
    drafts: list[int | None] = list(path)
    drafts.append(next((i for i, parent in enumerate(tx.parents) if parent == nodes[-1]), None))
    law = _law(proposal, processed, [start + 1 + node for node in nodes])
    top = law.topk(min(TOP, law.shape[1]), dim=-1)
    tops = [list(zip(i, v, strict=True)) for i, v in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
    coins = proposal.sequence.coins.uniforms(Role.ACCEPT, proposal.round, proposal.first, max(1, len(tx.drafts)))
    places = []
    for k, (node, draft) in enumerate(zip(nodes, drafts, strict=True)):
        token = None if draft is None else tx.drafts[draft]
        q = None if draft is None else proposal.q[draft]
        places.append(
            Place(
                draft=token,
                source=None if draft is None else tx.sources[draft],
                p=None if token is None else float(law[k, token]),
                q=None if q is None or token is None else float(q[token]),
                coin=None if draft is None or proposal.sequence.sampling.greedy else float(coins[draft]),
                accepted=k < len(path),
                legal=_legal(tx.positions[node + 1]),
                top=tuple((i, p) for i, p in tops[k] if p > 0),
                token=tx.drafts[path[k]] if k < len(path) else decision.token,
            )
        )
    return Inspection(proposal.first, tuple(places))


def _law(proposal: Proposal, processed: Processed, rows: list[int]) -> Tensor:  # [len(rows), V]
    if proposal.sequence.sampling.greedy:
        return processed.logits[rows].softmax(-1)
    return processed.probabilities()[rows]


def _legal(position: Position) -> int | None:
    return None if position.mask is None else int(np.bitwise_count(position.mask.view(np.uint32)).sum())
