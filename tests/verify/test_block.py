"""Block verification: its law by definition, the law of the running code, and what it accepts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from constrained_spec.coins import Coins, Role
from constrained_spec.verify import (
    Distribution,
    Prefix,
    Round,
    World,
    block,
    block_chances,
    block_round,
    chi_square,
    distance,
    law,
    round_of,
    target_law,
)
from constrained_spec.verify.law import coupling_rule

module = sys.modules["constrained_spec.verify.block"]  # the package gives its name to the function
TOLERANCE = 1e-9


def drafted(world: World, prefix: Prefix, gamma: int) -> Iterator[tuple[Prefix, list[Distribution | None], float]]:
    draft = world.draft(prefix) if gamma else None
    if draft is None:
        yield (), [], 1.0
    elif isinstance(draft, int):
        for tail, sources, weight in drafted(world, (*prefix, draft), gamma - 1):
            yield (draft, *tail), [None, *sources], weight
    else:
        for x, chance in enumerate(draft):
            if chance > 0:
                for tail, sources, weight in drafted(world, (*prefix, x), gamma - 1):
                    yield (x, *tail), [draft, *sources], chance * weight


@pytest.fixture
def implemented(monkeypatch: pytest.MonkeyPatch) -> Round:
    """A round of the running code: its chances, and for every cut the very weights it draws from."""
    seen: list[Tensor] = []

    def draw(weights: Tensor, u: Tensor) -> Tensor:
        seen.append(weights.double())
        return torch.zeros(len(weights), dtype=torch.long)

    monkeypatch.setattr(module, "inverse_cdf", draw)

    def round_(world: World, prefix: Prefix, gamma: int, room: int) -> Iterator[tuple[Prefix, float]]:
        for tokens, sources, weight in drafted(world, prefix, gamma):
            n = len(tokens)
            p = torch.tensor([world.target((*prefix, *tokens[:j])) for j in range(n + 1)], dtype=torch.float64)
            q_rows = [row for row in sources if row is not None]
            index = torch.full((1, n), -1)
            for j, row in enumerate(sources):
                if row is not None:
                    index[0, j] = sum(r is not None for r in sources[:j])
            parts = (
                p, torch.tensor([0]), torch.tensor([tokens], dtype=torch.long).view(1, n), torch.tensor([n]),
                torch.tensor(q_rows, dtype=torch.float64) if q_rows else None, index,
            )  # fmt: skip
            chance = [1.0, *(block_chances(*parts)[0][0].tolist() if n else [])]
            unkept = weight
            for cut in range(n, -1, -1):
                keep = 1.0 if cut == 0 else chance[cut]
                if keep > 0 and unkept > 1e-14:
                    coins = torch.full((1, n), 1 - 2**-53, dtype=torch.float64)
                    if cut:
                        coins[0, cut - 1] = 0
                    # A chance of nearly 1 is kept whatever the coin, so no cut before such a place is reached.
                    verdict = block(*parts, coins, torch.tensor([0.5], dtype=torch.float64))
                    assert int(verdict.accepted) == cut
                    drawn = (seen[-1][0] / seen[-1][0].sum()).tolist()
                    yield from (((*tokens[:cut], y)[:room], unkept * keep * part) for y, part in enumerate(drawn))
                unkept *= 1 - keep

    return round_


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_law_on_adversarial_pairs(pair_world: World, gamma: int, implemented: Round) -> None:
    length = 4 if pair_world.vocab < 5 else 3
    if gamma == 4 and pair_world.vocab == 6:
        length = 2
    target = target_law(pair_world, length)
    assert distance(law(pair_world, "block", gamma, length), target) < TOLERANCE
    if gamma < 4:
        assert (
            distance(law(pair_world, implemented, gamma, min(length, 3)), target_law(pair_world, min(length, 3))) < 1e-8
        )


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize(("seed", "vocab", "length"), [(1, 2, 4), (2, 3, 4), (3, 4, 3)])
def test_law_on_random_worlds(
    make_random_world: Callable[..., World], implemented: Round,
    seed: int, vocab: int, length: int, gamma: int, mixed: bool,
) -> None:  # fmt: skip
    world = make_random_world(seed, vocab, mixed=mixed, eos=vocab - 1 if mixed else None)
    target = target_law(world, length)
    got = law(world, "block", gamma, length)
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert distance(got, target) < TOLERANCE
    if gamma < 4:
        assert distance(law(world, implemented, gamma, 3), target_law(world, 3)) < TOLERANCE


def accepted(world: World, round_: Round, gamma: int) -> float:
    """Expected number of kept drafts in one round."""
    return sum(w * (len(tokens) - 1) for tokens, w in round_(world, (), gamma, gamma + 1))


def test_the_published_toy() -> None:
    """Sun et al. 2024: p = (1/3, 2/3), q = (2/3, 1/3), two drafts. 10/9 token by token, 11/9 by the block."""
    world = World(2, lambda _: (1 / 3, 2 / 3), lambda _: (2 / 3, 1 / 3))
    assert accepted(world, round_of(coupling_rule), 2) == pytest.approx(10 / 9)
    assert accepted(world, block_round, 2) == pytest.approx(11 / 9)


@pytest.mark.parametrize("seed", range(40))
def test_a_block_keeps_at_least_as_much(make_random_world: Callable[..., World], seed: int) -> None:
    world = make_random_world(seed, 2 + seed % 3, mixed=seed % 2 == 1)
    for gamma in (1, 2, 3):
        token, whole = accepted(world, round_of(coupling_rule), gamma), accepted(world, block_round, gamma)
        assert whole >= token - 1e-12
        if gamma == 1:
            assert whole == pytest.approx(token)


def test_wrong_residuals_fail(make_random_world: Callable[..., World]) -> None:
    """The same walk with p in place of what is left over misses the law by far."""
    world = make_random_world(2, 3)

    def wrong(world: World, prefix: Prefix, gamma: int, room: int) -> Iterator[tuple[Prefix, float]]:
        for tokens, weight in block_round(world, prefix, gamma, gamma + 1):
            for y, part in enumerate(world.target((*prefix, *tokens[:-1]))):
                yield (*tokens[:-1], y)[:room], weight * part

    assert distance(law(world, wrong, 2, 3), target_law(world, 3)) > 0.01


def test_real_coins_in_a_ragged_batch(make_random_world: Callable[..., World]) -> None:
    """First two tokens of 20,000 rounds, blocks of 0 to 3 sampled and guessed drafts; false-alarm rate 1e-4."""
    world, n = make_random_world(12, 3, mixed=True), 20_000
    law_ = target_law(world, 1)
    counts = dict.fromkeys(law_, 0)
    blocks = list(drafted(world, (), 3))
    p: list[Distribution] = []
    q: list[Distribution] = []
    first, lengths = [], []
    draft, q_row = torch.zeros(len(blocks), 3, dtype=torch.long), torch.full((len(blocks), 3), -1)
    for b, (tokens, sources, _) in enumerate(blocks):
        first.append(len(p))
        lengths.append(len(tokens))
        p += [world.target(tokens[:j]) for j in range(len(tokens) + 1)]
        for j, (token, row) in enumerate(zip(tokens, sources, strict=True)):
            draft[b, j] = token
            if row is not None:
                q_row[b, j] = len(q)
                q.append(row)
    coins = [Coins(5, choice) for choice in range(n)]
    weights = torch.tensor([w for _, _, w in blocks], dtype=torch.float64).cumsum(0)
    which = torch.searchsorted(weights, torch.tensor([c.uniform(Role.DRAFT, 0, 0) for c in coins]), right=True)
    which = which.clamp(max=len(blocks) - 1)
    verdict = block(
        torch.tensor(p, dtype=torch.float64), torch.tensor(first)[which], draft[which], torch.tensor(lengths)[which],
        torch.tensor(q, dtype=torch.float64), q_row[which],
        torch.stack([torch.as_tensor(c.uniforms(Role.ACCEPT, 0, 0, 3)) for c in coins]),
        torch.tensor([c.uniform(Role.RECOVER, 0, 0) for c in coins]),
    )  # fmt: skip
    for row, kept, token in zip(which.tolist(), verdict.accepted.tolist(), verdict.token.tolist(), strict=True):
        tokens = (*blocks[row][0][:kept], token)
        counts[tokens[:1]] += 1
    assert chi_square(list(counts.values()), list(law_.values())) > 1e-4
