"""Trees of guesses from everything known: the grammar, the text itself, and trained heads."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from constrained_spec.drafters.base import DrafterFault, Proposal, draft_forward
from constrained_spec.drafters.continuations import ContinuationIndex
from constrained_spec.drafters.draws import has_noise
from constrained_spec.drafters.heads import Branches, HeadDrafter, Law
from constrained_spec.drafters.mixture import chance_so_far
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.drafters.quantized import steps_taken
from constrained_spec.errors import ConfigError
from constrained_spec.state.sequence import Counts, Sequence
from constrained_spec.state.transaction import Transaction

_SURE = 2  # tokens before a forced place that must agree with an earlier place, for its spelling to count
# How likely the first and the second continuation are thought to be, by the length of the n-gram they follow.
_LIKELY = {1: (0.28, 0.06), 2: (0.55, 0.07), 3: (0.65, 0.08), 4: (0.75, 0.05), 5: (0.85, 0.05)}
_LONG = (0.95, 0.03)  # behind longer ones
_FORCED = (0.7, 0.1)  # the spelling used before, or else the tokeniser's own, and the other one of these
_FEW = 16  # legal ids up to which forced text may be spelled in any way that is legal
_LEAST = 0.01  # a path thought less likely than this is not worth its place in the block
_EXPECTED = {"forced": 0.7, "ngram": 0.65}  # share of the judged places that stand where the above is true
_WEIGHT = 6  # judgements that this belief counts for
# Chance that the text comes to a place of a level with a token unknown before, below which none is asked: where drafts
# cost, and where the whole budget is used.
_WORTH, _FREE = 0.1, 0.02
_ROOT = 0.25  # the same for the root, which is asked from there on whatever a level costs
_TRUST = 0.75  # share of what heads think of free text under the target's noise that comes true
_NOISE = 0.8  # weight of the target's noise beside the heads' law; measured, from 0.7 to 1 it matters little
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
    level by level, at most ``beam`` places and ``depth`` levels (the dynamic trees of EAGLE-2, Li et al. 2024). Of how
    the target spells forced text they know more than the text, of what it copies less (see ``_Growth.weigh``); where
    they cannot be asked, every legal spelling is a child. ``memory`` False leaves all to the heads.

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
        fan: int = 6,
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
        fresh = []
        for p in proposals:
            # A mixture asks again behind what is a chain; the budget that is left there is left on purpose.
            if p.room > 0 and self._grown.get(id(p.sequence)) is not p.tx:
                self._grown[id(p.sequence)] = p.tx
                fresh.append(p)
        with torch.inference_mode():
            roots = self._roots(fresh)
            growing = [_Growth(p, self._indices.get(id(p.sequence)), self, roots.get(id(p))) for p in fresh]
            self._extrapolate(growing)
        for g in growing:
            g.fill()
            if self._memory is not None and not g.proposal.tokens:
                self._memory.propose([g.proposal])

    def _roots(self, proposals: Seq[Proposal]) -> dict[int, Branches]:
        """By id of a proposal: where the heads begin, if they can."""
        if self._heads is None:
            return {}
        asking = [p for p in proposals if not self.is_narrow(p)]
        with draft_forward(asking):
            roots = self._heads.branches(asking)
        return {id(p): root for p, root in zip(asking, roots, strict=True) if root is not None}

    def _extrapolate(self, growing: Seq[_Growth]) -> None:
        """Level by level: the heads' law at the likeliest places so far, and its best tokens as children to try."""
        heads = self._heads
        if heads is None:
            return
        for _ in range(self._depth):
            asked = [(g, nodes) for g in growing if (nodes := g.take(self._beam))]
            if not asked:
                return
            places = [(g, node) for g, nodes in asked for node in nodes]
            law = heads.law_at([(g.proposal, b, n) for g, n in places if (b := g.branches) is not None])
            for (g, node), opinion in zip(places, self._opinions(heads.name, places, law), strict=True):
                g.weigh(node, opinion)

    def _opinions(self, source: str, places: Seq[tuple[_Growth, int]], law: Law) -> list[list[Guess]]:
        """What the heads think of each place: their ``fan`` best tokens, and what the text suggests there."""
        if not len(law.ids):
            return [[] for _ in places]
        logits = law.processed.logits
        scores = logits.index_select(1, law.ids)
        known = [list(g.known.get(node, ())) for g, node in places]
        width = max(map(len, known))
        # A row is filled up with any token: its share is not read.
        filled = [[*ids, *[0] * (width - len(ids))] for ids in known]
        told = torch.tensor(filled, dtype=torch.long, device=logits.device).view(len(known), width)
        texts = logits.gather(1, told)
        noise: dict[tuple[int, int], Tensor] = {}
        for row, (g, node) in enumerate(places):
            p = g.proposal
            if not has_noise(p):
                continue
            # The target's choice is the best of log p plus this noise: a token that leads here is likely to lead there.
            # The heads' law is an estimate, flatter than p, where the noise would decide more than it does in p.
            place = p.tx.positions[node + 1].output_index
            key = id(p), place
            if key not in noise:
                noise[key] = torch.from_numpy(p.sequence.coins.gumbel(place, logits.shape[1])).to(scores) * _NOISE
            scores[row] += noise[key][law.ids]
            texts[row] += noise[key][told[row]]
        best = scores.topk(min(self._fan, scores.shape[1]), dim=-1)
        total = scores.logsumexp(-1, keepdim=True)
        shares = torch.cat(((best.values - total).exp(), (texts - total).exp()), 1)
        tokens = law.ids[best.indices]
        # No law without an id, or with a NaN or +inf: the best value tells, and no other id has one.
        sound = law.finite & best.values[:, 0].isfinite()
        # One sync a level: the grammar needs each token on the host before the next place's mask exists.
        table = torch.cat((tokens.double(), shares.double(), law.finite.double()[:, None], sound.double()[:, None]), 1)
        found = []
        n = tokens.shape[1]
        for ids, (*row, is_finite, is_sound) in zip(known, table.tolist(), strict=True):
            if not is_finite:
                raise DrafterFault(f"the {source} head's states are not finite")
            thought = zip([*map(int, row[:n]), *ids], row[n:], strict=False)
            found.append([Guess(token, share, source) for token, share in dict(thought).items()] if is_sound else [])
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
            standing = Standing(s.counts, "forced")
            return [
                Guess(t, standing.share(_FORCED[rank], rank), "forced", plan[1:] if t == plan[0] else ())
                for rank, t in enumerate(tokens)
            ]
        found = [(t, n) for t, n in index.after(tail) if legal(t)][:width]
        standing = Standing(s.counts, "ngram")
        guesses = []
        for rank, (token, n) in enumerate(found):
            first, second = _LIKELY.get(n, _LONG)
            guesses.append(Guess(token, standing.share(first if rank == 0 else second / rank, rank), "ngram"))
        return guesses

    def foresees(self, proposal: Proposal) -> float:
        """How likely the grammar or the text itself thinks its best continuation to be."""
        index = self._indices.get(id(proposal.sequence))
        found = [] if index is None else self.remembered(proposal, index, ())
        return max((guess.share for guess in found), default=0.0)

    def is_narrow(self, proposal: Proposal) -> bool:
        """Is this a block of so few drafts that neither branches nor heads are worth what they cost?"""
        return any(self._costs) and proposal.budget < min(_ROOM, proposal.tx.draft_room)

    def prices(self, proposal: Proposal) -> tuple[float, float]:
        """Chance of a path below which a node is left out; chance of what is unknown (``_WORTH``) for a level."""
        if not any(self._costs):
            return self._least, _FREE
        node, level = self._costs
        counts = proposal.sequence.counts
        pace = proposal.first / max(1, counts.rounds + steps_taken(counts))  # tokens that a target step brought so far
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


def agreed(text: float, heads: float) -> float:
    """How likely a continuation is that the text has seen (``text``), when the heads think ``heads`` of it.

    Logistic regression on all suites: the heads tell little of what is being copied.
    """
    return 1 / (1 + math.exp(-(0.7 + 0.17 * _log_odds(heads) + _log_odds(text))))


def _log_odds(share: float) -> float:
    share = min(max(share, 1e-4), 1 - 1e-4)
    return math.log(share / (1 - share))


@dataclass(slots=True, eq=False)
class _Growth:
    """One proposal while its tree grows: the paths that are still to be tried, the likeliest first."""

    proposal: Proposal
    index: ContinuationIndex | None
    drafter: TreeDrafter
    branches: Branches | None
    # (-chance of the path, a number that breaks ties, parent, guess)
    heap: list[tuple[float, int, int, Guess]] = field(default_factory=list)
    chance: dict[int, float] = field(default_factory=dict)  # of the path to each node
    known: dict[int, dict[int, float]] = field(default_factory=dict)  # per node: shares of the tokens behind it
    forced: set[int] = field(default_factory=set)  # nodes behind which the grammar forces the text
    made: int = 0
    noised: bool = field(init=False)  # do the heads' shares hold the noise of the target's choice?
    narrow: bool = field(init=False)  # a chain of what is remembered
    least: float = field(init=False)  # see ``TreeDrafter.prices``
    worth: float = field(init=False)
    start: int = field(init=False)  # where the tree begins: behind what another source has drafted

    def __post_init__(self) -> None:
        self.start = self.proposal.tx.at
        self.noised = has_noise(self.proposal)
        self.narrow = self.drafter.is_narrow(self.proposal)
        self.least, self.worth = self.drafter.prices(self.proposal)
        self.chance[self.start] = chance_so_far(self.proposal)
        self._remember(self.start, ())

    def weigh(self, node: int, opinion: Seq[Guess]) -> None:
        """The heads' shares at ``node``, beside what the text knows there. Paths through it change their chance."""
        known = self.known.setdefault(node, {})
        before = dict(known)
        if node in self.forced or not known:
            # How forced text will be spelled is the target's habit: there the heads know better than any table.
            trust = 1.0 if node in self.forced or not self.noised else _TRUST
            known |= {g.token: g.share * trust for g in opinion}
        else:
            known |= {g.token: agreed(before[g.token], g.share) for g in opinion if g.token in before}
            rest = max(0.0, 1 - sum(known.values()))
            known |= {g.token: g.share * rest for g in opinion if g.token not in before}
        for g in opinion:
            if known[g.token] > before.get(g.token, 0.0):
                self._push(node, g)
        p = self.proposal
        for child in range(self.start + 1, len(p.tokens)):
            parent = p.tx.parents[child]
            self.chance[child] = self.chance[parent] * self.known[parent][p.tokens[child]]

    def _push(self, node: int, guess: Guess) -> None:
        chance = self.chance[node] * self.known[node][guess.token]
        heapq.heappush(self.heap, (-chance, self.made, node, guess))
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
        for node in sorted(self.forced):
            if self.branches is None or node not in self.branches.asked:
                self._spell(node)
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
        if len(p.tokens) >= p.budget or (-self.heap[0][0] < self.least and p.tokens):
            # One draft a block is worth its place, however unlikely.
            self.heap.clear()
            return None
        chance, _, parent, guess = heapq.heappop(self.heap)
        now = self.chance[parent] * self.known[parent][guess.token]
        if now < -chance:
            # Thought likelier when it was put there.
            self._push(parent, guess)
            return None
        count = len(p.tokens)
        if (self.narrow or not p.sequence.takes_trees) and parent in p.tx.parents:
            return None
        node = p.child(parent, guess.token, guess.source)
        if node is None or len(p.tokens) == count:
            return None
        self.chance[node] = now
        if p.room > 0:
            self._remember(node, guess.rest)
            return node
        return None

    def _remember(self, node: int, plan: Seq[int]) -> None:
        if self.index is None:
            return
        guesses = self.drafter.remembered(self.proposal, self.index, plan)
        self.known[node] = {g.token: g.share for g in guesses}
        for g in guesses:
            self._push(node, g)
        if guesses and guesses[0].source == "forced":
            self.forced.add(node)
            if self.branches is None:
                self._spell(node)

    def _spell(self, node: int) -> None:
        """All that forced text may begin with, where the heads do not say how the target will spell it."""
        p, known = self.proposal, self.known[node]
        rest = 1 - sum(known.values())
        mask = p.tx.positions[node + 1].mask
        if self.narrow or mask is None or not p.sequence.takes_trees or self.chance[node] * rest < self.least:
            return
        legal = p.sequence.vocabulary.legal_ids(mask)
        others = [token for token in legal.tolist() if token not in known] if len(legal) <= _FEW else []
        for token in others:
            known[token] = rest / len(others)
            self._push(node, Guess(token, known[token], "forced"))
