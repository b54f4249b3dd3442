"""The implementation with real coins agrees with the law: one chi-square per case, at a false-alarm rate of 1e-4.

Seeds are fixed, so a case passes always or never; the rate says how surprising an unlucky seed would have been.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from constrained_spec.coins import Coins, Role
from constrained_spec.verify import (
    Coupling,
    Distribution,
    Prefix,
    Verdict,
    World,
    chi_square,
    coupling,
    gumbel_choices,
    gumbel_joint,
    inverse_cdf,
    law,
    match,
    one_hot,
    target_law,
)

FALSE_ALARM = 1e-4
SEED = 20240607
LENGTH = 3
Drafted = tuple[list[int], list[Distribution | None]]


def propose(world: World, text: Prefix, gamma: int, coins: Coins, round_: int) -> Drafted:
    """Drafts after ``text`` and the row behind each, None for a guess. Draft coins, the real inversion."""
    tokens: list[int] = []
    rows: list[Distribution | None] = []
    while len(tokens) < gamma:
        draft = world.draft((*text, *tokens))
        if draft is None:
            break
        if isinstance(draft, int):
            tokens.append(draft)
            rows.append(None)
            continue
        u = coins.uniform(Role.DRAFT, round_, len(text) + len(tokens))
        weights = torch.tensor([draft], dtype=torch.float64)
        tokens.append(int(inverse_cdf(weights, torch.tensor([u], dtype=torch.float64))))
        rows.append(draft)
    return tokens, rows


def play(world: World, gamma: int, n: int, verifier: Coupling) -> Counter[Prefix]:
    """``n`` texts in ragged batches, choice i of one request for text i, as an engine would key them."""
    texts: list[Prefix] = [()] * n
    coins = [Coins(SEED, choice) for choice in range(n)]
    round_ = 0
    while live := [i for i in range(n) if not world.ended(texts[i], LENGTH)]:
        p: list[Distribution] = []
        q: list[Distribution] = []
        first, lengths, draw = [], [], []
        q_row, draft, accept = [], [], []
        for i in live:
            text = texts[i]
            tokens, rows = propose(world, text, gamma, coins[i], round_)
            first.append(len(p))
            p += [world.target((*text, *tokens[:j])) for j in range(len(tokens) + 1)]
            index = []
            for row in rows:
                index.append(-1 if row is None else len(q))
                if row is not None:
                    q.append(row)
            pad = gamma - len(tokens)
            draft.append(tokens + [0] * pad)
            q_row.append(index + [-1] * pad)
            lengths.append(len(tokens))
            u = coins[i].uniforms(Role.ACCEPT, round_, len(text), len(tokens)).tolist() if tokens else []
            accept.append(u + [0.0] * pad)
            draw.append(coins[i].uniform(Role.RECOVER, round_, len(text)))
        verdict = verifier(
            torch.tensor(p),
            torch.tensor(first),
            torch.tensor(draft),
            torch.tensor(lengths),
            torch.tensor(q) if q else None,
            torch.tensor(q_row),
            torch.tensor(accept, dtype=torch.float64),
            torch.tensor(draw, dtype=torch.float64),
        )
        for i, d, kept, token in zip(live, draft, verdict.accepted.tolist(), verdict.token.tolist(), strict=True):
            texts[i] = world.trim((*texts[i], *d[:kept], token), LENGTH)
        round_ += 1
    return Counter(texts)


def agreement(counts: Counter[Prefix], expected: dict[Prefix, float]) -> float:
    keys = sorted(expected.keys() | counts.keys())
    return chi_square([counts[k] for k in keys], [expected.get(k, 0.0) for k in keys])


@pytest.mark.parametrize(("seed", "gamma", "mixed"), [(51, 1, False), (52, 2, False), (53, 2, True), (54, 4, True)])
def test_coupling(make_random_world: Callable[..., World], seed: int, gamma: int, mixed: bool) -> None:
    world = make_random_world(seed, 3, mixed=mixed, eos=2 if mixed else None)
    counts = play(world, gamma, 4000, coupling)
    assert agreement(counts, target_law(world, LENGTH)) > FALSE_ALARM
    assert agreement(counts, law(world, "coupling", gamma, LENGTH)) > FALSE_ALARM


def test_the_same_sample_size_sees_a_repair_from_full_p(make_constant_world: Callable[[str], World]) -> None:
    def full_p(
        p: Tensor, first: Tensor, draft: Tensor, lengths: Tensor, q: Tensor | None, q_row: Tensor, u: Tensor, v: Tensor
    ) -> Verdict:
        verdict = coupling(p, first, draft, lengths, q, q_row, u, v)
        drawn = inverse_cdf(p[first + verdict.accepted], v)
        return Verdict(verdict.accepted, torch.where(verdict.accepted < lengths, drawn, verdict.token))

    world = make_constant_world("worked")
    counts = play(world, 2, 4000, full_p)
    assert agreement(counts, target_law(world, LENGTH)) < 1e-12
    assert agreement(counts, law(world, "full-p-repair", 2, LENGTH)) > FALSE_ALARM
    assert agreement(play(world, 2, 4000, coupling), target_law(world, LENGTH)) > FALSE_ALARM


def invariant_texts(world: World, gamma: int, n: int, drafted: bool) -> list[Prefix]:
    """``n`` texts by shared noise; the drafts are the draft's own Gumbel choices, or guesses."""
    texts: list[Prefix] = []
    for choice in range(n):
        coins = Coins(SEED, choice)
        text: Prefix = ()
        while not world.ended(text, LENGTH):
            noise = [torch.from_numpy(coins.gumbel(at, world.vocab)) for at in range(len(text), len(text) + gamma + 1)]
            tokens: list[int] = []
            for j in range(gamma if drafted else 0):
                draft = world.draft((*text, *tokens))
                if draft is None:
                    break
                q = one_hot(draft, world.vocab) if isinstance(draft, int) else draft
                tokens.append(int(gumbel_choices(torch.tensor([q]).log(), [noise[j]])))
            p = torch.tensor([world.target((*text, *tokens[:j])) for j in range(len(tokens) + 1)])
            choices = gumbel_choices(p.log(), noise[: len(tokens) + 1])
            verdict = match(choices, torch.tensor([0]), torch.tensor([tokens]).long(), torch.tensor([len(tokens)]))
            text = world.trim((*text, *tokens[: int(verdict.accepted)], int(verdict.token)), LENGTH)
        texts.append(text)
    return texts


def test_invariant(make_random_world: Callable[..., World]) -> None:
    """Drafter and draft length do not change a single text; together the texts have the target's law."""
    world = make_random_world(61, 3, mixed=True, eos=2)
    plain = invariant_texts(world, 1, 1500, drafted=False)
    for gamma in (1, 3):
        assert (
            invariant_texts(world, gamma, 1500 if gamma == 3 else 300, drafted=True)
            == plain[: 1500 if gamma == 3 else 300]
        )
    assert agreement(Counter(plain), target_law(world, LENGTH)) > FALSE_ALARM


def test_gumbel_joint_is_what_shared_noise_does(make_random_world: Callable[..., World]) -> None:
    cases: list[tuple[tuple[float, ...], tuple[float, ...]]] = [
        ((0.5, 0.3, 0.2), (0.6, 0.1, 0.3)),
        ((0.0, 0.5, 0.5, 0.0), (0.25, 0.0, 0.25, 0.5)),
        ((0.1, 0.2, 0.3, 0.4), (0.1, 0.2, 0.3, 0.4)),
    ]
    for p, q in cases:
        size, n = len(p), 40_000
        joint = gumbel_joint(p, q)
        assert [sum(row) for row in joint] == pytest.approx(p, abs=1e-12)
        assert [sum(column) for column in zip(*joint, strict=True)] == pytest.approx(q, abs=1e-12)
        noise = torch.from_numpy(Coins(SEED).gumbel(0, n * size)).view(n, size)
        rows = [torch.tensor([row], dtype=torch.float64).expand(n, -1) for row in (p, q)]
        x, y = (gumbel_choices(row.log(), list(noise)) for row in rows)
        counts = torch.bincount(x * size + y, minlength=size * size).tolist()
        assert chi_square(counts, np.array(joint).clip(0).ravel().tolist()) > FALSE_ALARM


def test_chi_square_itself() -> None:
    assert chi_square([30, 70], [0.5, 0.5]) == pytest.approx(6.334248e-05, rel=1e-5)  # statistic 16, one degree
    assert chi_square([10, 20, 30], [1 / 6, 2 / 6, 3 / 6]) == 1.0
    assert chi_square([1, 99], [0.0, 1.0]) == 0.0  # an impossible cell was hit
    assert chi_square([0, 100], [0.0, 1.0]) == 1.0
    # Two rare cells are pooled: expected 1 + 1 of 100, observed 2.
    assert chi_square([1, 1, 98], [0.01, 0.01, 0.98]) == pytest.approx(1.0)
