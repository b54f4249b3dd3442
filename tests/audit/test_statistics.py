"""The audit's tests of frequencies: right where the answer is known, and as powerful as they say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from constrained_spec.audit.statistics import detectable_tv, goodness_of_fit, holm, tv_interval

LAW = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}


def test_frequencies_that_are_the_law_fit_perfectly() -> None:
    fit = goodness_of_fit({"a": 500, "b": 300, "c": 150, "d": 50}, LAW)
    assert fit.statistic == pytest.approx(0, abs=1e-9) and fit.p_value == pytest.approx(1)
    assert fit.tv == pytest.approx(0) and fit.tv_low == 0 and fit.cells == 4


def test_the_statistic_is_the_likelihood_ratio() -> None:
    seen = {"a": 60, "b": 40}
    wanted = 2 * (60 * np.log(60 / 50) + 40 * np.log(40 / 50))
    fit = goodness_of_fit(seen, {"a": 0.5, "b": 0.5})
    assert fit.statistic == pytest.approx(wanted)
    assert fit.p_value == pytest.approx(chi2.sf(wanted, 1))
    assert fit.tv == pytest.approx(0.1)


def test_one_impossible_output_refutes_the_law() -> None:
    fit = goodness_of_fit({"a": 999, "x": 1}, {"a": 1.0})
    assert fit.impossible == 1 and fit.p_value == 0


def test_rare_outputs_are_one_cell() -> None:
    law = dict.fromkeys(map(str, range(500)), 0.001) | {"rest": 0.5}
    fit = goodness_of_fit({"rest": 50, "3": 25, "4": 25}, law)
    assert fit.cells == 2 and fit.p_value == pytest.approx(1)


def test_a_law_of_one_output_tests_nothing() -> None:
    assert goodness_of_fit({"a": 10}, {"a": 1.0}).p_value == 1
    assert detectable_tv(10_000, 1, 1e-3) == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_the_stated_power_is_there() -> None:
    """Laws at the stated total variation, of the shape that is hardest to see. Seed fixed; 2,000 trials: a true power
    of 0.95 falls below 0.93 with chance 4e-5."""
    n, alpha = 1000, 1e-3
    tv = detectable_tv(n, 4, alpha)
    rng = np.random.default_rng(7)
    p = np.full(4, 0.25)
    biased = p + np.array([1, 1, -1, -1]) * tv / 2
    found = 0
    for row in rng.multinomial(n, biased, size=2000):
        found += goodness_of_fit(dict(enumerate(row.tolist())), dict(enumerate(p.tolist()))).p_value < alpha
    assert found / 2000 > 0.93


def test_the_interval_holds_the_truth() -> None:
    """Of 500 samples of a law at total variation 0.1, fewer than one in twenty may miss it; this bound misses none."""
    rng = np.random.default_rng(3)
    truth = np.array([0.6, 0.4])
    missed = 0
    for row in rng.multinomial(300, truth, size=500):
        fit = goodness_of_fit({"a": int(row[0]), "b": int(row[1])}, {"a": 0.5, "b": 0.5})
        missed += not fit.tv_low <= 0.1 <= fit.tv_high
    assert missed == 0


def test_more_samples_narrow_everything() -> None:
    few, many = tv_interval(0.1, 100, 5), tv_interval(0.1, 10_000, 5)
    assert few[0] <= many[0] <= 0.1 <= many[1] < few[1]
    assert detectable_tv(10_000, 5, 1e-3) == pytest.approx(detectable_tv(100, 5, 1e-3) / 10)


def test_a_sampled_law_is_not_refuted() -> None:
    """False-alarm rate 1e-3 per trial; with this seed none of 200 trials is below it by chance."""
    rng = np.random.default_rng(1)
    keys = list(LAW)
    for _ in range(200):
        seen = Counter(keys[i] for i in rng.choice(4, size=300, p=list(LAW.values())))
        assert goodness_of_fit(seen, LAW).p_value > 1e-3
