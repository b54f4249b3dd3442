"""Trees of drafts from a draft model: every node gets several children, drawn without replacement."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.coins import Role
from constrained_spec.drafters.base import DrafterFault, Proposal, draft_forward
from constrained_spec.drafters.model import _match_width, require_same_vocabulary
from constrained_spec.errors import ConfigError
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.tree import TreeKv, TreeSlots
from constrained_spec.types import Vocabulary
from constrained_spec.verify import inverse_cdf


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
        blocks = [g.block() for g in live]
        with draft_forward([g.proposal for g in live]):
            if ahead:
                self._model.score(ahead)
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
