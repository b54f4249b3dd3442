"""The implementation's own law, integrated over all coins exactly, is the target's; that of broken ones is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from constrained_spec.errors import ConfigError
from constrained_spec.verify import (
    Coupling,
    Distribution,
    Draft,
    Verdict,
    World,
    coin_grid,
    coupling,
    distance,
    integrate,
    inverse_cdf,
    law,
    match,
    round_of,
    target_law,
)
from constrained_spec.verify.law import coupling_rule

RATIONAL: dict[str, tuple[Distribution, Draft, int]] = {
    "disjoint": ((0.25, 0.75, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5), 4),
    "zeros": ((0.0, 0.5, 0.25, 0.0, 0.25), (0.25, 0.0, 0.5, 0.0, 0.25), 4),
    "identical": ((0.2, 0.2, 0.6), (0.2, 0.2, 0.6), 5),
    "identical-certain": ((0.0, 1.0), (0.0, 1.0), 1),
    "spike-on-rare": ((1 / 8, 4 / 8, 3 / 8), (1.0, 0.0, 0.0), 8),
    "spike-on-impossible": ((0.0, 0.5, 0.5), (7 / 8, 1 / 8, 0.0), 8),
    "guess-likely": ((5 / 6, 1 / 6, 0.0), 0, 6),
    "guess-impossible": ((0.0, 0.25, 0.75), 0, 4),
    "guess-certain": ((0.0, 0.0, 1.0), 2, 2),
    "six": ((1 / 8, 2 / 8, 1 / 8, 2 / 8, 1 / 8, 1 / 8), (3 / 8, 0.0, 1 / 8, 1 / 8, 2 / 8, 1 / 8), 8),
    "worked": ((0.5, 0.3, 0.2), (0.6, 0.1, 0.3), 10),
}
TOLERANCE = 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", sorted(RATIONAL))
def test_adversarial_pairs(name: str, dtype: torch.dtype) -> None:
    p, draft, n = RATIONAL[name]
    world = World(len(p), lambda _: p, lambda _: draft)
    got = law(world, integrate(n, dtype=dtype), 1, 2)
    assert distance(got, target_law(world, 2)) < TOLERANCE
    assert distance(got, law(world, "coupling", 1, 2)) < TOLERANCE


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("gamma", "vocab", "n", "length"),
    [(1, 6, 8, 3), (1, 3, 9, 4), (2, 4, 4, 3), (2, 3, 6, 3), (3, 3, 4, 3), (3, 2, 5, 4), (4, 2, 4, 3), (4, 3, 3, 4)],
)
def test_random_worlds(
    make_random_world: Callable[..., World], gamma: int, vocab: int, n: int, length: int, mixed: bool
) -> None:
    """Sampled drafts, and blocks that mix sampled, guessed and missing drafts; some rounds are ragged batches."""
    world = make_random_world(100 * gamma + vocab, vocab, n=n, mixed=mixed, eos=vocab - 1 if mixed else None)
    got = law(world, integrate(n), gamma, length)
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert distance(got, target_law(world, length)) < TOLERANCE


def test_each_round_is_the_enumerated_one(make_random_world: Callable[..., World]) -> None:
    """Not only the law of the text: the chance of every committed block, so acceptance itself, agrees."""
    world = make_random_world(7, 3, n=4, mixed=True)
    for gamma in (1, 2, 3):
        model: dict[tuple[int, ...], float] = {}
        for tokens, chance in round_of(coupling_rule)(world, (), gamma, gamma + 1):
            model[tokens] = model.get(tokens, 0.0) + chance
        assert distance(dict(integrate(4)(world, (), gamma, gamma + 1)), model) < TOLERANCE


def sampled_match(
    p: Tensor,
    first: Tensor,
    draft: Tensor,
    lengths: Tensor,
    q: Tensor | None,
    q_row: Tensor,
    accept_u: Tensor,
    draw_u: Tensor,
) -> Verdict:
    """DESIGN 8's words for a point mass: draw y ~ p at every place with a coin of its own, keep while y = x."""
    coins = torch.cat((accept_u, draw_u.unsqueeze(1)), 1)  # [B, G + 1]
    place = torch.arange(coins.shape[1])
    rows = first.unsqueeze(1) + torch.minimum(place, lengths.unsqueeze(1))
    choices = inverse_cdf(p[rows].flatten(0, 1), coins.flatten())
    return match(choices, torch.arange(len(first)) * coins.shape[1], draft, lengths)


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_a_guess_has_one_law_in_both_forms(make_random_world: Callable[..., World], gamma: int) -> None:
    sampled = make_random_world(31, 3, n=4, mixed=True)
    world = World(3, sampled.target, lambda prefix: (len(prefix) + sum(prefix)) % 3)
    ratio = dict(integrate(4)(world, (), gamma, gamma + 1))
    drawn = dict(integrate(4, sampled_match)(world, (), gamma, gamma + 1))
    assert distance(ratio, drawn) < TOLERANCE
    for w in (world, sampled):
        assert distance(law(w, integrate(4, sampled_match), gamma, 3), target_law(w, 3)) < TOLERANCE


def test_a_token_its_q_cannot_draw_is_judged_as_a_guess() -> None:
    """A faulty drafter hands in x with q(x) = 0 (or NaN): the output law holds all the same."""
    p = torch.tensor([[0.25, 0.5, 0.25]] * 2)
    middles, widths = coin_grid(4)
    cells = torch.cartesian_prod(torch.arange(len(middles)), torch.arange(len(middles)))
    size = len(cells)
    for q in ([0.0, 0.5, 0.5], [float("nan")] * 3):
        verdict = coupling(
            p,
            torch.zeros(size, dtype=torch.long),
            torch.zeros(size, 1, dtype=torch.long),
            torch.ones(size, dtype=torch.long),
            torch.tensor([q]),
            torch.zeros(size, 1, dtype=torch.long),
            middles[cells[:, :1]],
            middles[cells[:, 1]],
        )
        head = torch.where(verdict.accepted == 1, 0, verdict.token)
        got = torch.bincount(head, widths[cells].prod(1), minlength=3)
        assert torch.allclose(got, p[0].double(), atol=1e-12)


class Call(NamedTuple):
    """The arguments of one call of a coupling."""

    p: Tensor
    first: Tensor
    draft: Tensor
    lengths: Tensor
    q: Tensor | None
    q_row: Tensor
    accept_u: Tensor
    draw_u: Tensor


def driven(mutant: Callable[[Call], Verdict]) -> Coupling:
    def verifier(
        p: Tensor, first: Tensor, draft: Tensor, lengths: Tensor, q: Tensor | None, q_row: Tensor, u: Tensor, v: Tensor
    ) -> Verdict:
        return mutant(Call(p, first, draft, lengths, q, q_row, u, v))

    return verifier


def mutant_full_repair(call: Call) -> Verdict:
    """(a) The token after a rejection comes from p."""
    verdict = coupling(*call)
    drawn = inverse_cdf(call.p[call.first + verdict.accepted], call.draw_u)
    return Verdict(verdict.accepted, torch.where(verdict.accepted < call.lengths, drawn, verdict.token))


def mutant_without_q(call: Call) -> Verdict:
    """(b) The acceptance test forgets q, the repair does not."""
    assert call.q is not None
    kept = coupling(*call._replace(q=torch.ones_like(call.q))).accepted
    # The real repair at that cut: coins of zero keep what lies before it, a coin of one rejects there.
    place = torch.arange(call.draft.shape[1])
    coins = torch.where(place < kept.unsqueeze(1), 0.0, 1.0).double()
    return Verdict(kept, coupling(*call._replace(accept_u=coins)).token)


def mutant_without_bonus(call: Call) -> Verdict:
    """(c) After a whole accepted block the last draft is repeated instead of a draw from p."""
    verdict = coupling(*call)
    last = call.draft.gather(1, (call.lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    return Verdict(verdict.accepted, torch.where(verdict.accepted == call.lengths, last, verdict.token))


def mutant_constant_coin(call: Call) -> Verdict:
    """A coin that is wired to zero accepts all (CASES B25)."""
    return coupling(*call._replace(accept_u=torch.zeros_like(call.accept_u)))


def mutant_one_coin(call: Call) -> Verdict:
    """The draw shares its coin with the first acceptance."""
    return coupling(*call._replace(draw_u=call.accept_u[:, 0]))


@pytest.mark.parametrize(
    "mutant", [mutant_full_repair, mutant_without_q, mutant_without_bonus, mutant_constant_coin, mutant_one_coin]
)
@pytest.mark.parametrize("gamma", [1, 2])
def test_broken_implementations_are_seen(mutant: Callable[[Call], Verdict], gamma: int) -> None:
    world = World(3, lambda _: (0.25, 0.5, 0.25), lambda _: (0.5, 0.25, 0.25))
    target = target_law(world, gamma + 1)  # a shorter text would trim the bonus away
    assert distance(law(world, integrate(4), gamma, gamma + 1), target) < TOLERANCE
    assert distance(law(world, integrate(4, driven(mutant)), gamma, gamma + 1), target) > 0.01


def test_a_world_off_the_grid_is_refused() -> None:
    world = World(2, lambda _: (1 / 3, 2 / 3), lambda _: 0)
    with pytest.raises(ConfigError, match="multiple"):
        law(world, integrate(4), 1, 1)


def test_the_grid_covers_the_unit_interval() -> None:
    middles, widths = coin_grid(6)
    assert len(middles) == 12  # the Farey sequence of order 6 has 13 terms
    assert float(widths.sum()) == pytest.approx(1, abs=1e-15)
    assert bool((middles > 0).all())
    assert bool((middles < 1).all())
