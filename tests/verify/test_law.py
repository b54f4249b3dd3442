"""The theorem by enumeration: every exact verifier has the target's law, the wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from constrained_spec.errors import ConfigError
from constrained_spec.verify import (
    RULES,
    Branch,
    Distribution,
    Prefix,
    World,
    distance,
    law,
    one_hot,
    overlap,
    round_of,
    target_law,
)
from constrained_spec.verify.law import coupling_rule, invariant_rule, point_rule

EXACT = ("coupling", "greedy", "invariant", "point")
TOLERANCE = 1e-9


def check(world: World, verifier: str, gamma: int, length: int) -> None:
    target = target_law(world.at_zero() if verifier == "greedy" else world, length)
    got = law(world, verifier, gamma, length)
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert distance(got, target) < TOLERANCE


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize("verifier", EXACT)
def test_adversarial_pairs(pair_world: World, verifier: str, gamma: int) -> None:
    check(pair_world, verifier, gamma, 4 if pair_world.vocab < 5 else 3)


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize("verifier", EXACT)
@pytest.mark.parametrize(("seed", "vocab", "length"), [(1, 2, 4), (2, 3, 4), (3, 4, 4), (4, 6, 3)])
def test_random_worlds(
    make_random_world: Callable[..., World], seed: int, vocab: int, length: int, verifier: str, gamma: int
) -> None:
    check(make_random_world(seed, vocab), verifier, gamma, length)


@pytest.mark.parametrize("verifier", EXACT)
def test_six_tokens_four_places(make_random_world: Callable[..., World], verifier: str) -> None:
    check(make_random_world(5, 6), verifier, 4, 4)


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize("verifier", EXACT)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_sampled_guessed_and_missing_drafts_in_one_block_with_an_end_token(
    make_random_world: Callable[..., World], seed: int, verifier: str, gamma: int
) -> None:
    check(make_random_world(seed, 3, mixed=True, eos=2), verifier, gamma, 4)


def test_repair_from_full_p_fails_by_a_margin(make_constant_world: Callable[[str], World]) -> None:
    world = make_constant_world("worked")
    got = law(world, "full-p-repair", 1, 1)
    assert [got[i,] for i in range(3)] == pytest.approx([0.60, 0.16, 0.24], abs=1e-12)
    for gamma in (1, 2, 3, 4):
        assert distance(law(world, "full-p-repair", gamma, 3), target_law(world, 3)) > 0.02


def test_an_unknown_verifier_is_named(make_constant_world: Callable[[str], World]) -> None:
    with pytest.raises(ConfigError, match="sloppy"):
        law(make_constant_world("worked"), "sloppy", 1, 1)


@pytest.mark.parametrize("name", sorted(RULES))
def test_branch_weights_sum_to_one(pair_world: World, name: str) -> None:
    draft = pair_world.draft(())
    assert draft is not None
    q = one_hot(draft, pair_world.vocab) if isinstance(draft, int) else draft
    world = pair_world.at_zero() if name == "greedy" else pair_world
    assert sum(b.weight for b in RULES[name](world.target(()), q)) == pytest.approx(1, abs=1e-12)


def kept(branches: list[Branch]) -> float:
    return sum(b.weight for b in branches if b.kept)


def test_acceptance_of_sample_and_match_is_the_inner_product() -> None:
    """CASES T5: exact, because the target's own sample is what is emitted; it accepts less than the coupling."""
    p, q = (0.5, 0.3, 0.2), (0.6, 0.1, 0.3)
    assert kept(point_rule(p, q)) == pytest.approx(sum(a * b for a, b in zip(p, q, strict=True)))
    assert kept(coupling_rule(p, q)) == pytest.approx(0.8)
    # Shared Gumbel noise lies between (1 - TV) / (1 + TV) and 1 - TV (Daliri et al. 2024).
    assert 0.8 / 1.2 <= kept(invariant_rule(p, q)) <= 0.8
    for rule in (point_rule, coupling_rule, invariant_rule):
        assert kept(rule(p, one_hot(0, 3))) == pytest.approx(p[0])


def dropping(drop: Callable[[Distribution, Distribution, int], bool]) -> Callable[..., Iterator[tuple[Prefix, float]]]:
    """The fault of CASES T1 and T2: a sampled draft is dropped by looking at it, and p is drawn from instead."""

    def round_(world: World, prefix: Prefix, gamma: int, room: int) -> Iterator[tuple[Prefix, float]]:
        p, q = world.target(prefix), world.draft(prefix)
        assert isinstance(q, tuple)
        for x, chance in enumerate(q):
            if drop(p, q, x):
                yield from (((y,), chance * p[y]) for y in range(world.vocab))
        for b in coupling_rule(p, q):
            if not drop(p, q, b.draft):
                yield (b.token,), b.weight

    return round_


def test_dropping_an_illegal_sampled_draft_is_biased() -> None:
    """CASES T1: .65 instead of .5. Rejecting it, or masking q before the draw, is exact."""
    p, q = (0.5, 0.5, 0.0), (0.4, 0.1, 0.5)
    world = World(3, lambda _: p, lambda _: q)
    assert law(world, dropping(lambda p, q, x: p[x] == 0), 1, 1)[0,] == pytest.approx(0.65, abs=1e-12)
    masked = World(3, lambda _: p, lambda _: (0.8, 0.2, 0.0))
    cut_guess = World(3, lambda _: p, lambda _: None)
    for right in (world, masked, cut_guess):
        assert law(right, "coupling", 1, 1)[0,] == pytest.approx(0.5, abs=1e-12)


def test_dropping_an_unlikely_sampled_draft_is_biased() -> None:
    """CASES T2: .55 instead of .5."""
    world = World(2, lambda _: (0.5, 0.5), lambda _: (0.9, 0.1))
    assert law(world, dropping(lambda p, q, x: q[x] < 0.2), 1, 1)[0,] == pytest.approx(0.55, abs=1e-12)
    assert law(world, "coupling", 1, 1)[0,] == pytest.approx(0.5, abs=1e-12)


def test_acceptance_is_the_overlap(pair_world: World) -> None:
    p, draft = pair_world.target(()), pair_world.draft(())
    assert draft is not None
    q = one_hot(draft, pair_world.vocab) if isinstance(draft, int) else draft
    expected = float(overlap(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)))
    assert kept(coupling_rule(p, q)) == pytest.approx(expected, abs=1e-12)


def test_rounds_without_drafts_are_plain_sampling(make_random_world: Callable[..., World]) -> None:
    world = make_random_world(21, 3)
    assert distance(law(world, round_of(coupling_rule), 0, 3), target_law(world, 3)) < TOLERANCE
