"""Trees of drafts: several continuations of one prefix, of which the target may follow any."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.coins import Role
from constrained_spec.drafters.base import DrafterFault, Proposal
from constrained_spec.drafters.model import _match_width, require_same_vocabulary
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.errors import ConfigError
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.tree import TreeKv, TreeSlots
from constrained_spec.types import History, Vocabulary
from constrained_spec.verify import inverse_cdf

_SURE = 2  # tokens before a forced place that must agree with an earlier place, for its spelling to count
# How likely the first and the second continuation are thought to be, by the length of the n-gram they follow.
_LIKELY = {1: (0.45, 0.25), 2: (0.65, 0.2), 3: (0.8, 0.15)}
_FORCED = (0.9, 0.3)
_LEAST = 0.06  # a path thought less likely than this is not worth its place in the block


class ContinuationIndex:
    """The latest different tokens behind each n-gram of the committed tokens: participant, O(1) per token.

    Keys are tuples of 1..n ids; the value are the last ``kept`` different ids that followed, the newest first.
    """

    __slots__ = ("_followers", "_history", "_length", "_undo", "kept", "n")

    def __init__(self, history: History, n: int, kept: int) -> None:
        self.n, self.kept = n, kept
        self._history = history
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._undo: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._length = 0
        for token in list(history.tokens):
            self.advance(token)
        # The prompt is never rolled back.
        self._undo.clear()

    def mark(self) -> tuple[int, int]:
        return self._length, len(self._undo)

    def advance(self, token: int) -> None:
        # The history holds the tokens before this one; whether it holds this one already does not matter.
        tokens, i = self._history.tokens, self._length
        for n in range(1, min(self.n, i) + 1):
            key = tuple(tokens[i - n : i])
            before = self._followers.get(key, ())
            self._undo.append((key, before))
            self._followers[key] = (token, *(t for t in before if t != token))[: self.kept]
        self._length = i + 1

    def rollback(self, mark: tuple[int, int]) -> None:
        self._length, length = mark
        while len(self._undo) > length:
            key, before = self._undo.pop()
            if before:
                self._followers[key] = before
            else:
                del self._followers[key]

    def fingerprint(self) -> bytes:
        state = (self._length, sorted(self._followers.items()))
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()

    def after(self, tail: Seq[int], shortest: int = 1) -> list[tuple[int, int]]:
        """(token, length of the n-gram) of what followed the endings of ``tail``: longest first, then newest first."""
        found: dict[int, int] = {}
        for n in range(min(self.n, len(tail)), shortest - 1, -1):
            for token in self._followers.get(tuple(tail[-n:]), ()):
                found.setdefault(token, n)
        return list(found.items())


class TreeNgramDrafter:
    """Guesses from the text itself: at each place the ``width`` most recent continuations, the likeliest paths first.

    Where the grammar forces text, these are the spelling that the sequence used before and the tokeniser's own. The
    budget of the block goes to one path after another in the order of how likely they are thought to be, so a text
    that was only ever continued in one way gives a chain. Where no n-gram is known at all, it copies as
    ``NgramDrafter`` does. All drafts are guesses, chosen from the text before their place alone.
    """

    name = "tree-ngram"

    def __init__(self, longest: int = 4, width: int = 2) -> None:
        if not 1 <= width <= 8:
            raise ConfigError(f"a tree has 1 to 8 branches per node, not {width}", param="width")
        self.longest, self.width = longest, width
        self._memory = NgramDrafter(longest)
        self._indices: dict[int, ContinuationIndex] = {}  # by id of an open sequence

    def open(self, sequence: Sequence) -> None:
        self._memory.open(sequence)
        if id(sequence) not in self._indices:
            index = ContinuationIndex(sequence.history, self.longest, self.width)
            self._indices[id(sequence)] = index
            sequence.follow(index)

    def close(self, sequence: Sequence) -> None:
        self._memory.close(sequence)
        self._indices.pop(id(sequence), None)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            before = len(proposal.tokens)
            self._grow(proposal)
            if len(proposal.tokens) == before:
                self._memory.propose([proposal])

    def _grow(self, proposal: Proposal) -> None:
        # Entries are (-chance of the path, a number that breaks ties, parent, token, source, forced text behind it).
        heap: list[tuple[float, int, int, int, str, list[int]]] = []
        made = 0

        def offer(chance: float, plan: list[int]) -> None:
            nonlocal made
            for token, share, source, rest in self._continuations(proposal, plan):
                if chance * share >= _LEAST or not proposal.tokens:
                    heapq.heappush(heap, (-chance * share, made, proposal.tx.at, token, source, rest))
                    made += 1

        if proposal.room > 0:
            offer(1.0, [])
        while heap and len(proposal.tokens) < proposal.budget:
            chance, _, parent, token, source, rest = heapq.heappop(heap)
            count = len(proposal.tokens)
            proposal.child(parent, token, source)
            if len(proposal.tokens) > count and proposal.room > 0:
                offer(-chance, rest)

    def _continuations(self, proposal: Proposal, plan: list[int]) -> list[tuple[int, float, str, list[int]]]:
        """(token, share, source, forced tokens behind it) of the children to try at the place where it stands."""
        s = proposal.sequence
        tail = s.history.tokens[-self.longest :]
        legal = proposal.tx.is_legal
        if s.matcher is not None and not plan:
            plan = s.matcher.forced_tokens()
        index = self._indices[id(s)]
        width = self.width if s.takes_trees else 1
        if plan:
            used = next((t for t, _ in index.after(tail, _SURE) if legal(t)), plan[0])
            tokens = [used, plan[0]] if used != plan[0] else [used]
            kinds = [(t, "forced", plan[1:] if t == plan[0] else []) for t in tokens[:width]]
            return [(t, share, source, rest) for (t, source, rest), share in zip(kinds, _FORCED, strict=False)]
        found = [(t, n) for t, n in index.after(tail) if legal(t)][:width]
        out = []
        for rank, (token, n) in enumerate(found):
            first, second = _LIKELY.get(n, (0.9, 0.1))
            out.append((token, first if rank == 0 else second / rank, self.name, list[int]()))
        return out


class TreeModelDrafter:
    """A draft model whose every node gets several children: drawn from q without replacement (`verify.tree`).

    q is the pipeline of the draft's logits at the node's own place, masked and penalised along its path. ``width``
    children per node, ``depth`` levels, and per level the ``beam`` nodes that the draft thinks most likely are
    extended: that depends on tokens drawn before, and so do all sizes. For the "invariant" verifier the children are
    the ``width`` best by the target's own noise, at temperature 0 the best by logit: guesses. Where the target scores
    no trees, the tree is a chain.

    One forward per level of the whole tree so far, for all rows together. One object per draft model: it owns the
    model's slots, so a model that serves it serves no ``ModelDrafter``.
    """

    name = "tree-model"

    def __init__(
        self,
        model: LanguageModel,
        pipeline: Pipeline,
        target: Vocabulary,
        *,
        width: int = 2,
        depth: int = 4,
        beam: int = 2,
    ) -> None:
        require_same_vocabulary(target, model.vocabulary)
        if not isinstance(model, TreeSlots):
            raise ConfigError(f"{model.name} scores no trees of drafts", param="draft_model")
        for name, value in (("width", width), ("depth", depth), ("beam", beam)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}", param=name)
        self._model: LanguageModel = model
        self._trees: TreeSlots = model
        self._pipeline = pipeline
        self._vocabulary = target.size
        self._width, self._depth, self._beam = width, depth, beam
        self._caches: dict[int, TreeKv] = {}
        self._free = list(range(model.slots))

    def open(self, sequence: Sequence) -> None:
        if not self._free:
            raise ConfigError("the draft model has no free slot", param="slots", hint="load it with more slots")
        slot = self._free.pop()
        self._model.set_length(slot, 0)
        cache = TreeKv(self._trees, slot)
        self._caches[id(sequence)] = cache
        sequence.caches.append(cache)

    def close(self, sequence: Sequence) -> None:
        cache = self._caches.pop(id(sequence), None)
        if cache is not None:
            self._free.append(cache.slot)
            sequence.caches.remove(cache)

    def propose(self, proposals: Seq[Proposal]) -> None:
        """Sizes are fixed before a token is drawn at a place. Says nothing where it has spoken already."""
        live = [
            _Growth(p, self._caches[id(p.sequence)], self._model.capacity)
            for p in proposals
            if p.room > 0 and self.name not in p.tx.sources
        ]
        for _ in range(self._depth):
            live = [g for g in live if g.plan(self._width, self._beam)]
            if not live:
                return
            logits = self._score(live)
            positions = [g.proposal.tx.positions[node + 1] for g in live for node in g.nodes]
            custom = [g.proposal.sequence.processors for g in live for _ in g.nodes]
            self._draw(self._pipeline.process(_match_width(logits, self._vocabulary), positions, custom), live)

    def _score(self, live: Seq[_Growth]) -> Tensor:
        """The draft's logits at each node to be extended, [sum of nodes, V]."""
        ahead = [block for g in live if (block := g.ahead()) is not None]
        if ahead:
            self._model.score(ahead)
        blocks = [g.block() for g in live]
        logits = self._model.score(blocks)
        rows, at = [], 0
        for g, block in zip(live, blocks, strict=True):
            # The block ends with the last draft, so row ``want - 1`` stands behind draft ``count - 1``.
            at += block.want
            rows += [at - len(g.proposal.tokens) + node for node in g.nodes]
        return logits[rows]

    def _draw(self, processed: Processed, live: Seq[_Growth]) -> None:
        """Draw the children of every node and put them into the proposals."""
        width = max(k for g in live for k in g.sizes)
        q = processed.probabilities()
        owners = [g for g in live for _ in g.nodes]
        starts = [sum(len(g.nodes) for g in live[:i]) for i in range(len(live))]
        guessed = [i for i, g in enumerate(owners) if g.guesses]
        sampled = [i for i, g in enumerate(owners) if not g.guesses]
        tokens = torch.zeros(len(owners), width, dtype=torch.long, device=q.device)
        possible = torch.zeros(len(owners), dtype=torch.long, device=q.device)
        if sampled:
            coins = torch.tensor([c for g in live if not g.guesses for c in g.coins(width)], dtype=torch.float64)
            left = q[sampled].clone()
            possible[sampled] = (left > 0).sum(1)
            drawn = []
            for i in range(width):
                drawn.append(inverse_cdf(left, coins[:, i].to(q.device)))
                left.scatter_(1, drawn[-1].unsqueeze(1), 0)
            tokens[sampled] = torch.stack(drawn, 1)
        if guessed:
            scores = torch.cat([g.scores(processed, q, at) for g, at in zip(live, starts, strict=True) if g.guesses])
            best = scores.topk(min(width, scores.shape[1]), dim=1)
            tokens[guessed, : best.indices.shape[1]] = best.indices
            possible[guessed] = best.values.isfinite().sum(1)
        # At temperature 0 q is a point mass; how paths compare is then what the logits say.
        chances = processed.logits.softmax(-1) if any(processed.greedy) else q
        told = torch.cat(
            (
                tokens.double(),
                chances.gather(1, tokens).double(),
                possible.double()[:, None],
                processed.dead.double()[:, None],
            ),
            dim=1,
        ).tolist()  # one sync: the grammar needs each token on the host before the next place's mask exists
        for g, at in zip(live, starts, strict=True):
            n = len(g.nodes)
            if any(row[-1] for row in told[at : at + n]):
                raise DrafterFault("the draft model's logits are not finite, or leave no token")
            g.extend(self.name, told[at : at + n], width, None if g.guesses else q[at : at + n])


class _Growth:
    """One proposal while the draft model extends it level by level."""

    __slots__ = ("_cache", "_capacity", "_chances", "nodes", "proposal", "sizes")

    def __init__(self, proposal: Proposal, cache: TreeKv, capacity: int) -> None:
        self.proposal = proposal
        self._cache = cache
        self._capacity = capacity
        self._chances = {proposal.tx.at: 1.0}  # of the newest level: how likely the draft thinks each path
        self.nodes: list[int] = []  # to be extended now, ascending
        self.sizes: list[int] = []  # children of each

    @property
    def guesses(self) -> bool:
        p = self.proposal
        return p.sequence.sampling.greedy or p.verifier == "invariant"

    def plan(self, width: int, beam: int) -> bool:
        """Choose the nodes to extend and how many children each gets. False: there is nothing to do."""
        p = self.proposal
        if not p.sequence.takes_trees:
            width = beam = 1
        tx, s = p.tx, p.sequence
        places = min(s.capacity, self._capacity) - tx.base - len(p.tokens)
        left = min(p.budget - len(p.tokens), places)
        chosen: dict[int, int] = {}
        for node in sorted(self._chances, key=lambda n: (-self._chances[n], n)):
            if left <= 0 or len(chosen) == beam:
                break
            tx.move(node)
            if p.room > 0:
                chosen[node] = min(width, left)
                left -= chosen[node]
        self.nodes = sorted(chosen)
        self.sizes = [chosen[node] for node in self.nodes]
        return bool(chosen)

    def ahead(self) -> Block | None:
        """Committed tokens that the draft has not read, where drafts stand behind them already."""
        tx = self.proposal.tx
        if not tx.drafts or self._cache.length >= tx.base:
            return None
        return Block(self._cache.slot, self.proposal.sequence.history.tokens[self._cache.length : tx.base], want=0)

    def block(self) -> Block:
        """The tokens whose last ones are the nodes to be extended."""
        tx, s = self.proposal.tx, self.proposal.sequence
        if not tx.drafts:
            self._cache.rollback(tx.base - 1)
            return Block(self._cache.slot, s.history.tokens[self._cache.length : tx.base], want=1)
        if self.nodes[0] < 0:
            # The root is asked for again, behind drafts that another source has put there.
            self._cache.rollback(tx.base - 1)
            tokens = [s.history.tokens[tx.base - 1], *tx.drafts]
            parents = [-1, *(parent + 1 for parent in tx.parents)]
            return Block(self._cache.slot, tokens, want=len(tokens), parents=parents)
        self._cache.rollback(tx.base)
        return Block(self._cache.slot, list(tx.drafts), want=len(tx.drafts) - self.nodes[0], parents=list(tx.parents))

    def coins(self, width: int) -> list[list[float]]:
        """A draft coin per child of each node: all are of one place, and the first is a chain's."""
        p = self.proposal
        place = p.tx.positions[self.nodes[0] + 1].output_index
        flat = p.sequence.coins.uniforms(Role.DRAFT, p.round, place, width * len(self.nodes))
        return flat.reshape(len(self.nodes), width).tolist()

    def scores(self, processed: Processed, q: Tensor, first: int) -> Tensor:  # -> [nodes, V] float64
        """What orders the guesses, rows ``first`` on: the logits, or the target's own noise on top of log q."""
        p = self.proposal
        rows = slice(first, first + len(self.nodes))
        if p.sequence.sampling.greedy:
            return processed.logits[rows].double()
        place = p.tx.positions[self.nodes[0] + 1].output_index
        noise = torch.from_numpy(p.sequence.coins.gumbel(place, q.shape[1])).to(q.device)
        return q[rows].double().log() + noise

    def extend(self, source: str, told: Seq[list[float]], width: int, q: Tensor | None) -> None:
        """``told`` holds per node: tokens, their chances, how many tokens are possible, and whether the row is dead."""
        grown: dict[int, float] = {}
        for i, (node, size, row) in enumerate(zip(self.nodes, self.sizes, told, strict=True)):
            own = None if q is None else q[i]
            for j in range(min(size, int(row[2 * width]))):
                child = self.proposal.child(node, int(row[j]), source, own)
                if child is None:
                    raise DrafterFault(f"drafter {source!r} chose id {int(row[j])}, which the grammar forbids")
                grown[child] = self._chances[node] * row[width + j]
        self._chances = grown
