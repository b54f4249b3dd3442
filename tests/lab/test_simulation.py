"""The world of three tokens: the figures, and that sampled and enumerated laws are of one piece."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from constrained_spec.lab import simulate
from constrained_spec.lab.simulate import EXACT_BELOW, WRONG_ABOVE, exact_law, frequencies, full_p_repair, speculative
from constrained_spec.lab.simulate import target_only as baseline
from constrained_spec.lab.world import DRAFT, GAMMA, LENGTH, TARGET, VOCAB, WORLD, rows
from constrained_spec.verify import Coupling, chi_square, coupling, distance, law, target_law, total_variation

FEWER = 20_000


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return simulate()


def test_the_first_step_is_the_worked_example(figures: dict[str, Any]) -> None:
    step = figures["first_step"]
    assert (step["total_variation"], step["acceptance"], step["residual"]) == (0.2, 0.8, [0.0, 1.0, 0.0])


def test_the_exact_decoder_has_the_targets_law(figures: dict[str, Any]) -> None:
    found = figures["total_variation"]["baseline_exact"]
    assert found["exact"] == 0.0
    assert found["sampled"] < EXACT_BELOW
    assert distance(law(WORLD, "coupling", GAMMA, LENGTH), target_law(WORLD, LENGTH)) < 1e-12


def test_the_wrong_repair_is_seen(figures: dict[str, Any]) -> None:
    found = figures["total_variation"]["baseline_wrong_repair"]
    assert found["exact"] == pytest.approx(0.14, abs=1e-9)
    assert found["sampled"] > WRONG_ABOVE
    assert found["sampled"] == pytest.approx(0.139, abs=0.006)


def test_draws_of_one_uniform_law(figures: dict[str, Any]) -> None:
    found = figures["identical_uniform"]
    assert found["independent_matches"]["exact"] == 0.01
    assert found["independent_matches"]["sampled"] == pytest.approx(0.01, abs=0.003)  # four standard errors
    assert found["coupled_acceptance"] == {"sampled": 1.0, "exact": 1.0}


def test_the_speed_model(figures: dict[str, Any]) -> None:
    assert (figures["speed_model"]["expected_tokens"], figures["speed_model"]["speedup"]) == (3.23310, 2.44008)


def test_the_figures_are_json_and_the_same_again(figures: dict[str, Any]) -> None:
    assert json.loads(json.dumps(figures)) == figures
    again = simulate(trials=1000)
    assert again == simulate(trials=1000)
    assert again["first_step"] == figures["first_step"]


@pytest.mark.parametrize(("verifier", "name"), [(coupling, "coupling"), (full_p_repair, "full-p-repair")])
def test_sampled_texts_have_the_enumerated_law(verifier: Coupling, name: str) -> None:
    """False-alarm rate 1e-4 each."""
    counts = (frequencies(speculative(verifier, FEWER, seed=5)) * FEWER).round().long().tolist()
    assert chi_square(counts, exact_law(name).tolist()) > 1e-4


def test_the_same_sample_tells_the_two_apart() -> None:
    counts = (frequencies(speculative(full_p_repair, FEWER, seed=6)) * FEWER).round().long().tolist()
    assert chi_square(counts, exact_law("coupling").tolist()) < 1e-9


def test_the_baseline_has_the_targets_law() -> None:
    """False-alarm rate 1e-4."""
    counts = (frequencies(baseline(FEWER, seed=7)) * FEWER).round().long().tolist()
    assert chi_square(counts, exact_law("coupling").tolist()) > 1e-4


@pytest.mark.parametrize("table", [TARGET, DRAFT])
def test_the_tables_are_distributions(table: dict[tuple[int, ...], tuple[float, ...]]) -> None:
    assert torch.allclose(rows(table).sum(1), torch.ones(VOCAB + 1, dtype=torch.float64), atol=1e-15)


def test_later_steps_are_off_by_a_twentieth() -> None:
    assert total_variation(rows(TARGET), rows(DRAFT)).tolist() == pytest.approx([0.05, 0.05, 0.05, 0.2])
