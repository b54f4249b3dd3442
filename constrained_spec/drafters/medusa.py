"""K heads guess the next K tokens at once from the target's last final state (Medusa, Cai et al. 2024).

The newest committed token has no final state yet when a round begins: the heads read the state before it, as Medusa's
do, and the token itself by its embedding, as those of Hydra (Ankner et al. 2024). They see no draft: the k-th guess is
the same whatever the first was. So a chain is cheap and short.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from constrained_spec.backends.base import FeatureModel
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.heads import LEAST, Branches, Chain, HeadDrafter, Place, committed, drafts
from constrained_spec.drafters.manifest import Part
from constrained_spec.processors.pipeline import Pipeline


@dataclass(slots=True)
class _Guess(Chain):
    states: Tensor | None = None  # [K, hidden]: predicted state of each place of the block
    scores: Tensor | None = None  # [K, R]


@dataclass(slots=True)
class _Tree(Branches):
    states: Tensor  # [K, hidden]

    def reaches(self, p: Proposal, node: int) -> bool:
        return _depth(p, node) < len(self.states)


def _depth(p: Proposal, node: int) -> int:
    """Drafts down to and with ``node``."""
    return p.tx.positions[node + 1].index - committed(p)


class MedusaDrafter(HeadDrafter):
    """Head k: ``A u + D_k silu(U_k u)``, u = [norm(state); norm(embedding)] of the last known state and newest token.

    A Medusa head is such a block behind an identity; here a linear map that all heads share stands in its place, since
    the state is that of a token before. Tensors of the part: ``shared`` [hidden, 2 hidden], ``up`` [K, inner,
    2 hidden], ``down`` [K, hidden, inner], ``norm_state``, ``norm_token`` [hidden], ``reduced`` [R].
    """

    name = "medusa"
    kind = "medusa"

    def __init__(
        self,
        model: FeatureModel,
        pipeline: Pipeline,
        part: Part,
        *,
        least: float = LEAST,
        allow_variants: bool = False,
    ) -> None:
        super().__init__(model, pipeline, part, least=least, allow_variants=allow_variants)
        dtype = model.embed(self._head.ids[:1]).dtype
        w = {name: t.to(model.device, dtype) for name, t in part.tensors.items() if name != "reduced"}
        self.heads, self._hidden, self._inner = w["down"].shape
        self._norms = w["norm_state"], w["norm_token"]
        # Two products for all heads together: the weights are read once, whatever the number of rows.
        self._first = self._head.make(torch.cat((w["up"].flatten(0, 1), w["shared"])).contiguous(), None)
        self._down = w["down"].transpose(1, 2).contiguous()  # [K, inner, hidden]
        self._epsilon = float(part.manifest.shape["epsilon"])

    def _begin(self, proposals: Seq[Proposal]) -> list[Chain | None]:
        found = [self._model.features(p.sequence.slot) for p in proposals]
        ready = [
            i
            for i, (p, rows) in enumerate(zip(proposals, found, strict=True))
            if rows is not None and 0 < len(rows) == committed(p) - 1
        ]
        out: list[Chain | None] = [None] * len(proposals)
        if not ready:
            return out
        last = torch.stack([f[-1] for i in ready if (f := found[i]) is not None])
        newest = [proposals[i].sequence.history.tokens[committed(proposals[i]) - 1] for i in ready]
        states = self._guess(last, self._model.embed(torch.tensor(newest, device=last.device)))
        scores = self._head.scores(states.flatten(0, 1)).view(len(ready), self.heads, -1)
        for row, i in enumerate(ready):
            out[i] = _Guess(proposals[i].tx, states=states[row], scores=scores[row])
        return out

    def _guess(self, last: Tensor, newest: Tensor) -> Tensor:  # [N, hidden] twice -> [N, K, hidden]
        parts = (
            nn.functional.rms_norm(x, (self._hidden,), norm, self._epsilon)
            for x, norm in zip((last, newest), self._norms, strict=True)
        )
        opened, shared = self._first(torch.cat(tuple(parts), -1)).split((self.heads * self._inner, self._hidden), -1)
        inner = nn.functional.silu(opened).view(-1, self.heads, self._inner).transpose(0, 1)  # [K, N, inner]
        return torch.baddbmm(shared.expand(self.heads, -1, -1), inner, self._down).transpose(0, 1)

    def branches(self, proposals: Seq[Proposal]) -> list[Branches | None]:
        begun = self._begin(proposals)
        return [_Tree(c.states) if isinstance(c, _Guess) and c.states is not None else None for c in begun]

    def _states_at(self, places: Seq[Place]) -> Tensor:
        return torch.stack([tree.states[_depth(p, node)] for p, tree, node in places if isinstance(tree, _Tree)])

    def _reaches(self, p: Proposal, chain: Chain) -> bool:
        return len(drafts(p)) < self.heads

    def _states(self, live: Seq[tuple[Proposal, Chain]]) -> tuple[Tensor, Tensor | None]:
        states, scores = [], []
        for p, chain in live:
            assert isinstance(chain, _Guess) and chain.states is not None and chain.scores is not None
            depth = len(drafts(p))
            states.append(chain.states[depth])
            scores.append(chain.scores[depth])
        return torch.stack(states), torch.stack(scores)
