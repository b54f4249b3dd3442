"""Trees of guesses from everything known: the grammar, the text itself, and trained heads."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from constrained_spec.drafters.base import DrafterFault, Proposal, draft_forward
from constrained_spec.drafters.continuations import ContinuationIndex
from constrained_spec.drafters.heads import Branches, HeadDrafter, Law
from constrained_spec.drafters.mixture import chance_so_far
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.errors import ConfigError
from constrained_spec.state.sequence import Counts, Sequence
from constrained_spec.state.transaction import Transaction

_SURE = 2  # tokens before a forced place that must agree with an earlier place, for its spelling to count
# How likely the first and the second continuation are thought to be, by the length of the n-gram they follow.
_LIKELY = {1: (0.28, 0.06), 2: (0.55, 0.07), 3: (0.65, 0.08), 4: (0.75, 0.05), 5: (0.85, 0.05)}
_LONG = (0.95, 0.03)  # behind longer ones
_FORCED = (0.7, 0.1)  # the spelling used before, or else the tokeniser's own, and the other one of these
_SPELLED, _FEW = 0.12, 8  # any other spelling of forced text, where so few are legal
_LEAST = 0.03  # a path thought less likely than this is not worth its place in the block
_EXPECTED = {"forced": 0.7, "ngram": 0.65}  # share of the judged drafts that stand where the above is true
_WEIGHT = 6  # judgements that this belief counts for
_WORTH = 0.1  # chance that the text comes to a place of a level with a token unknown before, below which none is asked
_ROOT = 0.25  # the same for the root, which is asked from there on whatever a level costs
_BETTER = 0.6  # share of the levels asked that then bring that token
_ROOM = 8  # drafts that a block may hold, below which only a chain of what is remembered is worth its cost


@dataclass(frozen=True, slots=True)
class Guess:
    """A child to try: how likely it is thought to be, who says so, and the forced tokens known to follow it."""

    token: int
    share: float
    source: str
    rest: Seq[int] = ()


class TreeDrafter:
    """Guesses several continuations at each place, the likeliest paths first, until the budget of the block is used.

    From the text itself: the ``width`` most recent continuations of its n-grams, and where the grammar forces text, the
    spelling that the sequence used before and the tokeniser's own. Where none is known at the root, it copies as
    ``NgramDrafter`` does. From trained ``heads``, if given: the ``fan`` best of their law at the places they reach,
    level by level, at most ``beam`` places and ``depth`` levels (the dynamic trees of EAGLE-2, Li et al. 2024); where
    the text says the same, both beliefs add up. ``memory`` False leaves all to the heads.

    ``costs``: of a node and of a level of the heads, in target steps. What must be expected to bring less than the same
    time without it brought so far in this sequence is left out, and a block of few drafts is a chain without heads:
    where many requests share a step, each gets few. With costs of 0 the whole budget is used.

    All drafts are guesses, chosen from the text before their place alone; for the "invariant" verifier the heads' are
    chosen with the target's own noise. Where the target scores no trees, the tree is a chain.
    """

    name = "tree"

    def __init__(
        self,
        longest: int = 6,
        width: int = 2,
        *,
        heads: HeadDrafter | None = None,
        memory: bool = True,
        fan: int = 4,
        beam: int = 4,
        depth: int = 6,
        least: float = _LEAST,
        costs: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        for name, value in (("width", width), ("fan", fan), ("beam", beam)):
            if not 1 <= value <= 8:
                raise ConfigError(f"{name} lies in [1, 8], got {value}", param=name)
        if not memory and heads is None:
            raise ConfigError("a tree needs a source", param="memory")
        if heads is not None and not memory:
            self.name = heads.name
        self.longest, self.width = longest, width
        self._heads = heads
        self._fan, self._beam, self._depth = fan, beam, depth
        self._least, self._costs = least, costs
        self._memory = NgramDrafter(longest) if memory else None
        self._indices: dict[int, ContinuationIndex] = {}  # by id of an open sequence
        self.sizes_itself = any(costs)
        self._grown: dict[int, Transaction] = {}  # the newest block that has its tree, of a sequence by id

    def open(self, sequence: Sequence) -> None:
        if self._heads is not None:
            self._heads.open(sequence)
        if self._memory is not None:
            self._memory.open(sequence)
            if id(sequence) not in self._indices:
                index = ContinuationIndex(sequence.history, self.longest, self.width)
                self._indices[id(sequence)] = index
                sequence.follow(index)

    def close(self, sequence: Sequence) -> None:
        if self._heads is not None:
            self._heads.close(sequence)
        if self._memory is not None:
            self._memory.close(sequence)
        self._indices.pop(id(sequence), None)
        self._grown.pop(id(sequence), None)

    def propose(self, proposals: Seq[Proposal]) -> None:
        growing = []
        for p in proposals:
            # A mixture asks again behind what is a chain; the budget that is left there is left on purpose.
            if p.room > 0 and self._grown.get(id(p.sequence)) is not p.tx:
                self._grown[id(p.sequence)] = p.tx
                growing.append(_Growth(p, self._indices.get(id(p.sequence)), self))
        with torch.inference_mode():
            self._extrapolate(growing)
        for g in growing:
            g.fill()
            if self._memory is not None and not g.proposal.tokens:
                self._memory.propose([g.proposal])

    def _extrapolate(self, growing: Seq[_Growth]) -> None:
        """Level by level: the heads' law at the likeliest places so far, and its best tokens as children to try."""
        heads = self._heads
        if heads is None:
            return
        growing = [g for g in growing if not g.narrow]
        proposals = [g.proposal for g in growing]
        with draft_forward(proposals):
            roots = heads.branches(proposals)
        for g, root in zip(growing, roots, strict=True):
            g.branches = root
        for _ in range(self._depth):
            asked = [(g, nodes) for g in growing if (nodes := g.take(self._beam))]
            if not asked:
                return
            places = [(g, node) for g, nodes in asked for node in nodes]
            law = heads.law_at([(g.proposal, b, n) for g, n in places if (b := g.branches) is not None])
            for (g, node), guesses in zip(places, self._best(heads.name, places, law), strict=True):
                g.offer(node, guesses)

    def _best(self, source: str, places: Seq[tuple[_Growth, int]], law: Law) -> list[list[Guess]]:
        """The ``fan`` best tokens of the heads at each place."""
        if not len(law.ids):
            return [[] for _ in places]
        logits = law.processed.logits
        scores = logits.index_select(1, law.ids)
        noise: dict[tuple[int, int], Tensor] = {}
        for row, (g, node) in enumerate(places):
            p = g.proposal
            if p.sequence.sampling.greedy or p.verifier != "invariant":
                continue
            # The target's choice is the best of log p plus this noise: a token that leads here is likely to lead there.
            place = p.tx.positions[node + 1].output_index
            key = id(p), place
            if key not in noise:
                drawn = torch.from_numpy(p.sequence.coins.gumbel(place, logits.shape[1])).to(scores)
                noise[key] = drawn[law.ids]
            scores[row] += noise[key]
        best = scores.topk(min(self._fan, scores.shape[1]), dim=-1)
        shares = (best.values - scores.logsumexp(-1, keepdim=True)).exp()
        tokens = law.ids[best.indices]
        # No law without an id, or with a NaN or +inf: the best value tells, and no other id has one.
        sound = law.finite & best.values[:, 0].isfinite()
        # One sync a level: the grammar needs each token on the host before the next place's mask exists.
        told = torch.cat((tokens.double(), shares.double(), law.finite.double()[:, None], sound.double()[:, None]), 1)
        found = []
        n = tokens.shape[1]
        for *row, is_finite, is_sound in told.tolist():
            if not is_finite:
                raise DrafterFault(f"the {source} head's states are not finite")
            pairs = zip(row[:n], row[n:], strict=True) if is_sound else ()
            found.append([Guess(int(token), share, source) for token, share in pairs if share > 0])
        return found

    def remembered(self, proposal: Proposal, index: ContinuationIndex, plan: Seq[int]) -> list[Guess]:
        """The children that grammar and text suggest at the place where the proposal stands; ``plan``: forced there."""
        s = proposal.sequence
        tail = s.history.tokens[-self.longest :]
        legal = proposal.tx.is_legal
        if s.matcher is not None and not plan:
            plan = s.matcher.forced_tokens()
        width = self.width if s.takes_trees else 1
        if plan:
            used = next((t for t, _ in index.after(tail, _SURE) if legal(t)), plan[0])
            tokens = list(dict.fromkeys((used, plan[0])))[:width]
            mask = proposal.tx.position.mask
            if self._heads is None and s.takes_trees and mask is not None:
                # Nobody else says how the target will spell it.
                legal_ids = s.vocabulary.legal_ids(mask)
                tokens += [t for t in legal_ids.tolist() if t not in tokens] if len(legal_ids) <= _FEW else []
            standing = Standing(s.counts, "forced")
            return [
                Guess(
                    t, standing.share(_FORCED[rank] if rank < 2 else _SPELLED, rank), "forced",
                    plan[1:] if t == plan[0] else (),
                )
                for rank, t in enumerate(tokens)
            ]  # fmt: skip
        found = [(t, n) for t, n in index.after(tail) if legal(t)][:width]
        standing = Standing(s.counts, "ngram")
        guesses = []
        for rank, (token, n) in enumerate(found):
            first, second = _LIKELY.get(n, _LONG)
            guesses.append(Guess(token, standing.share(first if rank == 0 else second / rank, rank), "ngram"))
        return guesses

    def is_narrow(self, proposal: Proposal) -> bool:
        """Is this a block of so few drafts that neither branches nor heads are worth what they cost?"""
        return any(self._costs) and proposal.budget < min(_ROOM, proposal.tx.draft_room)

    def prices(self, proposal: Proposal) -> tuple[float, float]:
        """Chance of a path below which a node is left out; chance of what is unknown (``_WORTH``) for a level."""
        node, level = self._costs
        pace = proposal.first / max(1, proposal.sequence.counts.rounds)  # tokens that a target step brought so far
        return max(self._least, node * pace), max(_WORTH, level * pace / _BETTER)


class Standing:
    """How a source's judged drafts of earlier rounds fared in this sequence, beside what its shares are made for."""

    __slots__ = ("_expected", "_found")

    def __init__(self, counts: Counts, source: str) -> None:
        self._expected = expected = _EXPECTED[source]
        self._found = counts.standing(source, expected, _WEIGHT)

    def share(self, share: float, rank: int) -> float:
        """Of a first continuation (``rank`` 0) or another: as given where the source fares as expected."""
        if self._found <= self._expected:
            return share * self._found / self._expected
        missed = (1 - self._found) / (1 - self._expected)
        return 1 - (1 - share) * missed if rank == 0 else share * missed


@dataclass(slots=True, eq=False)
class _Growth:
    """One proposal while its tree grows: the paths that are still to be tried, the likeliest first."""

    proposal: Proposal
    index: ContinuationIndex | None
    drafter: TreeDrafter
    branches: Branches | None = None
    # (-chance of the path, a number that breaks ties, parent, guess)
    heap: list[tuple[float, int, int, Guess]] = field(default_factory=list)
    chance: dict[int, float] = field(default_factory=dict)  # of the path to each node
    known: dict[int, dict[int, float]] = field(default_factory=dict)  # per node: shares that the text gave
    made: int = 0
    narrow: bool = field(init=False)  # a chain of what is remembered
    least: float = field(init=False)  # see ``TreeDrafter.prices``
    worth: float = field(init=False)
    start: int = field(init=False)  # where the tree begins: behind what another source has drafted

    def __post_init__(self) -> None:
        self.start = self.proposal.tx.at
        self.narrow = self.drafter.is_narrow(self.proposal)
        self.least, self.worth = self.drafter.prices(self.proposal)
        self.chance[self.start] = chance_so_far(self.proposal)
        self._remember(self.start, ())

    def offer(self, node: int, guesses: Seq[Guess]) -> None:
        """Children of ``node`` to try. One that is known already counts as much as both beliefs together."""
        known = self.known.setdefault(node, {})
        for g in guesses:
            before = known.get(g.token, 0.0)
            share = 1 - (1 - before) * (1 - g.share)
            known[g.token] = share
            chance = self.chance[node] * share
            if chance >= self.least or not self.proposal.tokens:
                heapq.heappush(self.heap, (-chance, self.made, node, g))
                self.made += 1

    def take(self, beam: int) -> list[int]:
        """Add the likeliest nodes to the tree, until ``beam`` of them wait for the heads' law; these nodes.

        Empty where a level would cost more than it can bring, or nothing could be added below.
        """
        waiting: list[int] = []
        if self.branches is None:
            return waiting
        if len(self.chance) == 1 and self._open(self.start) and self._unknown(self.start) >= min(_ROOT, self.worth):
            return [self.start]
        while self.heap and len(waiting) < beam:
            node = self._pop()
            if node is not None and self._open(node):
                waiting.append(node)
        if len(self.proposal.tokens) >= self.proposal.budget or sum(map(self._unknown, waiting)) < self.worth:
            return []
        return waiting

    def _unknown(self, node: int) -> float:
        """Chance that the text comes to a node and goes on as nothing says so far."""
        return self.chance[node] * (1 - max(self.known.get(node, {}).values(), default=0.0))

    def fill(self) -> None:
        """Use what is left of the budget."""
        while self.heap and len(self.proposal.tokens) < self.proposal.budget:
            self._pop()

    def _open(self, node: int) -> bool:
        """Is it worth asking the heads at this node?"""
        if self.branches is None or node in self.branches.asked:
            return False
        return self.branches.reaches(self.proposal, node)

    def _pop(self) -> int | None:
        """Try the likeliest child: the new node, or None if it is illegal there, known already, or has no room."""
        p = self.proposal
        if len(p.tokens) >= p.budget:
            self.heap.clear()
            return None
        chance, _, parent, guess = heapq.heappop(self.heap)
        count = len(p.tokens)
        if (self.narrow or not p.sequence.takes_trees) and parent in p.tx.parents:
            return None
        node = p.child(parent, guess.token, guess.source)
        if node is None or len(p.tokens) == count:
            return None
        self.chance[node] = -chance
        if p.room > 0:
            self._remember(node, guess.rest)
            return node
        return None

    def _remember(self, node: int, plan: Seq[int]) -> None:
        if self.index is not None:
            self.offer(node, self.drafter.remembered(self.proposal, self.index, plan))
