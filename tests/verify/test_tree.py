"""Trees: their law by definition, the law of the running code, and that a chain is the tree with one child per node."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from constrained_spec.coins import Coins, Role
from constrained_spec.verify import (
    Distribution,
    Plan,
    Prefix,
    Round,
    Siblings,
    Verdict,
    World,
    chi_square,
    children_table,
    coupling,
    distance,
    inverse_cdf,
    law,
    match,
    round_of,
    target_law,
    tree,
    tree_round,
    walk,
    walk_round,
)
from constrained_spec.verify.law import coupling_rule

module = sys.modules["constrained_spec.verify.tree"]  # the package gives its name to the function
TOLERANCE = 1e-9
BELOW_ONE = 1 - 2.0**-53
FALSE_ALARM = 1e-4


def plan_of(world: World, width: int, *, mixed: bool = False) -> Plan:
    """``width`` children per node, drawn; with ``mixed`` guesses before them, or none at all, by prefix."""

    def plan(prefix: Prefix) -> Siblings:
        draft = world.draft(prefix)
        if draft is None:
            return Siblings()
        if isinstance(draft, int):
            other = (draft + 1 + len(prefix)) % world.vocab
            return Siblings((draft, other)[: min(width, 1 + len(prefix) % 2)])
        guesses = ((sum(prefix) + len(prefix)) % world.vocab,) if mixed and sum(prefix) % 2 else ()
        return Siblings(guesses, draft, width - len(guesses))

    return plan


@dataclass
class Grown:
    """One drafted tree."""

    tokens: list[int]
    parents: list[int]
    sources: list[Distribution | None]
    weight: float

    def path(self, node: int) -> Prefix:
        return () if node < 0 else (*self.path(self.parents[node]), self.tokens[node])

    def children(self, node: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == node]


def grown(world: World, plan: Plan, prefix: Prefix, depth: int) -> Iterator[Grown]:
    """Every tree of ``depth`` levels that the plan may draw, with its chance. Nodes come level by level."""

    def add(t: Grown, todo: list[tuple[int, int]]) -> Iterator[Grown]:
        if not todo:
            yield t
            return
        (node, levels), rest = todo[0], todo[1:]
        siblings = plan((*prefix, *t.path(node))) if levels else Siblings()
        for family, sources, weight in families(siblings, world.vocab):
            first = len(t.tokens)
            longer = Grown(
                [*t.tokens, *family], [*t.parents, *[node] * len(family)], [*t.sources, *sources], t.weight * weight
            )
            yield from add(longer, [*rest, *((first + i, levels - 1) for i in range(len(family)))])

    yield from add(Grown([], [], [], 1.0), [(-1, depth)])


def families(siblings: Siblings, vocab: int) -> Iterator[tuple[Prefix, list[Distribution | None], float]]:
    guesses = siblings.guesses
    q = siblings.q
    if q is None:
        yield guesses, [None] * len(guesses), 1.0
        return
    support = [x for x in range(vocab) if q[x] > 0 and x not in guesses]
    for drawn in itertools.permutations(support, min(siblings.drawn, len(support))):
        weight, left = 1.0, sum(q[x] for x in support)
        for x in drawn:
            weight *= q[x] / left
            left -= q[x]
        yield (*guesses, *drawn), [None] * len(guesses) + [q] * len(drawn), weight


class Batch:
    """Trees in the arguments of `tree` and `walk`."""

    def __init__(self, world: World, prefix: Prefix, trees: list[Grown]) -> None:
        size = max((len(t.tokens) for t in trees), default=0)
        p: list[Distribution] = []
        q: list[Distribution] = []
        first = []
        self.parents, self.tokens = torch.zeros(len(trees), size).long(), torch.zeros(len(trees), size).long()
        self.q_row = torch.full((len(trees), size), -1)
        for b, t in enumerate(trees):
            first.append(len(p))
            p += [world.target((*prefix, *t.path(node))) for node in range(-1, len(t.tokens))]
            for i, source in enumerate(t.sources):
                self.parents[b, i], self.tokens[b, i] = t.parents[i], t.tokens[i]
                if source is not None:
                    self.q_row[b, i] = len(q)
                    q.append(source)
        self.p = torch.tensor(p, dtype=torch.float64)
        self.q = torch.tensor(q, dtype=torch.float64) if q else None
        self.first = torch.tensor(first)
        self.lengths = torch.tensor([len(t.tokens) for t in trees])
        self.depth = max((len(t.path(i)) for t in trees for i in range(len(t.tokens))), default=0)
        self.width = max((max(Counter(t.parents).values()) for t in trees if t.parents), default=0)

    def judge(self, which: Tensor, accept_u: Tensor, draw_u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v = tree(
            self.p, self.first[which], self.parents[which], self.tokens[which], self.lengths[which], self.q,
            self.q_row[which], accept_u, draw_u, depth=self.depth, width=self.width,
        )  # fmt: skip
        return v.path, v.accepted, v.token


@pytest.fixture
def implemented(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], Round]:
    """The round of the running code: its acceptance chances, found by bisection of the coin, and the very weights that
    it draws from."""
    seen: list[Tensor] = []

    def draw(weights: Tensor, u: Tensor) -> Tensor:
        seen.append(weights.double())
        return torch.zeros(len(weights), dtype=torch.long)

    monkeypatch.setattr(module, "inverse_cdf", draw)

    def of(plan: Plan) -> Round:
        def round_(world: World, prefix: Prefix, gamma: int, room: int) -> Iterator[tuple[Prefix, float]]:
            trees = list(grown(world, plan, prefix, gamma))
            batch = Batch(world, prefix, trees)
            # One question per node: coins that keep its ancestors and let everything else fall, and its own.
            asked = [(b, i) for b, t in enumerate(trees) for i in range(-1, len(t.tokens))]
            which = torch.tensor([b for b, _ in asked])
            coins = torch.full((len(asked), batch.tokens.shape[1]), BELOW_ONE, dtype=torch.float64)
            for row, (b, node) in enumerate(asked):
                while node >= 0:
                    coins[row, node] = 0
                    node = trees[b].parents[node]
            half = torch.full((len(asked),), 0.5, dtype=torch.float64)
            path, accepted, _ = batch.judge(which, coins, half)
            ends = torch.where(accepted > 0, path.gather(1, (accepted - 1).clamp(min=0)[:, None])[:, 0], -1).tolist()
            weights = seen[-1]
            own = torch.tensor([max(i, 0) for _, i in asked])
            rows = torch.arange(len(asked))
            low, high = torch.zeros(len(asked)).double(), torch.ones(len(asked)).double()
            for _ in range(54):
                middle = (low + high) / 2
                coins[rows, own] = middle
                path, _, _ = batch.judge(which, coins, half)
                kept = (path == own[:, None]).any(1)
                low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
            chance = dict(zip(asked, high.tolist(), strict=True))
            drawn = dict(zip(asked, weights, strict=True))
            reached = dict(zip(asked, ends, strict=True))

            def down(b: int, node: int, weight: float) -> Iterator[tuple[Prefix, float]]:
                for child in trees[b].children(node):
                    keep = chance[b, child] if chance[b, child] > 1e-12 else 0.0
                    if weight * keep > 1e-15:
                        yield from down(b, child, weight * keep)
                    weight *= 1 - keep
                if weight > 1e-14:
                    assert reached[b, node] == node
                    row = drawn[b, node]
                    for y, part in enumerate((row / row.sum()).tolist()):
                        yield (*trees[b].path(node), y)[:room], weight * part

            for b, t in enumerate(trees):
                yield from down(b, -1, t.weight)

        return round_

    return of


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_law_on_adversarial_pairs(pair_world: World, depth: int, width: int) -> None:
    length = 3 if pair_world.vocab < 5 else 2
    plan = plan_of(pair_world, width)
    target = target_law(pair_world, length)
    assert distance(law(pair_world, tree_round(plan), depth, length), target) < TOLERANCE
    if depth < 3 and pair_world.vocab < 5:
        assert distance(law(pair_world, walk_round(plan), depth, length), target) < TOLERANCE


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("seed", "vocab", "depth", "width"), [(1, 2, 3, 2), (2, 3, 3, 2), (3, 4, 2, 3), (4, 4, 1, 4)])
def test_law_on_random_worlds(
    make_random_world: Callable[..., World], seed: int, vocab: int, depth: int, width: int, mixed: bool
) -> None:
    world = make_random_world(seed, vocab, mixed=mixed, eos=vocab - 1 if mixed else None)
    plan = plan_of(world, width, mixed=mixed)
    target = target_law(world, 3)
    got = law(world, tree_round(plan), depth, 3)
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert distance(got, target) < TOLERANCE
    assert distance(law(world, walk_round(plan), min(depth, 2), 3), target) < TOLERANCE


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("seed", "vocab", "depth", "width"), [(1, 2, 2, 2), (2, 3, 2, 2), (3, 4, 1, 3), (5, 3, 1, 3)])
def test_law_of_the_code_on_random_worlds(
    make_random_world: Callable[..., World], implemented: Callable[[Plan], Round], seed: int, vocab: int, depth: int,
    width: int, mixed: bool,
) -> None:  # fmt: skip
    world = make_random_world(seed, vocab, mixed=mixed)
    plan = plan_of(world, width, mixed=mixed)
    got = law(world, implemented(plan), depth, 2)
    assert distance(got, target_law(world, 2)) < TOLERANCE
    # And not only the text: the chance of every committed run, so acceptance itself, is the definition's.
    one = [Counter[Prefix](), Counter[Prefix]()]
    for found, round_ in zip(one, (implemented(plan), tree_round(plan)), strict=True):
        for tokens, chance in round_(world, (), depth, depth + 1):
            found[tokens] += chance  # type: ignore[assignment]
    assert distance(dict(one[0]), dict(one[1])) < TOLERANCE


def test_law_of_the_code_on_adversarial_pairs(pair_world: World, implemented: Callable[[Plan], Round]) -> None:
    plan = plan_of(pair_world, 2)
    depth = 2 if pair_world.vocab < 3 else 1
    # A chance of 1e-9 below 1 is exact to 1e-16, and what hangs on it is divided by that chance again.
    assert distance(law(pair_world, implemented(plan), depth, 2), target_law(pair_world, 2)) < 1e-7


@pytest.mark.parametrize("wrong", [{"remove": False}, {"update": False}])
def test_wrong_rules_miss_the_law(make_random_world: Callable[..., World], wrong: dict[str, bool]) -> None:
    """Judging a later sibling as if it were the first, by q with the earlier ones or by the whole target."""
    world = make_random_world(2, 3)
    plan = plan_of(world, 2)
    assert distance(law(world, tree_round(plan), 2, 3), target_law(world, 3)) < TOLERANCE
    assert distance(law(world, tree_round(plan, **wrong), 2, 3), target_law(world, 3)) > 0.01


def test_more_children_are_accepted_more_often(make_random_world: Callable[..., World]) -> None:
    for seed in range(12):
        world = make_random_world(seed, 4)
        kept = [
            sum(w for tokens, w in tree_round(plan_of(world, width))(world, (), 1, 2) if len(tokens) == 2)
            for width in (1, 2, 3, 4)
        ]
        assert kept == sorted(kept)
        token = sum(w for tokens, w in round_of(coupling_rule)(world, (), 1, 2) if len(tokens) == 2)
        assert kept[0] == pytest.approx(token)
        # Every token of q is there: whatever falls loses all that was left of it, so only what q lacks is recovered.
        q = world.draft(())
        assert isinstance(q, tuple)
        assert kept[3] == pytest.approx(sum(a for a, b in zip(world.target(()), q, strict=True) if b > 0))


def chain(world: World, seed: int, size: int) -> tuple[Batch, list[Grown]]:
    trees = [t for d in range(4) for t in grown(world, plan_of(world, 1, mixed=True), (seed % 3,), d)][:size]
    return Batch(world, (seed % 3,), trees), trees


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_is_judged_as_by_coupling_and_match(make_random_world: Callable[..., World], seed: int) -> None:
    world = make_random_world(seed, 3, mixed=True)
    batch, trees = chain(world, seed, 40)
    generator = torch.Generator().manual_seed(seed)
    which = torch.arange(len(trees)).repeat(50)
    coins = torch.rand(len(which), batch.tokens.shape[1], generator=generator, dtype=torch.float64)
    draw = torch.rand(len(which), generator=generator, dtype=torch.float64)
    _, accepted, token = batch.judge(which, coins, draw)
    parts = (batch.first[which], batch.tokens[which], batch.lengths[which])
    same: Verdict = coupling(batch.p, *parts, batch.q, batch.q_row[which], coins, draw)
    assert torch.equal(accepted, same.accepted)
    assert torch.equal(token, same.token)
    choices = torch.randint(3, (len(batch.p),), generator=generator)
    walked = walk(choices, parts[0], batch.parents[which], *parts[1:], depth=batch.depth)
    matched = match(choices, *parts)
    assert torch.equal(walked.accepted, matched.accepted)
    assert torch.equal(walked.token, matched.token)


def test_children_keep_their_order() -> None:
    parents = torch.tensor([[-1, 0, -1, 0, 2, -1], [-1, -1, 0, 0, 0, 0]])
    table = children_table(parents, torch.tensor([6, 3]), 3)
    assert table[0].tolist() == [
        [0, 2, 5], [1, 3, -1], [-1, -1, -1], [4, -1, -1], [-1, -1, -1], [-1, -1, -1], [-1, -1, -1]
    ]  # fmt: skip
    assert table[1].tolist()[:2] == [[0, 1, -1], [2, -1, -1]]


def test_a_faulty_tree_keeps_the_law() -> None:
    """Tokens that their q cannot draw, drawn twice, drawn from NaN or from nothing left are judged as guesses."""
    p, n = torch.tensor([[0.25, 0.5, 0.25]] * 3, dtype=torch.float64), 60_000
    generator = torch.Generator().manual_seed(1)
    for row, tokens in (([0.0, 0.5, 0.5], [0, 0]), ([float("nan")] * 3, [1, 2]), ([1.0, 0.0, 0.0], [0, 1])):
        verdict = tree(
            p, torch.zeros(n).long(), torch.full((n, 2), -1), torch.tensor([tokens]).expand(n, -1),
            torch.full((n,), 2), torch.tensor([row], dtype=torch.float64), torch.zeros(n, 2).long(),
            torch.rand(n, 2, generator=generator, dtype=torch.float64),
            torch.rand(n, generator=generator, dtype=torch.float64), depth=1, width=2,
        )  # fmt: skip
        node = verdict.path[:, 0]
        head = torch.where(node >= 0, torch.tensor(tokens)[node.clamp(min=0)], verdict.token)
        assert chi_square(torch.bincount(head, minlength=3).tolist(), p[0].tolist()) > FALSE_ALARM


@pytest.mark.parametrize("kind", ["tree", "walk"])
def test_real_coins(make_random_world: Callable[..., World], kind: str) -> None:
    """First two tokens of 20,000 rounds over trees of two levels, drawn with draft coins; ragged batch."""
    world, n = make_random_world(12, 3), 20_000
    plan = plan_of(world, 2, mixed=True)
    trees = list(grown(world, plan, (), 2))
    batch = Batch(world, (), trees)
    coins = [Coins(5, choice) for choice in range(n)]
    weights = torch.tensor([t.weight for t in trees], dtype=torch.float64)
    drafts = torch.tensor([c.uniform(Role.DRAFT, 0, 0) for c in coins])
    which = inverse_cdf(weights.expand(n, -1), drafts)
    draw = torch.tensor([c.uniform(Role.RECOVER, 0, 0) for c in coins])
    if kind == "tree":
        accept = torch.stack([torch.as_tensor(c.uniforms(Role.ACCEPT, 0, 0, batch.tokens.shape[1])) for c in coins])
        path, accepted, token = batch.judge(which, accept, draw)
    else:
        by_depth = torch.stack([torch.as_tensor(c.uniforms(Role.RECOVER, 0, 0, batch.depth + 1)) for c in coins])
        # A tree per row: its places in a table of their own, a coin per depth.
        size = batch.tokens.shape[1] + 1
        rows = batch.first[which].unsqueeze(1) + torch.minimum(torch.arange(size), batch.lengths[which].unsqueeze(1))
        depths = torch.tensor([[0, *(len(t.path(i)) for i in range(len(t.tokens)))] + [0] * (size - 1 - len(t.tokens))
                               for t in trees])[which]  # fmt: skip
        choices = inverse_cdf(batch.p[rows].flatten(0, 1), by_depth.gather(1, depths).flatten())
        found = walk(
            choices, torch.arange(n) * size, batch.parents[which], batch.tokens[which], batch.lengths[which],
            depth=batch.depth,
        )  # fmt: skip
        path, accepted, token = found.path, found.accepted, found.token
    law_ = target_law(world, 1)
    seen = Counter[Prefix]()
    longer: dict[int, Counter[int]] = {x: Counter() for x in range(world.vocab)}
    for b, nodes, kept, last in zip(which.tolist(), path.tolist(), accepted.tolist(), token.tolist(), strict=True):
        text = (*(trees[b].tokens[i] for i in nodes[:kept]), last)
        seen[text[:1]] += 1
        if kept:
            longer[text[0]][text[1]] += 1
    assert chi_square([seen[k] for k in law_], list(law_.values())) > FALSE_ALARM
    for x, counts in longer.items():
        if sum(counts.values()) > 500:
            # What follows a kept token has the target's law after it.
            assert chi_square([counts[y] for y in range(world.vocab)], list(world.target((x,)))) > FALSE_ALARM
