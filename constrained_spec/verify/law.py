"""The exact output law of a verifier, by enumerating every draft, acceptance and repair branch. No Monte Carlo.

A verifier here is what happens at one place: a `Rule`. Drafts behind the first rejection have no branch of their own,
because no verifier reads them; their chances sum to one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from constrained_spec.errors import ConfigError
from constrained_spec.verify.gumbel import gumbel_joint
from constrained_spec.verify.theory import acceptance, residual
from constrained_spec.verify.typical import typical_threshold
from constrained_spec.verify.world import Distribution, Prefix, Siblings, World, one_hot


@dataclass(frozen=True, slots=True)
class Branch:
    """One way a place can go: ``draft`` was proposed, then kept (token = draft) or cut with ``token``."""

    draft: int
    kept: bool
    token: int
    weight: float


Rule = Callable[[Distribution, Distribution], list[Branch]]  # (p, q) at one place -> branches, weights summing to 1
Round = Callable[[World, Prefix, int, int], Iterable[tuple[Prefix, float]]]
"""(world, prefix, gamma, room) -> (committed tokens, chance). Tokens behind the first ``room`` may be left out."""


def _coupled(p: Distribution, q: Distribution, repair: Callable[[Tensor, Tensor], Tensor]) -> list[Branch]:
    target = torch.tensor(p, dtype=torch.float64)
    proposal = torch.tensor(q, dtype=torch.float64)
    ids = torch.arange(len(p))
    keep = acceptance(target.expand(len(p), -1), proposal.expand(len(p), -1), ids).tolist()
    recovered = repair(target, proposal).tolist()
    branches = []
    for x, chance in enumerate(q):
        if chance > 0:
            branches.append(Branch(x, True, x, chance * keep[x]))
            branches += [Branch(x, False, y, chance * (1 - keep[x]) * r) for y, r in enumerate(recovered) if r > 0]
    return branches


def coupling_rule(p: Distribution, q: Distribution) -> list[Branch]:
    """Keep with chance min(1, p/q), recover from the residual."""
    return _coupled(p, q, residual)


def full_p_repair_rule(p: Distribution, q: Distribution) -> list[Branch]:
    """WRONG, kept as a control: recovers from p instead of the residual."""
    return _coupled(p, q, lambda target, _: target)


def point_rule(p: Distribution, q: Distribution) -> list[Branch]:
    """Sample and match: whatever was drafted, and however, is judged as a point mass."""
    return [
        Branch(b.draft, b.kept, b.token, chance * b.weight)
        for x, chance in enumerate(q)
        if chance > 0
        for b in coupling_rule(p, one_hot(x, len(p)))
    ]


def invariant_rule(p: Distribution, q: Distribution) -> list[Branch]:
    """Target and draft choose with the same Gumbel noise. Noise differs between positions, and a cut at one place
    does not look at the noise of later ones, so places are independent given the prefix."""
    joint = gumbel_joint(p, q)
    return [Branch(x, x == y, y, joint[y][x]) for y in range(len(p)) for x in range(len(p)) if joint[y][x] > 0]


def greedy_rule(p: Distribution, q: Distribution) -> list[Branch]:
    """The target's most probable token decides, the lowest id among equals. `law` takes p to temperature 0 first."""
    best = p.index(max(p))
    return [Branch(x, x == best, best, chance) for x, chance in enumerate(q) if chance > 0]


def block_round(world: World, prefix: Prefix, gamma: int, room: int) -> Iterator[tuple[Prefix, float]]:
    """Block verification (Sun et al. 2024) by its definition, over every drafted block. See `verify.block`."""

    def drafts(at: Prefix, left: int) -> Iterator[tuple[Prefix, list[Distribution], float]]:
        proposed = world.draft(at) if left else None
        if proposed is None:
            yield (), [], 1.0
            return
        q = one_hot(proposed, world.vocab) if isinstance(proposed, int) else proposed
        for x, chance in enumerate(q):
            if chance > 0:
                for tail, sources, weight in drafts((*at, x), left - 1):
                    yield (x, *tail), [q, *sources], chance * weight

    for tokens, sources, weight in drafts(prefix, gamma):
        targets = [world.target((*prefix, *tokens[:i])) for i in range(len(tokens) + 1)]
        share = [1.0]
        for x, p, q in zip(tokens, targets, sources, strict=False):
            share.append(min(1.0, share[-1] * p[x] / q[x]))
        unkept = weight
        for i in range(len(tokens), -1, -1):
            if i == len(tokens):
                keep, left = share[i], list(targets[i])
            else:
                left = [max(share[i] * a - b, 0.0) for a, b in zip(targets[i], sources[i], strict=True)]
                mass = sum(left)
                whole = mass + 1 - share[i]
                keep = mass / whole if whole > 1e-15 else 1.0
            if i == 0:
                keep = 1.0  # no token kept is what remains
            mass = sum(left)
            if mass > 0:
                for y, part in enumerate(left):
                    if part > 0:
                        yield (*tokens[:i], y)[:room], unkept * keep * part / mass
            elif keep > 0:
                for y, part in enumerate(targets[i]):
                    if part > 0:
                        yield (*tokens[:i], y)[:room], unkept * keep * part
            unkept *= 1 - keep


Plan = Callable[[Prefix], Siblings]  # the children that a tree has after a prefix


def tree_round(plan: Plan, *, remove: bool = True, update: bool = True) -> Round:
    """Recursive rejection over a tree of ``gamma`` levels, by its definition. See `verify.tree`.

    The two switches make it WRONG, as controls: ``remove`` False judges a later sibling by q as it was for the first
    one, ``update`` False judges it by the whole target.
    """

    def walk(world: World, prefix: Prefix, left: int, room: int, weight: float) -> Iterator[tuple[Prefix, float]]:
        if room == 0:
            yield (), weight
            return
        siblings = plan(prefix) if left else Siblings()
        yield from fall(world, prefix, left, room, weight, list(world.target(prefix)), siblings, ())

    def fall(
        world: World, prefix: Prefix, left: int, room: int, weight: float, p: list[float], siblings: Siblings,
        earlier: Prefix,
    ) -> Iterator[tuple[Prefix, float]]:  # fmt: skip
        """The tokens of ``earlier`` siblings have fallen, and ``p`` is what they left of the target."""
        options = _next_sibling(siblings, earlier)
        if not options:
            mass = sum(p)
            yield from (((y,), weight * part / mass) for y, part in enumerate(p) if part > 0)
            return
        guess = len(earlier) < len(siblings.guesses)
        for x, chance in options.items():
            if guess:
                q = list(one_hot(x, world.vocab))
            else:
                assert siblings.q is not None
                q = [options.get(y, 0.0) for y in range(world.vocab)] if remove else list(siblings.q)
            target = [a / sum(p) for a in p]
            keep = min(1.0, target[x] / q[x])
            if keep > 0:
                for tail, mass in walk(world, (*prefix, x), left - 1, room - 1, weight * chance * keep):
                    yield (x, *tail), mass
            if keep < 1:
                over = [max(a - b, 0.0) for a, b in zip(target, q, strict=True)] if update else target
                rest = over if sum(over) > 0 else target
                yield from fall(world, prefix, left, room, weight * chance * (1 - keep), rest, siblings, (*earlier, x))

    return lambda world, prefix, gamma, room: walk(world, prefix, gamma, room, 1.0)


def walk_round(plan: Plan) -> Round:
    """The target's own draw at every node of a tree of ``gamma`` levels: a draw that is a child descends."""

    def families(siblings: Siblings, earlier: Prefix, weight: float) -> Iterator[tuple[Prefix, float]]:
        options = _next_sibling(siblings, earlier)
        if not options:
            yield earlier, weight
        for x, chance in options.items():
            yield from families(siblings, (*earlier, x), weight * chance)

    def walk(world: World, prefix: Prefix, left: int, room: int, weight: float) -> Iterator[tuple[Prefix, float]]:
        if room == 0:
            yield (), weight
            return
        for family, share in families(plan(prefix) if left else Siblings(), (), 1.0):
            for y, chance in enumerate(world.target(prefix)):
                mass = weight * share * chance
                if mass > 0 and y in family:
                    yield from (((y, *tail), m) for tail, m in walk(world, (*prefix, y), left - 1, room - 1, mass))
                elif mass > 0:
                    yield (y,), mass

    return lambda world, prefix, gamma, room: walk(world, prefix, gamma, room, 1.0)


def _next_sibling(siblings: Siblings, earlier: Prefix) -> dict[int, float]:
    """Tokens that the sibling after ``earlier`` ones may be, with their chances; empty if there is no further one."""
    n = len(earlier)
    if n < len(siblings.guesses):
        return {siblings.guesses[n]: 1.0}
    if siblings.q is None or n >= len(siblings.guesses) + siblings.drawn:
        return {}
    rest = {x: chance for x, chance in enumerate(siblings.q) if chance > 0 and x not in earlier}
    total = sum(rest.values())
    return {x: chance / total for x, chance in rest.items()}


def typical_rule(p: Distribution, q: Distribution) -> list[Branch]:
    """APPROXIMATE: keeps what is likely enough, else draws from p. See `verify.typical`."""
    least = float(typical_threshold(torch.tensor(p, dtype=torch.float64)))
    kept = [Branch(x, True, x, chance) for x, chance in enumerate(q) if chance > 0 and p[x] > least]
    cut = [x for x, chance in enumerate(q) if chance > 0 and p[x] <= least]
    return kept + [Branch(x, False, y, q[x] * r) for x in cut for y, r in enumerate(p) if r > 0]


RULES: dict[str, Rule] = {
    "coupling": coupling_rule,
    "full-p-repair": full_p_repair_rule,
    "greedy": greedy_rule,
    "invariant": invariant_rule,
    "point": point_rule,
    "typical": typical_rule,
}


def round_of(rule: Rule) -> Round:
    """The round that judges places one after another by ``rule``: cut at the first draft that falls, else a bonus."""
    # Branches depend on the two distributions alone, and a prefix is met by many rounds.
    known: dict[tuple[Distribution, Distribution], list[Branch]] = {}

    def walk(world: World, prefix: Prefix, left: int, room: int, weight: float) -> Iterator[tuple[Prefix, float]]:
        if room == 0:
            yield (), weight
            return
        p = world.target(prefix)
        draft = world.draft(prefix) if left else None
        if draft is None:  # the bonus, by every rule a draw from p
            for y, chance in enumerate(p):
                if chance > 0:
                    yield (y,), weight * chance
            return
        q = one_hot(draft, world.vocab) if isinstance(draft, int) else draft
        if (p, q) not in known:
            known[p, q] = rule(p, q)
        for b in known[p, q]:
            if b.kept:
                for tail, chance in walk(world, (*prefix, b.token), left - 1, room - 1, weight * b.weight):
                    yield (b.token, *tail), chance
            else:
                yield (b.token,), weight * b.weight

    return lambda world, prefix, gamma, room: walk(world, prefix, gamma, room, 1.0)


def law(world: World, verifier: str | Round, gamma: int, length: int) -> dict[Prefix, float]:
    """Law of the committed text of ``length`` tokens (fewer after the end token), rounds of up to ``gamma`` drafts.

    ``verifier`` is a name in ``RULES`` or a round of one's own. The last block is trimmed. Raises ``ConfigError`` for
    an unknown name.
    """
    if verifier == "block":
        verifier = block_round
    if isinstance(verifier, str):
        if verifier not in RULES:
            known = ", ".join((*RULES, "block"))
            raise ConfigError(f"unknown verifier {verifier!r}", param="verifier", hint=f"one of {known}")
        world = world.at_zero() if verifier == "greedy" else world
        verifier = round_of(RULES[verifier])
    done: dict[Prefix, float] = {}
    open_: list[defaultdict[Prefix, float]] = [defaultdict(float) for _ in range(length + 1)]
    open_[0][()] = 1.0
    for size in range(length + 1):  # every round adds a token, so shorter prefixes are complete when met
        for prefix, mass in open_[size].items():
            if world.ended(prefix, length):
                done[prefix] = done.get(prefix, 0.0) + mass
                continue
            for tokens, chance in verifier(world, prefix, gamma, length - size):
                assert tokens, "a round commits at least one token"
                text = world.trim((*prefix, *tokens), length)
                open_[len(text)][text] += mass * chance
    return done
