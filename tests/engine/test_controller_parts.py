"""What the controller is made of: cost curves, survival curves, and the division of drafts among rows."""

from __future__ import annotations

import itertools
import random

import pytest

from constrained_spec.engine.acceptance import RUNGS, Curve, DrafterRecord, RequestRecord, WholeRecord
from constrained_spec.engine.allocation import Option, allocate, idle
from constrained_spec.engine.costs import CostCurve, DraftCosts, Knot, StepCosts, Typical


def measured(points: dict[int, float], *, rows: int = 1, times: int = 5) -> StepCosts:
    costs = StepCosts()
    for number in range(times):
        for drafts, seconds in points.items():
            costs.add(number, rows, drafts, seconds)
    return costs


# ---- costs ----------------------------------------------------------------------------------------------------------


def test_outliers_do_not_move_a_measurement() -> None:
    value = Typical()
    for number, seconds in enumerate([9.0, 1.0, 1.1, 9.0, 1.2, 9.0, 1.1]):
        value.add(number, 4, seconds)
    assert 1.0 <= value.seconds <= 1.1
    assert value.drafts == 4


def test_old_measurements_are_forgotten() -> None:
    value = Typical()
    for number in range(20):
        value.add(number, 4, 1.0)
    value.add(2000, 4, 3.0)
    assert value.seconds == 3.0
    assert value.count == 1


def test_a_cost_curve_is_linear_between_and_behind_its_knots() -> None:
    curve = CostCurve([Knot(0, 1.0, 5), Knot(1, 2.0, 5), Knot(9, 2.8, 5)])
    assert [curve(x) for x in (0, 0.5, 1, 5, 9, 19)] == pytest.approx([1.0, 1.5, 2.0, 2.4, 2.8, 3.8])


def test_a_cost_curve_never_falls() -> None:
    draw = random.Random(1)
    for _ in range(200):
        knots = [Knot(x, draw.uniform(1, 3), draw.choice((0.1, 5.0))) for x in (0, 1, 2, 4, 8, 16)]
        curve = CostCurve(knots)
        values = [curve(x / 2) for x in range(80)]
        assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))
        least, most = min(k.seconds for k in knots), max(k.seconds for k in knots)
        assert all(least - 1e-12 <= curve(k.drafts) <= most + 1e-12 for k in knots)


def test_an_outlier_among_few_does_not_lift_the_base() -> None:
    costs = measured({0: 1.0, 8: 1.2})
    costs.add(9, 1, 3, 40.0)
    assert costs.curve(1)(0) == pytest.approx(1.0, rel=0.02)
    assert costs.curve(1)(3) < 1.5


def test_a_number_of_rows_that_was_never_measured_borrows_from_the_nearest() -> None:
    costs = measured({0: 1.0, 4: 1.4}, rows=4)
    for number in range(5):
        costs.add(number, 6, 0, 2.0)
        costs.add(number, 1, 4, 77.0)
    assert costs.curve(6)(4) == pytest.approx(2.4)
    assert costs.curve(5)(4) == pytest.approx(1.4)
    assert costs.curve(4)(4) == pytest.approx(1.4)


def test_without_any_measurement_only_proportions_are_known() -> None:
    curve = StepCosts().curve(3)
    assert curve.base > 0
    assert curve(10) > curve.base


def test_the_reach_grows_with_what_was_measured() -> None:
    assert StepCosts().reach == 4
    assert measured({0: 1.0, 12: 2.0}).reach == 24


def test_drafting_is_divided_among_drafters_by_what_they_cost_alone() -> None:
    costs = DraftCosts()
    for number in range(5):
        costs.add(number, {"cheap": (1, 0)}, 0.001)
        costs.add(number, {"dear": (2, 0)}, 0.002)
        costs.add(number, {"cheap": (1, 10)}, 0.002)
        costs.add(number, {"dear": (1, 10)}, 0.101)
    assert costs.of("cheap") == pytest.approx((0.001, 0.0001))
    assert costs.of("dear") == pytest.approx((0.001, 0.01))
    costs.add(9, {"cheap": (1, 10), "dear": (1, 10)}, 0.103)
    assert costs.of("dear") == pytest.approx((0.001, 0.01))
    costs.add(10, {"cheap": (1, 10), "new": (1, 10)}, 0.502)
    assert costs.of("new")[1] == pytest.approx(0.05)
    assert costs.of("unknown") == (0.0, 0.0)
    assert costs.names == ["cheap", "dear", "new"]


# ---- acceptance -----------------------------------------------------------------------------------------------------


def expected(chance: float, gamma: int) -> float:
    return sum(chance**i for i in range(1, gamma + 1))


def play(record: RequestRecord, draw: random.Random, chance: float, gamma: int, rounds: int) -> None:
    for _ in range(rounds):
        accepted = 0
        while accepted < gamma and draw.random() < chance:
            accepted += 1
        record.add(gamma, accepted, gamma, probe=False)


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.9])
def test_expected_acceptance_is_learned(chance: float) -> None:
    draw = random.Random(7)
    drafter = DrafterRecord()
    for _ in range(40):
        play(RequestRecord(drafter), draw, chance, 16, 50)
    for gamma, accepted in zip(RUNGS[:6], drafter.curve.accepted, strict=False):
        assert accepted == pytest.approx(expected(chance, gamma), rel=0.15, abs=0.15)


def test_short_blocks_say_nothing_against_later_places() -> None:
    record = RequestRecord(DrafterRecord())
    for _ in range(30):
        record.add(2, 2, 2, probe=False)
    assert record.curve.accepted[2] > 1.8
    # All that is known is good, so what is not known is expected to be.
    assert record.curve.accepted[4] > 6


def test_silence_counts_against_the_gain_and_not_as_cost() -> None:
    record = RequestRecord(DrafterRecord())
    for i in range(60):
        record.add(8 if i % 3 == 0 else 0, 8 if i % 3 == 0 else 0, 8, probe=False)
    curve = record.curve
    assert curve.silent == pytest.approx(2 / 3, abs=0.1)
    assert curve.accepted[4] == pytest.approx(8 / 3, rel=0.25)
    assert curve.drafts[4] == pytest.approx(8 / 3, rel=0.25)


def test_a_request_is_drawn_to_its_drafter_and_then_shows_itself() -> None:
    drafter = DrafterRecord()
    for _ in range(20):
        play(RequestRecord(drafter), random.Random(3), 0.9, 4, 10)
    record = RequestRecord(drafter)
    assert record.curve == drafter.curve
    for _ in range(20):
        record.add(4, 0, 4, probe=False)
    assert record.curve.accepted[1] < 0.15


def test_a_run_of_failures_that_cannot_be_chance_ends_an_old_belief() -> None:
    record = RequestRecord(DrafterRecord())
    for _ in range(100):
        record.add(4, 4, 4, probe=False)
    for _ in range(12):
        record.add(4, 0, 4, probe=False)
    assert record.curve.accepted[1] < 0.3


@pytest.mark.parametrize("limit", range(1, 65))
def test_points_end_at_the_limit(limit: int) -> None:
    points = DrafterRecord().curve.points(limit)
    gammas = [point[0] for point in points]
    assert gammas[-1] == limit
    assert gammas == sorted(set(gammas))
    assert set(gammas[:-1]) <= set(RUNGS)
    assert all(b[2] > a[2] and b[1] > a[1] for a, b in itertools.pairwise(points))
    assert DrafterRecord().curve.points(0) == []


def test_whole_blocks_are_known_by_their_means() -> None:
    """Blocks of two kinds: what they bring and take together counts, not what either would with fewer drafts."""
    record = WholeRecord(WholeRecord())
    assert not record.known
    for i in range(300):
        record.add(*((20, 2, 0.2) if i % 2 else (8, 7, 4.0)), probe=False)
    drafts, accepted, seconds = record.means
    assert record.known and (drafts, accepted, seconds) == pytest.approx((14, 4.5, 2.1), rel=0.1)


def test_a_request_is_drawn_to_the_whole_blocks_of_its_drafter() -> None:
    drafter = WholeRecord()
    for _ in range(200):
        WholeRecord(drafter).add(8, 7, 4.0, probe=False)
    fresh = WholeRecord(drafter)
    assert fresh.known and fresh.means == pytest.approx((8, 7, 4.0), rel=0.25)
    for _ in range(40):
        fresh.add(20, 0, 0.2, probe=False)
    assert fresh.means[1] < 2, "then it shows itself"
    other = WholeRecord(drafter)
    assert other.means[1] > 3, "and others are not judged by it alone"


def test_a_probe_that_succeeds_counts_for_more_than_what_was_known() -> None:
    records = [WholeRecord(WholeRecord()) for _ in range(2)]
    for record, probe in zip(records, (False, True), strict=True):
        for _ in range(100):
            record.add(8, 0, 1.0, probe=False)
        for _ in range(3):
            record.add(8, 8, 1.0, probe=probe)
    before, after = (record.means[1] for record in records)
    assert after > 2 * before


def test_all_or_nothing_within_what_is_measured() -> None:
    record = WholeRecord()
    option = Option.of(DrafterRecord().curve, 24, (0.0, 0.01))
    assert option.whole(100, record).points == option.points[-1:], "nothing is known: the curve's last point"
    record.add(10, 6, 3.0, probe=False)
    [(gamma, drafts, accepted)] = option.whole(100, record).points
    assert (gamma, drafts, accepted) == (24, *record.means[:2])
    assert option.whole(100, record).drafting * drafts == pytest.approx(record.means[2])
    short = option.whole(3, record)
    assert len(short.points) == 1 and short.points[0][1] <= 3


# ---- allocation -----------------------------------------------------------------------------------------------------


def sure(chance: float, drafting: float = 0.0, limit: int = 8) -> Option:
    """A drafter that always drafts all it may."""
    curve = Curve(tuple(float(g) for g in RUNGS), tuple(expected(chance, g) for g in RUNGS), 0.0)
    return Option.of(curve, limit, (0.0, drafting))


def brute_force(options: list[Option], step: CostCurve) -> float:
    best = 0.0
    for points in itertools.product(*[[None, *option.points] for option in options]):
        drafts = sum(point[1] for point in points if point)
        commits = len(options) + sum(point[2] for point in points if point)
        drafting = sum(o.drafting * point[1] for o, point in zip(options, points, strict=True) if point)
        best = max(best, commits / (step(drafts) + drafting))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_allocation_is_as_good_as_trying_all(seed: int) -> None:
    draw = random.Random(seed)
    options = [sure(draw.uniform(0, 0.95), draw.choice((0.0, 0.05))) for _ in range(draw.choice((1, 2, 4)))]
    leap, slope = draw.choice((0.0, 0.5, 2.0)), draw.choice((0.01, 0.1, 1.0))
    step = CostCurve([Knot(0, 1.0, 9), Knot(1, 1.0 + leap + slope, 9), Knot(64, 1.0 + leap + 64 * slope, 9)])
    best, fullest = allocate(options, idle(len(options)), step, reach=1000)
    assert best.load.rate(step) >= 0.985 * brute_force(options, step)
    assert fullest.gammas == [8] * len(options)


def test_all_rows_cross_a_cliff_together_that_none_would_cross_alone() -> None:
    step = CostCurve([Knot(0, 1.0, 9), Knot(1, 2.0, 9), Knot(64, 2.1, 9)])
    alone, _ = allocate([sure(0.9, limit=2)], idle(8), step, reach=1000)
    together, _ = allocate([sure(0.9, limit=2)] * 8, idle(8), step, reach=1000)
    assert alone.gammas == [0]
    assert together.gammas == [2] * 8


def test_an_allocation_stays_within_reach() -> None:
    step = CostCurve([Knot(0, 1.0, 9), Knot(8, 1.0, 9)])
    for reach in (1, 3, 8, 17):
        best, fullest = allocate([sure(0.9)] * 4, idle(4), step, reach)
        assert sum(best.gammas) <= reach
        assert sum(fullest.gammas) <= reach
        assert any(best.gammas)
