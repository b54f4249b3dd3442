"""The worked numbers of the literature, and the edges of the formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.errors import ConfigError
from constrained_spec.verify import (
    acceptance,
    estimated_speedup,
    excess,
    expected_committed,
    overlap,
    residual,
    total_variation,
)

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)


def test_worked_example() -> None:
    assert float(total_variation(P, Q)) == pytest.approx(0.20, abs=1e-15)
    assert float(overlap(P, Q)) == pytest.approx(0.80, abs=1e-15)
    assert residual(P, Q).tolist() == [0.0, 1.0, 0.0]
    assert float(acceptance(P, Q, torch.tensor(0))) == pytest.approx(5 / 6, abs=1e-15)
    assert float(acceptance(P, Q, torch.tensor(1))) == 1.0
    assert float(acceptance(P, Q, torch.tensor(2))) == pytest.approx(2 / 3, abs=1e-15)


def test_repair_from_p_on_the_worked_example() -> None:
    kept = torch.minimum(P, Q)
    wrong = kept + (1 - kept.sum()) * P
    assert wrong.tolist() == pytest.approx([0.60, 0.16, 0.24], abs=1e-15)
    right = kept + (1 - kept.sum()) * residual(P, Q)
    assert right.tolist() == pytest.approx(P.tolist(), abs=1e-15)


def test_residual_of_identical_rows_is_p() -> None:
    rows = torch.stack((P, Q))
    assert torch.equal(residual(rows, rows), rows)
    assert torch.equal(residual(P, P + 1e-12), P)  # p <= q everywhere: only rounding can do that
    assert torch.isfinite(residual(torch.zeros(3), torch.zeros(3))).all()


def test_residual_of_a_guess_is_p_without_it() -> None:
    guess = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert residual(P, guess).tolist() == pytest.approx([5 / 7, 0.0, 2 / 7], abs=1e-15)


def test_excess_of_a_broken_q_is_p() -> None:
    assert torch.equal(excess(P, torch.full((3,), torch.nan, dtype=torch.float64)), P)


def test_acceptance_where_q_is_zero_is_that_of_a_guess() -> None:
    q = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert float(acceptance(P, q, torch.tensor(0))) == 0.5
    assert float(acceptance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]), torch.tensor(0))) == 0.0


def rows(vocab: int) -> st.SearchStrategy[torch.Tensor]:
    weights = st.lists(st.integers(0, 20), min_size=vocab, max_size=vocab).filter(any)
    return weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@settings(deadline=None)
@given(rows(5), rows(5))
def test_identities(p: torch.Tensor, q: torch.Tensor) -> None:
    assert float(overlap(p, q) + total_variation(p, q)) == pytest.approx(1)
    assert float(total_variation(p, q)) == pytest.approx(float((p - q).clamp(min=0).sum()))
    keep = acceptance(p.expand(5, 5), q.expand(5, 5), torch.arange(5))
    assert float((q * keep).sum()) == pytest.approx(float(overlap(p, q)))
    total = q * keep + (1 - (q * keep).sum()) * residual(p, q)
    assert torch.allclose(total, p, atol=1e-12)


def test_batches_are_rows() -> None:
    p, q = torch.stack((P, Q)), torch.stack((Q, P))
    for i in range(2):
        assert torch.equal(residual(p, q)[i], residual(p[i], q[i]))
        assert torch.equal(overlap(p, q)[i], overlap(p[i], q[i]))


def test_expected_committed() -> None:
    assert round(expected_committed(0.78, 4), 5) == 3.23310
    assert expected_committed(0.78, 4) == pytest.approx((1 - 0.78**5) / (1 - 0.78), rel=1e-14)
    assert expected_committed(1.0, 7) == 8.0
    assert expected_committed(0.0, 7) == 1.0
    assert expected_committed(0.5, 0) == 1.0
    assert expected_committed(1 - 1e-15, 7) == pytest.approx(8.0, rel=1e-13)


def test_estimated_speedup() -> None:
    assert round(estimated_speedup(0.78, 4, baseline=20, draft=1, verify=21, overhead=1.5), 5) == 2.44008
    losing = estimated_speedup(0.55, 4, baseline=4.5, draft=0.9, verify=9.5, overhead=1)
    assert losing == pytest.approx(0.67, abs=0.005)
    assert losing == pytest.approx(2.11038125 * 4.5 / 14.1)
    assert estimated_speedup(0.5, 0, baseline=3, draft=1, verify=3) == 1.0


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_outside_the_unit_interval(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        expected_committed(alpha, 4)


def test_refused_costs() -> None:
    with pytest.raises(ConfigError, match="gamma"):
        expected_committed(0.5, -1)
    with pytest.raises(ConfigError, match="draft"):
        estimated_speedup(0.5, 4, baseline=1, draft=-1, verify=1)
    with pytest.raises(ConfigError, match="take some time"):
        estimated_speedup(0.5, 4, baseline=1, draft=0, verify=0)
    with pytest.raises(ConfigError, match="take some time"):
        estimated_speedup(0.5, 4, baseline=0, draft=1, verify=1)
