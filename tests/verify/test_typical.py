"""Typical acceptance is what it says, and not the target's law."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from constrained_spec.verify import World, distance, law, target_law, typical, typical_threshold


def test_the_threshold() -> None:
    even, certain = torch.full((4,), 0.25), torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert float(typical_threshold(even)) == pytest.approx(0.09 / 4)
    assert float(typical_threshold(certain)) == pytest.approx(0.09)
    assert float(typical_threshold(torch.full((1000,), 1e-3))) == pytest.approx(0.09 / 1000)
    assert math.isfinite(float(typical_threshold(torch.tensor([0.5, 0.5, 0.0]))))


def test_it_keeps_what_is_likely_and_draws_from_the_target_at_the_cut() -> None:
    p = torch.tensor([[0.9, 0.1, 0.0], [0.02, 0.0, 0.98], [1.0, 0.0, 0.0]])
    verdict = typical(
        p, torch.tensor([0]), torch.tensor([[0, 0]]), torch.tensor([2]), torch.tensor([0.5], dtype=torch.float64)
    )
    assert (int(verdict.accepted), int(verdict.token)) == (1, 2)
    verdict = typical(
        p, torch.tensor([0]), torch.zeros(1, 0, dtype=torch.long), torch.tensor([0]), torch.tensor([0.95]).double()
    )
    assert (int(verdict.accepted), int(verdict.token)) == (0, 1)


def test_its_law_is_another_one(make_constant_world: Callable[[str], World]) -> None:
    world = make_constant_world("worked")
    got = law(world, "typical", 2, 2)
    assert sum(got.values()) == pytest.approx(1)
    assert distance(got, target_law(world, 2)) > 0.02
