"""Coins are a pure function of their key, uniform on [0, 1), and touch no global generator."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.coins import Coins, Role
from constrained_spec.verify import chi_square

FALSE_ALARM = 1e-4
BELOW_ONE = 1 - 2.0**-53
GOLDEN = (0.011546754286331562, 0.9298219036662596, 2.844407396788449, -0.28833982698795424)

seeds = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**32)
roles = st.sampled_from(list(Role))


@settings(deadline=None)
@given(seeds, small, roles, small, small, st.integers(1, 40))
def test_a_coin_is_a_function_of_its_key(
    seed: int, choice: int, role: Role, round_: int, position: int, n: int
) -> None:
    coins = Coins(seed, choice)
    row = coins.uniforms(role, round_, position, n)
    assert row.shape == (n,)
    assert row.dtype == np.float64
    assert ((row >= 0) & (row < 1)).all()
    coins.uniform(Role.DRAFT, 3, 5)  # anything asked in between moves nothing
    assert coins.uniform(role, round_, position) == row[0]
    assert (Coins(seed, choice).uniforms(role, round_, position, n) == row).all()
    assert (coins.uniforms(role, round_, position, n + 3)[:n] == row).all()


def test_order_of_calls_does_not_matter() -> None:
    keys = [(role, round_, position) for role in Role for round_ in range(3) for position in range(5)]
    coins = Coins(7)
    forward = {key: coins.uniform(*key) for key in keys}
    random.Random(1).shuffle(keys)
    assert {key: coins.uniform(*key) for key in keys} == forward


def test_global_generators_are_neither_read_nor_moved() -> None:
    values = []
    for global_seed in (0, 1):
        random.seed(global_seed)
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
        coins = Coins(99, 3)
        values.append((coins.uniform(Role.ACCEPT, 1, 2), tuple(coins.gumbel(4, 6).tolist())))
        after = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
        assert before[0] == after[0]
        assert repr(before[1]) == repr(after[1])
        assert torch.equal(before[2], after[2])
    assert values[0] == values[1]


def test_the_values_are_fixed_for_ever() -> None:
    """A seed in a log must mean the same text in every release."""
    assert Coins(0).uniform(Role.DRAFT, 0, 0) == GOLDEN[0]
    assert Coins(2**64 - 1, 5).uniform(Role.RECOVER, 9, 1000) == GOLDEN[1]
    assert Coins(42).gumbel(3, 2).tolist() == pytest.approx(GOLDEN[2:], rel=1e-12)


def test_no_two_keys_share_a_coin() -> None:
    """Seeds, choices, roles, rounds and positions all matter, and swapping two of them does too."""
    drawn = [
        value
        for seed in (0, 1, 2)
        for choice in (0, 1, 2)
        for role in Role
        for round_ in (0, 1, 2)
        for position in (0, 1, 2)
        for value in Coins(seed, choice).uniforms(role, round_, position, 9).tolist()
    ]
    assert len(set(drawn)) == len(drawn)


def test_gumbel_noise_is_keyed_by_position_alone_and_finite() -> None:
    coins = Coins(5)
    noise = coins.gumbel(7, 1000)
    assert noise.shape == (1000,)
    assert np.isfinite(noise).all()
    assert (coins.gumbel(7, 10) == noise[:10]).all()
    assert not (coins.gumbel(8, 10) == noise[:10]).any()


def test_gumbel_noise_is_finite_at_the_extreme_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a step above 53 one-bits would round up to 1, and the noise be infinite."""
    extreme = np.array([0.0, 1.0, 2.0**53 - 2, 2.0**53 - 1])
    monkeypatch.setattr(Coins, "raw", lambda *_: extreme)
    noise = Coins(987_654_321).gumbel(0, 4)  # no other test asks for these
    assert np.isfinite(noise).all()
    assert noise[0] == noise[1] < noise[2] == noise[3]


def test_every_bit_of_a_huge_seed_counts() -> None:
    """Seeds from 2**63 on pass through no float."""
    huge = [2**64 - 1, 2**64 - 2, 2**64 - 1025, 2**63, 2**63 + 1]
    drawn = {Coins(seed, choice).uniform(Role.DRAFT, 0, 0) for seed in huge for choice in (0, 1)}
    assert len(drawn) == 10


def test_the_largest_coin_is_below_one() -> None:
    assert (2**53 - 1) * 2.0**-53 == BELOW_ONE < 1.0
    assert torch.tensor(BELOW_ONE, dtype=torch.float64) < 1


@pytest.mark.parametrize("role", list(Role))
def test_uniformity_within_and_across_keys(role: Role) -> None:
    """Chi-square over 64 cells at a false-alarm rate of 1e-4 each, seeds fixed."""
    within = Coins(11).uniforms(role, 0, 0, 20_000)
    across = [Coins(11).uniform(role, round_, position) for round_ in range(20) for position in range(150)]
    choices = [Coins(11, choice).uniform(role, 0, 0) for choice in range(3000)]
    for values in (within, np.array(across), np.array(choices)):
        counts = np.bincount((values * 64).astype(int), minlength=64)
        assert chi_square(counts.tolist(), [1 / 64] * 64) > FALSE_ALARM


def test_neighbouring_keys_are_independent() -> None:
    """Pairs (position, position + 1) and (draft, accept) fill the unit square evenly: 8 x 8 cells."""
    coins = Coins(13)
    pairs = {
        "positions": [(coins.uniform(Role.ACCEPT, 0, i), coins.uniform(Role.ACCEPT, 0, i + 1)) for i in range(3000)],
        "roles": [(coins.uniform(Role.DRAFT, 0, i), coins.uniform(Role.ACCEPT, 0, i)) for i in range(3000)],
        "rounds": [(coins.uniform(Role.RECOVER, i, 4), coins.uniform(Role.RECOVER, i + 1, 4)) for i in range(3000)],
    }
    for values in pairs.values():
        cells = [int(a * 8) * 8 + int(b * 8) for a, b in values]
        assert chi_square(np.bincount(cells, minlength=64).tolist(), [1 / 64] * 64) > FALSE_ALARM


def test_gumbel_noise_has_its_law() -> None:
    noise = Coins(17).gumbel(0, 20_000)
    cells = (np.exp(-np.exp(-noise)) * 64).astype(int)  # its own distribution function makes it uniform
    assert chi_square(np.bincount(cells, minlength=64).tolist(), [1 / 64] * 64) > FALSE_ALARM
    assert math.isclose(float(noise.mean()), 0.5772, abs_tol=0.03)
