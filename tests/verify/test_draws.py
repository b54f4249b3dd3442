"""Draws by inversion: exact cells, edges of the unit interval, no token of weight zero."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.verify import coin_grid, inverse_cdf

BELOW_ONE = 1 - 2.0**-53


def draw(weights: list[float], u: float, dtype: torch.dtype = torch.float64) -> int:
    return int(inverse_cdf(torch.tensor([weights], dtype=dtype), torch.tensor([u], dtype=torch.float64)))


def test_cells_are_half_open() -> None:
    assert [draw([0.25, 0.5, 0.25], u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, BELOW_ONE)] == [0, 0, 1, 1, 2, 2]


def test_zero_weights_at_the_edges_are_never_drawn() -> None:
    assert draw([0.0, 0.0, 1.0, 0.0], 0.0) == 2
    assert draw([0.0, 0.5, 0.0, 0.5, 0.0], 0.5) == 3
    assert draw([0.0, 0.5, 0.0, 0.5, 0.0], BELOW_ONE) == 3


def test_a_coin_that_rounded_up_to_one_still_draws() -> None:
    assert draw([0.5, 0.5, 0.0], 1.0) == 1
    # 3 * (1 - 2**-53) rounds to 3: the target reaches the total although the coin is below 1.
    assert draw([1.0, 1.0, 1.0, 0.0], BELOW_ONE) == 2


def test_a_row_without_weight_yields_zero() -> None:
    assert draw([0.0, 0.0], 0.7) == 0


def test_sums_are_float64() -> None:
    # In float32 the cumulative sum stops growing at 2**24 and the last tokens would never be drawn.
    weights = torch.ones(1, 2**24 + 8)
    assert int(inverse_cdf(weights, torch.tensor([BELOW_ONE], dtype=torch.float64))) == 2**24 + 7


def test_integral_over_the_grid_is_the_weights() -> None:
    middles, widths = coin_grid(7)
    assert math.isclose(float(widths.sum()), 1)
    weights = torch.tensor([2.0, 0.0, 1.0, 4.0])  # over 7
    drawn = inverse_cdf(weights.expand(len(middles), -1), middles)
    law = torch.zeros(4, dtype=torch.float64).index_add(0, drawn, widths)
    assert torch.allclose(law * 7, weights.double(), atol=1e-12)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1e-30, 0.1, 1.0, 3.0]), min_size=4, max_size=4), min_size=1, max_size=5),
    st.lists(st.floats(0, BELOW_ONE), min_size=5, max_size=5),
)
def test_batches_are_rows_and_weights_are_positive(weights: list[list[float]], coins: list[float]) -> None:
    u = coins[: len(weights)]
    drawn = inverse_cdf(torch.tensor(weights), torch.tensor(u, dtype=torch.float64)).tolist()
    assert drawn == [draw(w, c, torch.float32) for w, c in zip(weights, u, strict=True)]
    assert all(w[i] > 0 for w, i in zip(weights, drawn, strict=True) if any(w))


def test_scale_does_not_matter() -> None:
    w = [0.1, 0.2, 0.3, 0.4]
    for u in (0.05, 0.15, 0.45, 0.85):
        assert draw(w, u) == draw([x * 1e-200 for x in w], u) == draw([x * 1e200 for x in w], u)
