"""Ragged batches: every sequence gets the verdict it would get alone, whatever its neighbours and its padding are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from constrained_spec.verify import Verdict, coupling, greedy_choices, gumbel_choices, inverse_cdf, match

VOCAB = 5


@dataclass(frozen=True, slots=True)
class Batch:
    p: Tensor
    first: Tensor
    draft: Tensor
    lengths: Tensor
    q: Tensor | None
    q_row: Tensor
    accept_u: Tensor
    draw_u: Tensor

    def verdict(self) -> Verdict:
        return coupling(self.p, self.first, self.draft, self.lengths, self.q, self.q_row, self.accept_u, self.draw_u)


def random_batch(seed: int, lengths: list[int], pad: int, with_q: bool, dtype: torch.dtype) -> Batch:
    """Flat rows in shuffled order; places behind a length hold noise: wrong ids, coins and rows of q."""
    g = torch.Generator().manual_seed(seed)
    places = max(lengths, default=0) + pad

    def rows(n: int) -> Tensor:
        weights = torch.rand(n, VOCAB, generator=g) ** 4 * (torch.rand(n, VOCAB, generator=g) < 0.7)
        weights[torch.arange(n), torch.randint(VOCAB, (n,), generator=g)] += 0.1
        return (weights / weights.sum(1, keepdim=True)).to(dtype)

    order = torch.randperm(len(lengths), generator=g).tolist()
    first, at = [0] * len(lengths), 0
    for b in order:
        first[b] = at
        at += lengths[b] + 1
    p = rows(at)
    q = rows(6) if with_q else None
    size = (len(lengths), places)
    q_row = torch.randint(-1, 6 if with_q else 0, size, generator=g)
    draft = torch.randint(VOCAB, size, generator=g)
    inside = torch.arange(places) < torch.tensor(lengths).unsqueeze(1)
    return Batch(
        p,
        torch.tensor(first),
        torch.where(inside, draft, VOCAB + 1000),
        torch.tensor(lengths),
        q,
        torch.where(inside, q_row, 0 if with_q else -1),
        torch.where(inside, torch.rand(size, generator=g, dtype=torch.float64) ** 2, 0.0),
        torch.rand(len(lengths), generator=g, dtype=torch.float64),
    )


batches = st.builds(
    random_batch,
    st.integers(0, 2**32),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)


def alone(batch: Batch, b: int) -> Batch:
    """Sequence ``b`` by itself: its rows cut out, nothing padded."""
    n, start = int(batch.lengths[b]), int(batch.first[b])
    pick = slice(b, b + 1)
    return Batch(
        batch.p[start : start + n + 1],
        torch.zeros(1, dtype=torch.long),
        batch.draft[pick, :n],
        batch.lengths[pick],
        batch.q,
        batch.q_row[pick, :n],
        batch.accept_u[pick, :n],
        batch.draw_u[pick],
    )


@given(batches)
@settings(max_examples=200, deadline=None)
def test_a_sequence_does_not_feel_its_batch(batch: Batch) -> None:
    verdict = batch.verdict()
    assert verdict.accepted.dtype == verdict.token.dtype == torch.int64
    for b in range(len(batch.lengths)):
        single = alone(batch, b).verdict()
        assert (int(single.accepted), int(single.token)) == (int(verdict.accepted[b]), int(verdict.token[b]))


def reference(batch: Batch, b: int) -> tuple[int, int]:
    """The algorithm as one reads it in the papers, one sequence, plain floats."""
    n, start = int(batch.lengths[b]), int(batch.first[b])
    p = batch.p.double()
    weights = None
    accepted = 0
    while accepted < n and weights is None:
        x, row = int(batch.draft[b, accepted]), int(batch.q_row[b, accepted])
        q = torch.zeros(VOCAB, dtype=torch.float64)
        q[x] = 1.0
        if row >= 0 and batch.q is not None and float(batch.q[row, x]) > 0:
            q = batch.q[row].double()
        if float(batch.accept_u[b, accepted]) * float(q[x]) < float(p[start + accepted, x]):
            accepted += 1
        else:
            weights = (p[start + accepted] - q).clamp(min=0)
            weights = weights if float(weights.sum()) > 0 else p[start + accepted]
    weights = p[start + n] if weights is None else weights
    return accepted, int(inverse_cdf(weights.unsqueeze(0), batch.draw_u[b : b + 1]))


@given(batches)
@settings(max_examples=200, deadline=None)
def test_equals_the_plain_algorithm(batch: Batch) -> None:
    verdict = batch.verdict()
    for b in range(len(batch.lengths)):
        assert reference(batch, b) == (int(verdict.accepted[b]), int(verdict.token[b]))


@given(batches)
@settings(max_examples=100, deadline=None)
def test_no_impossible_token_is_committed(batch: Batch) -> None:
    verdict = batch.verdict()
    for b in range(len(batch.lengths)):
        n = int(verdict.accepted[b])
        run = [*batch.draft[b, :n].tolist(), int(verdict.token[b])]
        assert all(float(batch.p[int(batch.first[b]) + j, t]) > 0 for j, t in enumerate(run))


@given(batches)
@settings(max_examples=100, deadline=None)
def test_match_does_not_feel_its_batch(batch: Batch) -> None:
    choices = greedy_choices(batch.p)
    verdict = match(choices, batch.first, batch.draft, batch.lengths)
    for b in range(len(batch.lengths)):
        n, start = int(batch.lengths[b]), int(batch.first[b])
        own = choices[start : start + n + 1].tolist()
        kept = 0
        while kept < n and own[kept] == int(batch.draft[b, kept]):
            kept += 1
        assert (int(verdict.accepted[b]), int(verdict.token[b])) == (kept, own[kept])


def test_no_places_at_all_is_plain_sampling() -> None:
    p = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    empty = torch.zeros(2, 0, dtype=torch.long)
    first, lengths = torch.tensor([1, 0]), torch.zeros(2, dtype=torch.long)
    u = torch.tensor([0.5, 0.2], dtype=torch.float64)
    verdict = coupling(p, first, empty, lengths, None, empty, empty.double(), u)
    assert verdict.accepted.tolist() == [0, 0]
    assert verdict.token.tolist() == [0, 0]
    assert match(torch.tensor([5, 7]), first, empty, lengths).token.tolist() == [7, 5]


def test_an_empty_batch_and_an_empty_q() -> None:
    none = torch.zeros(0, dtype=torch.long)
    wide = torch.zeros(0, 3, dtype=torch.long)
    verdict = coupling(torch.zeros(0, 4), none, wide, none, None, wide, wide.double(), none.double())
    assert verdict.accepted.shape == verdict.token.shape == (0,)
    p, u = torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0.4], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.long)
    verdict = coupling(p, one - 1, one.view(1, 1) - 1, one, torch.zeros(0, 2), -one.view(1, 1), u.view(1, 1), u)
    assert (verdict.accepted.tolist(), verdict.token.tolist()) == ([1], [1])


def test_no_value_is_read_back_from_the_device() -> None:
    """Tensors on the meta device have no values: reading one raises, and so does mixing in a CPU tensor of any size."""
    with torch.device("meta"):
        p, q, u = torch.zeros(9, 4), torch.zeros(2, 4), torch.zeros(3, 2, dtype=torch.float64)
        first = lengths = torch.zeros(3, dtype=torch.long)
        draft = torch.zeros(3, 2, dtype=torch.long)
    for rows in (q, None):
        verdict = coupling(p, first, draft, lengths, rows, draft, u, u[:, 0])
        assert verdict.token.device.type == "meta"
    assert match(greedy_choices(p), first, draft, lengths).token.shape == (3,)
    assert gumbel_choices(p, list(p.double())).shape == (9,)


def test_inputs_stay_as_they_are() -> None:
    batch = random_batch(5, [2, 0, 3], 1, True, torch.float32)
    assert batch.q is not None
    before = [t.clone() for t in (batch.p, batch.draft, batch.q, batch.q_row, batch.accept_u)]
    batch.verdict()
    for old, new in zip(before, (batch.p, batch.draft, batch.q, batch.q_row, batch.accept_u), strict=True):
        assert torch.equal(old, new)


def test_coins_at_the_ends_of_the_interval() -> None:
    """u = 0 keeps every possible draft and no impossible one; q(x) = p(x) keeps up to the largest coin below 1."""
    p = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    first, lengths = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.long)
    row = torch.zeros(1, 1, dtype=torch.long)
    q = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for draft, q_row, u, kept in ((1, 0, 1 - 2.0**-53, 1), (0, 1, 0.0, 0), (0, -1, 0.0, 0), (1, -1, 1 - 2.0**-53, 1)):
        coin = torch.tensor([[u]], dtype=torch.float64)
        verdict = coupling(p, first, row + draft, lengths, q, row + q_row, coin, coin[0])
        assert verdict.accepted.tolist() == [kept]
        assert verdict.token.tolist() == [1]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert greedy_choices(torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])).tolist() == [1, 0]


def test_gumbel_never_chooses_the_impossible() -> None:
    p = torch.tensor([[0.0, 1e-30, 0.0], [0.0, 0.0, 0.0]])
    noise = torch.tensor([[40.0, -4.0, 40.0], [40.0, -4.0, 40.0]], dtype=torch.float64)
    assert gumbel_choices(p.log(), list(noise)).tolist() == [1, 0]


def test_gumbel_is_the_largest_sum_in_double_precision() -> None:
    """Ties of single precision are none: what decides is far below the last digit of the scores."""
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(6, 50, generator=generator).mul(1e4).float()
    scores[:, ::3] = -torch.inf
    noise = list(torch.randn(6, 50, generator=generator, dtype=torch.float64) * 1e-6)
    noise[2] = noise[1]
    scores[2] = scores[1]
    scores[4, 7] = scores[4, 8] = 1e6
    expected = [(row.double() + own).argmax().item() for row, own in zip(scores, noise, strict=True)]
    found = gumbel_choices(scores, noise).tolist()
    assert found == expected
    assert found[1] == found[2]
    assert found[4] == (7 if noise[4][7] > noise[4][8] else 8)
