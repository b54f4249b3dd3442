"""Top-k, top-p and min-p: which ids stay, ties included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from constrained_spec.config import Sampling
from constrained_spec.processors.base import Position
from constrained_spec.processors.truncation import min_p, temperature, top_k, top_p
from constrained_spec.types import History

NEVER = float("-inf")


def places(*samplings: Sampling) -> list[Position]:
    h = History([1])
    return [Position(h, 1, s) for s in samplings]


def kept(logits: Tensor) -> list[list[int]]:
    return [row.nonzero().squeeze(1).tolist() for row in (logits > NEVER)]


def test_top_k_keeps_every_tie_with_the_kth() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]] * 5)
    top_k(logits, places(*(Sampling(temperature=1, top_k=k) for k in (1, 2, 3, 4, 0))))
    assert kept(logits) == [[1], [1, 2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_top_k_with_fewer_legal_ids_than_k() -> None:
    logits = torch.tensor([[1.0, NEVER, 2.0, NEVER, NEVER]])
    top_k(logits, places(Sampling(temperature=1, top_k=4)))
    assert logits.tolist() == [[1.0, NEVER, 2.0, NEVER, NEVER]]


@pytest.mark.parametrize(
    ("mass", "ids"), [(1e-300, [3]), (0.49, [3]), (0.5, [3]), (0.51, [1, 3]), (0.74, [1, 3]), (0.76, [0, 1, 3])]
)
def test_top_p_is_the_smallest_set_that_reaches_the_mass(mass: float, ids: list[int]) -> None:
    logits = torch.tensor([[0.125, 0.25, 0.125, 0.5]]).log()
    top_p(logits, places(Sampling(temperature=1, top_p=mass)))
    assert kept(logits) == [ids]  # of the two ids at .125 the lower one stays


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, NEVER]), min_size=12, max_size=12), min_size=1, max_size=3),
    st.floats(0.01, 0.999),
)
def test_top_p_against_sorting_by_hand(rows: list[list[float]], mass: float) -> None:
    rows = [[1.0, *row[1:]] for row in rows]
    logits = torch.tensor(rows)
    p = logits.softmax(-1).double()
    top_p(logits, places(*[Sampling(temperature=1, top_p=mass)] * len(rows)))
    for row, q, left in zip(rows, p.tolist(), kept(logits), strict=True):
        order = sorted(range(12), key=lambda i: (-row[i], i))
        n = next((n for n in range(1, 13) if sum(q[i] for i in order[:n]) >= mass), 12)
        assert left == sorted(i for i in order[:n] if row[i] > NEVER)


@pytest.mark.parametrize("spread", [0.0, 0.02, 1.0, 8.0])
def test_top_p_on_a_large_vocabulary_equals_a_full_sort(spread: float) -> None:
    """Flat rows need more ids than the first shortcuts look at."""
    logits = torch.randn(2, 10_000, generator=torch.Generator().manual_seed(3)) * spread
    p = logits.softmax(-1).double()
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    n = 1 + (p.gather(1, order).cumsum(-1)[:, :-1] < 0.9).sum(-1)
    expected = [sorted(order[i, : int(n[i])].tolist()) for i in range(2)]
    top_p(logits, places(*[Sampling(temperature=1, top_p=0.9)] * 2))
    got = kept(logits)
    # float32 probabilities summed in another order may move the border by one id.
    assert all(len(set(a) ^ set(b)) <= 1 for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize(("share", "ids"), [(0.05, [0, 1, 2]), (0.3, [0, 1]), (0.6, [0, 1]), (0.7, [0]), (1.0, [0])])
def test_min_p_is_a_share_of_the_best(share: float, ids: list[int]) -> None:
    logits = torch.tensor([[0.55, 0.35, 0.1]]).log()
    min_p(logits, places(Sampling(temperature=1, min_p=share)))
    assert kept(logits) == [ids]


def test_min_p_of_one_keeps_every_maximum() -> None:
    logits = torch.tensor([[2.0, 1.0, 2.0]])
    min_p(logits, places(Sampling(temperature=1, min_p=1.0)))
    assert kept(logits) == [[0, 2]]


def test_each_row_has_its_own_parameters_and_greedy_rows_are_left_alone() -> None:
    start = torch.randn(6, 30, generator=torch.Generator().manual_seed(5))
    samplings = [
        Sampling(temperature=0, top_k=1, top_p=0.1, min_p=0.9),
        Sampling(temperature=2, top_k=3),
        Sampling(temperature=1),
        Sampling(temperature=0.5, top_p=0.4),
        Sampling(temperature=0, top_k=2),
        Sampling(temperature=1, min_p=0.5),
    ]
    together = start.clone()
    for step in (temperature, top_k, top_p, min_p):
        step(together, places(*samplings))
    for i, s in enumerate(samplings):
        alone = start[i : i + 1].clone()
        for step in (temperature, top_k, top_p, min_p):
            step(alone, places(s))
        assert torch.equal(together[i], alone[0])
    assert torch.equal(together[[0, 2, 4]], start[[0, 2, 4]])
