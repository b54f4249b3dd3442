"""Break-even and the best draft length, and the two workloads that the page starts with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_spec.errors import ConfigError
from constrained_spec.lab import PRESETS, Costs, Preset, best_gamma, break_even, end_to_end, speedup
from constrained_spec.lab.speed import MAX_GAMMA

ASSISTANT, SATURATED = PRESETS
times = st.floats(0.1, 50)
costs = st.builds(Costs, times, st.floats(0, 10), times, st.floats(0, 5), st.floats(0, 5))


def whole(preset: Preset) -> float:
    return end_to_end(preset.alpha, preset.gamma, preset.costs, prefill=preset.prefill, length=preset.length).speedup


def test_a_code_assistant_gains() -> None:
    assert speedup(ASSISTANT.alpha, ASSISTANT.gamma, ASSISTANT.costs) == pytest.approx(2.44008, abs=5e-6)
    assert round(whole(ASSISTANT), 2) == 2.09
    assert best_gamma(ASSISTANT.alpha, ASSISTANT.costs) > 0


def test_a_saturated_service_loses_and_no_draft_length_helps() -> None:
    assert round(speedup(SATURATED.alpha, SATURATED.gamma, SATURATED.costs), 2) == 0.67
    assert round(whole(SATURATED), 2) == 0.67
    assert best_gamma(SATURATED.alpha, SATURATED.costs) == 0
    even = break_even(SATURATED.gamma, SATURATED.costs)
    assert even is not None
    assert even > SATURATED.alpha


def test_prefill_dilutes_the_gain_and_never_turns_it() -> None:
    times = [
        end_to_end(0.78, 4, ASSISTANT.costs, prefill=prefill, length=160).speedup for prefill in (0, 100, 1000, 100_000)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(2.44008, abs=5e-6)
    assert times[-1] > 1


@given(costs=costs, gamma=st.integers(1, MAX_GAMMA))
def test_break_even_is_where_the_speed_up_is_one(costs: Costs, gamma: int) -> None:
    even = break_even(gamma, costs)
    if even is None:
        assert speedup(1.0, gamma, costs) < 1
        return
    assert speedup(even, gamma, costs) >= 1
    if even > 1e-9:
        assert speedup(even * (1 - 1e-9) - 1e-12, gamma, costs) < 1 or speedup(0.0, gamma, costs) >= 1


@given(costs=costs, alpha=st.floats(0, 1))
def test_the_best_draft_length_is_the_shortest_of_the_quickest(costs: Costs, alpha: float) -> None:
    found = [speedup(alpha, gamma, costs) for gamma in range(MAX_GAMMA + 1)]
    assert best_gamma(alpha, costs) == found.index(max(found))


def test_no_acceptance_pays_where_a_round_costs_more_than_its_tokens() -> None:
    assert break_even(2, Costs(baseline=1, draft=1, verify=2)) is None


def test_without_drafts_nothing_changes() -> None:
    assert speedup(0.5, 0, replace(ASSISTANT.costs, overhead=1000)) == 1.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"gamma": -1}, "gamma"),
        ({"slope": -1.0}, "slope"),
        ({"baseline": 0.0}, "baseline"),
        ({"prefill": -1.0}, "prefill"),
        ({"length": 0}, "length"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, float], named: str) -> None:
    given = {"alpha": 0.5, "gamma": 2, "slope": 0.0, "baseline": 20.0, "prefill": 1.0, "length": 1, **change}
    costs = Costs(given["baseline"], 1, 21, slope=given["slope"])
    with pytest.raises(ConfigError) as caught:
        end_to_end(given["alpha"], int(given["gamma"]), costs, prefill=given["prefill"], length=int(given["length"]))
    assert caught.value.param == named
