"""The exact law of the *implementation* of a verifier: the real function, driven over an exact grid of coins.

In a world whose probabilities are multiples of 1/n, every decision of a correct or incorrect coupling compares a coin
with a fraction of denominator at most n: acceptance with p/q, draws with cumulative weights over their mass. Between
neighbouring fractions nothing changes, so one coin in the middle of each interval, weighted by its width, integrates
over all coins exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from constrained_spec.errors import ConfigError
from constrained_spec.verify.coupling import coupling
from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.law import Round
from constrained_spec.verify.verdict import Verdict
from constrained_spec.verify.world import Distribution, Prefix, World

Coupling = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor], Verdict]


def coin_grid(n: int) -> tuple[Tensor, Tensor]:
    """Middles and widths of the intervals between the fractions in [0, 1] of denominator <= n (the Farey sequence)."""
    ends = sorted({Fraction(a, b) for b in range(1, n + 1) for a in range(b + 1)})
    pairs = list(pairwise(ends))
    middles = torch.tensor([float((a + b) / 2) for a, b in pairs], dtype=torch.float64)
    return middles, torch.tensor([float(b - a) for a, b in pairs], dtype=torch.float64)


class _Block(NamedTuple):
    """One way to draft. ``sources`` holds the row each draft was drawn from, None for a point mass."""

    tokens: Prefix
    sources: tuple[Distribution | None, ...]
    weight: float


def _blocks(world: World, prefix: Prefix, gamma: int, grid: tuple[Tensor, Tensor]) -> Iterator[_Block]:
    draft = world.draft(prefix) if gamma else None
    if draft is None:
        yield _Block((), (), 1.0)
        return
    source = None if isinstance(draft, int) else draft
    for x, chance in [(draft, 1.0)] if isinstance(draft, int) else _drawn(draft, grid):
        for rest in _blocks(world, (*prefix, x), gamma - 1, grid):
            yield _Block((x, *rest.tokens), (source, *rest.sources), chance * rest.weight)


def _drawn(q: Distribution, grid: tuple[Tensor, Tensor]) -> list[tuple[int, float]]:
    """Tokens that the real `inverse_cdf` draws from ``q`` over the grid, with their chances."""
    middles, widths = grid
    drawn = inverse_cdf(torch.tensor(q, dtype=torch.float64).expand(len(middles), -1), middles)
    chances = torch.bincount(drawn, widths, minlength=len(q)).tolist()
    return [(x, c) for x, c in enumerate(chances) if c > 0]


def integrate(n: int, verifier: Coupling = coupling, dtype: torch.dtype = torch.float64) -> Round:
    """The round law of ``verifier`` in worlds of multiples of 1/n, for use with `law`. Distributions get ``dtype``.

    One batched call per round, of (number of draft blocks) * (number of grid cells)^(gamma + 1) rows: keep n, the
    vocabulary and gamma small. Raises ``ConfigError`` if a probability is no multiple of 1/n.
    """
    grid = coin_grid(n)

    def round_(world: World, prefix: Prefix, gamma: int, room: int) -> list[tuple[Prefix, float]]:
        blocks = list(_blocks(world, prefix, gamma, grid))
        places = max(len(b.tokens) for b in blocks)
        first: list[int] = []
        p_rows: list[Distribution] = []
        q_rows: list[Distribution] = []
        draft = torch.zeros(len(blocks), places, dtype=torch.long)
        q_row = torch.full((len(blocks), places), -1)
        for i, block in enumerate(blocks):
            first.append(len(p_rows))
            p_rows += [world.target((*prefix, *block.tokens[:j])) for j in range(len(block.tokens) + 1)]
            for j, (token, source) in enumerate(zip(block.tokens, block.sources, strict=True)):
                draft[i, j] = token
                if source is not None:
                    q_row[i, j] = len(q_rows)
                    q_rows.append(source)
        _require_multiples([*p_rows, *q_rows], n)

        cell = torch.cartesian_prod(*[torch.arange(len(grid[0]))] * (places + 1)).view(-1, places + 1)
        which = torch.arange(len(blocks)).repeat_interleave(len(cell))  # block of each row
        coins = grid[0][cell].repeat(len(blocks), 1)
        lengths = torch.tensor([len(b.tokens) for b in blocks])
        verdict = verifier(
            torch.tensor(p_rows, dtype=dtype),
            torch.tensor(first)[which],
            draft[which],
            lengths[which],
            torch.tensor(q_rows, dtype=dtype) if q_rows else None,
            q_row[which],
            coins[:, :places],
            coins[:, places],
        )
        weight = torch.tensor([b.weight for b in blocks], dtype=torch.float64)[which]
        weight = weight * grid[1][cell].prod(1).repeat(len(blocks))
        key = (which * (places + 1) + verdict.accepted) * world.vocab + verdict.token
        outcome: defaultdict[Prefix, float] = defaultdict(float)
        for k, mass in enumerate(torch.bincount(key, weight).tolist()):
            if mass > 0:
                rest, token = divmod(k, world.vocab)
                i, accepted = divmod(rest, places + 1)
                outcome[(*blocks[i].tokens[:accepted], token)] += mass
        return list(outcome.items())

    return round_


def _require_multiples(rows: list[Distribution], n: int) -> None:
    for row in rows:
        if any(abs(x * n - round(x * n)) > 1e-9 for x in row):
            raise ConfigError(f"{row} holds something that is no multiple of 1/{n}", param="n")
