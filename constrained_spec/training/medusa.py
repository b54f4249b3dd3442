"""The heads of ``MedusaDrafter`` as something to train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.training.batches import Batch
from constrained_spec.training.fit import linear_fit, rms

HEADS = 4
INNER = 384
_FIT_BATCHES = 24


class MedusaTrainee(nn.Module):
    """K heads ``A u + D_k silu(U_k u)``, u the norms of a final state and of the next token's embedding.

    A, which the heads share, starts as the best linear guess of the next state, and D as zero.
    """

    kind = "medusa"

    def __init__(self, model: TransformersModel, heads: int = HEADS, inner: int = INNER) -> None:
        super().__init__()
        size = model.feature_size
        self._model = (model,)  # in a tuple: no parameters of this module
        self.steps = heads
        self._epsilon = 1e-6
        generator = torch.Generator().manual_seed(0)
        self.norm_state = nn.Parameter(torch.ones(size))
        self.norm_token = nn.Parameter(torch.ones(size))
        self.shared = nn.Parameter(torch.zeros(size, 2 * size))
        self.up = nn.Parameter(torch.randn(heads, inner, 2 * size, generator=generator) / (2 * size) ** 0.5)
        self.down = nn.Parameter(torch.zeros(heads, size, inner))

    @property
    def shape(self) -> dict[str, float]:
        heads, size, inner = self.down.shape
        return {"heads": heads, "hidden": size, "inner": inner, "epsilon": self._epsilon}

    def tensors(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.named_parameters()}

    @torch.no_grad()
    def fit(self, batches: Iterator[Batch]) -> None:
        """Set the linear part in closed form."""

        def rows() -> Iterator[tuple[Tensor, Tensor]]:
            for _, batch in zip(range(_FIT_BATCHES), batches, strict=False):
                e = self._embed(batch)
                known = batch.places - 1
                given = torch.cat((self._state(batch.states[batch.rows, known]), e[batch.rows, known + 1]), -1)
                yield given, batch.states[batch.rows, batch.places]

        self.shared.copy_(linear_fit(rows()))

    def predictions(self, batch: Batch) -> Sequence[tuple[Tensor, Tensor]]:
        """Per head k: the indices into the batch's places whose depth is at least k, and the states predicted there."""
        e = self._embed(batch)
        out = []
        for k in range(self.steps):
            at = (batch.depth >= k).nonzero().squeeze(1)
            rows, known = batch.rows[at], batch.places[at] - 1 - k
            given = torch.cat((self._state(batch.states[rows, known]), e[rows, known + 1]), -1)
            inner = nn.functional.silu(nn.functional.linear(given, self.up[k]))
            out.append((at, nn.functional.linear(given, self.shared) + nn.functional.linear(inner, self.down[k])))
        return out

    def _embed(self, batch: Batch) -> Tensor:  # [B, T, hidden]
        rows = self._model[0].embed(batch.tokens.flatten()).view(*batch.tokens.shape, -1)
        return rms(rows, self.norm_token, self._epsilon)

    def _state(self, states: Tensor) -> Tensor:
        return rms(states, self.norm_state, self._epsilon)
