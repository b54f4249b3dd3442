"""What trained draft heads share: a reduced output vocabulary, the draw, and when a chain ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from constrained_spec.backends.base import FeatureModel
from constrained_spec.backends.products import WIDE, Maker, fastest, quantizer
from constrained_spec.drafters.base import DrafterFault, Proposal, draft_forward
from constrained_spec.drafters.draws import draw
from constrained_spec.drafters.manifest import Part, require_target
from constrained_spec.errors import ModelError
from constrained_spec.processors.base import Position
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction

LEAST = 0.15  # estimated chance of being kept below which a draft costs more than it brings
FEW = 512  # legal ids up to which they are scored one by one, whether the reduced vocabulary has them or not


class ReducedHead:
    """Scores of predicted final states for the most frequent ids, by the target's own rows of the output product.

    An id outside has q = 0, which is exact: such a token is never drafted, and comes as a recovered or bonus token.
    Where a grammar leaves few ids, just these are scored.
    """

    def __init__(self, model: FeatureModel, reduced: Tensor) -> None:  # reduced [R] ids
        self.ids = reduced.to(device=model.device, dtype=torch.long)
        self._model = model
        self._width = model.vocabulary.size
        self._places = reduced.long().cpu().numpy()
        self._member = torch.zeros(self._width, dtype=torch.bool, device=model.device).index_fill_(0, self.ids, True)
        weight = model.head_rows(self.ids).contiguous()
        self.make = _maker(weight)
        self._product = self.make(weight, None)

    def scores(self, states: Tensor) -> Tensor:  # [N, hidden] -> [N, R]
        return self._product(states)

    def candidates(self, position: Position) -> Tensor | None:
        """Ids to score at a place, [n]; None for the reduced vocabulary. Empty: nothing can be drafted here."""
        if position.mask is None:
            return None
        legal = np.unpackbits(position.mask.view(np.uint8), count=self._width, bitorder="little")
        count = int(np.count_nonzero(legal))
        if count <= FEW:
            return torch.from_numpy(np.flatnonzero(legal)).to(self.ids.device)
        return None if legal[self._places].any() else self.ids[:0]

    def reach(self, candidates: Seq[Tensor | None]) -> Tensor:
        """All ids that are scored at any of these places, each once, [R]."""
        few = [ids for ids in candidates if ids is not None]
        if not few:
            return self.ids
        legal: Tensor = torch.cat(few).unique()
        return legal if len(few) == len(candidates) else torch.cat((self.ids, legal[~self._member[legal]]))

    def spread(self, states: Tensor, scores: Tensor | None, candidates: Seq[Tensor | None]) -> Tensor:
        """Logits [N, V] from states [N, hidden]: -inf but for the candidates. ``scores`` [N, R], if known already."""
        out = torch.full((len(states), self._width), float("-inf"), device=states.device)
        dense = [i for i, ids in enumerate(candidates) if ids is None]
        if len(dense) == len(states):
            return out.index_copy_(1, self.ids, (self.scores(states) if scores is None else scores).float())
        if dense:
            rows = self.scores(states[dense]) if scores is None else scores[dense]
            out[dense] = out[dense].index_copy_(1, self.ids, rows.float())
        for i, ids in enumerate(candidates):
            if ids is not None:
                out[i, ids] = (self._model.head_rows(ids) @ states[i]).float()
        return out


def _maker(weight: Tensor) -> Maker:
    """The product for all weights of a part, told by the head's own [R, hidden].

    Drafting is reading weights, and in int8 a quarter of the bytes, for little acceptance and no exactness lost. The
    choice hangs on the kind of machine alone, never on a clock: a seed gives the same drafts again.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[1] >= WIDE:
        return quantizer("int8", weight.device)
    return fastest(weight, (1, 4))[0]


@dataclass(slots=True)
class Chain:
    """What a drafter remembers of one open block. A node is the number of a draft, -1 before the first."""

    tx: Transaction
    trust: dict[int, float] = field(default_factory=lambda: {-1: 1.0})  # chance that all drafts up to a node are kept
    ended: set[int] = field(default_factory=set)  # nodes after which this drafter gave up

    def chance(self, node: int) -> float:
        """Trust in a node, or in the nearest above it that this drafter knows."""
        while node not in self.trust:
            node = self.tx.parents[node]
        return self.trust[node]


@dataclass(slots=True)
class Branches(ABC):
    """What heads know of one open tree of drafts, which they do not grow themselves (see ``TreeDrafter``)."""

    asked: set[int] = field(default_factory=set, init=False)  # nodes after which the law was given; -1 the root

    @abstractmethod
    def reaches(self, p: Proposal, node: int) -> bool:
        """Can the law after ``node`` be given, at a price that it is worth?"""


Place = tuple[Proposal, Branches, int]  # the place after a node of a tree


@dataclass(frozen=True, slots=True)
class Law:
    """What heads think of N places. ``ids`` [R]: no other id has a chance at any of them."""

    processed: Processed
    finite: Tensor  # [N] bool: the predicted state is
    ids: Tensor


class HeadDrafter(ABC):
    """Drafts one token after another from predicted final states.

    ``least`` ends a chain: no draft is drawn at a place where the product of the largest q up to and with it falls
    below. That looks at q alone, before anything is drawn from it, so it depends on the tokens before the place only.
    At temperature 0 a draft is a point mass, and for the "invariant" verifier it is the choice that the target's own
    noise makes in q. A state that is not finite raises ``DrafterFault``.
    """

    name: str
    kind: str

    def __init__(
        self,
        model: FeatureModel,
        pipeline: Pipeline,
        part: Part,
        *,
        least: float = LEAST,
        allow_variants: bool = False,
    ) -> None:
        """Raises ``VocabularyMismatchError`` or ``ModelError`` for a part that was made for another target."""
        if part.manifest.kind != self.kind:
            raise ModelError(f"the part is of kind {part.manifest.kind!r}, not {self.kind!r}", param="drafter")
        require_target(part, model, allow_variants=allow_variants)
        model.keep_features()
        self._model = model
        self._pipeline = pipeline
        self._least = least
        self._head = ReducedHead(model, part.tensors["reduced"])
        self._chains: dict[int, Chain] = {}

    def open(self, sequence: Sequence) -> None:
        """No chain is left of an earlier sequence at the same address."""
        self._chains.pop(id(sequence), None)

    def close(self, sequence: Sequence) -> None:
        self._chains.pop(id(sequence), None)

    @abstractmethod
    def _begin(self, proposals: Seq[Proposal]) -> list[Chain | None]:
        """A chain for each new block, None where nothing can be drafted (no final states yet)."""

    @abstractmethod
    def _states(self, live: Seq[tuple[Proposal, Chain]]) -> tuple[Tensor, Tensor | None]:
        """Predicted final state of each block's last token [N, hidden], and its scores [N, R] if known already."""

    @abstractmethod
    def _reaches(self, p: Proposal, chain: Chain) -> bool:
        """May this drafter extend the block where it ends now? Depends on the number of drafts, not on their values."""

    @abstractmethod
    def branches(self, proposals: Seq[Proposal]) -> list[Branches | None]:
        """The root of a tree for each new block, None where nothing can be drafted (no final states yet)."""

    @abstractmethod
    def _states_at(self, places: Seq[Place]) -> Tensor:
        """Predicted final state after each node, [N, hidden]."""

    def law_at(self, places: Seq[Place]) -> Law:
        """The law at N places of trees, the row's pipeline applied."""
        for _, branches, node in places:
            branches.asked.add(node)
        positions = [p.tx.positions[node + 1] for p, _, node in places]
        candidates = [self._head.candidates(position) for position in positions]
        with draft_forward([p for p, _, _ in places]):
            states = self._states_at(places)
            logits = self._head.spread(states, None, candidates)
        processed = self._pipeline.process(logits, positions, [p.sequence.processors for p, _, _ in places])
        return Law(processed, states.isfinite().all(-1), self._head.reach(candidates))

    def propose(self, proposals: Seq[Proposal]) -> None:
        """One small step per place, for all rows together."""
        with torch.inference_mode():
            live = self._resume([p for p in proposals if p.room > 0])
            while live:
                live = self._extend(live)

    def _resume(self, proposals: Seq[Proposal]) -> list[tuple[Proposal, Chain]]:
        """The block of a proposal may be this drafter's own from a moment ago: a mixture asks again and again."""
        known = [self._chains.get(id(p.sequence)) for p in proposals]
        fresh = [p for p, chain in zip(proposals, known, strict=True) if chain is None or chain.tx is not p.tx]
        with draft_forward(fresh):
            chains = self._begin(fresh) if fresh else ()
        for p, begun in zip(fresh, chains, strict=True):
            self._chains.pop(id(p.sequence), None)
            if begun is not None:
                self._chains[id(p.sequence)] = begun
        pairs = [(p, self._chains.get(id(p.sequence))) for p in proposals]
        return [(p, chain) for p, chain in pairs if chain is not None and self._open_at(p, chain)]

    def _open_at(self, p: Proposal, chain: Chain) -> bool:
        return p.room > 0 and p.tx.at not in chain.ended and self._reaches(p, chain)

    def _extend(self, live: list[tuple[Proposal, Chain]]) -> list[tuple[Proposal, Chain]]:
        """Draw one more draft for each block; those that go on."""
        found = [self._head.candidates(p.tx.position) for p, _ in live]
        for (p, chain), ids in zip(live, found, strict=True):
            if ids is not None and not len(ids):
                chain.ended.add(p.tx.at)
        keep = [i for i, (p, chain) in enumerate(live) if p.tx.at not in chain.ended]
        live, found = [live[i] for i in keep], [found[i] for i in keep]
        if not live:
            return []
        with draft_forward([p for p, _ in live]):
            states, scores = self._states(live)
            logits = self._head.spread(states, scores, found)
        finite = states.isfinite().all(-1)
        rows = [p for p, _ in live]
        processed = self._pipeline.process(logits, [p.tx.position for p in rows], [p.sequence.processors for p in rows])
        tokens, q, surest = self._draw(processed, rows, all(ids is None for ids in found))
        # One sync: the grammar needs each token on the host before the next place's mask exists.
        table = torch.stack((tokens.double(), surest.double(), processed.dead.double(), finite.double())).tolist()
        going = []
        for i, (p, chain) in enumerate(live):
            token, sure, dead, sound = int(table[0][i]), table[1][i], table[2][i], table[3][i]
            if not sound:
                raise DrafterFault(f"the {self.name} head's states are not finite")
            # Dead all the same: the request bans every candidate.
            chance = chain.chance(p.tx.at) * sure
            if dead or chance < self._least:
                chain.ended.add(p.tx.at)
                continue
            if q is None or p.sequence.sampling.greedy or p.verifier == "invariant":
                if not p.point(token, self.name):
                    raise DrafterFault(f"drafter {self.name!r} chose id {token}, which the grammar forbids")
            else:
                p.sampled(token, q[i], self.name)
            chain.trust[p.tx.at] = chance
            if self._open_at(p, chain):
                going.append((p, chain))
        return going

    def _draw(self, processed: Processed, rows: Seq[Proposal], dense: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Next draft of each row [N], the rows [N, V] it was drawn from (None: all are point masses), largest q [N].

        For a greedy row, whose q is a point mass, the largest probability at temperature 1 stands for it. ``dense``:
        no id outside the reduced vocabulary can have a positive q.
        """
        if all(processed.greedy):
            scores = processed.logits.index_select(1, self._head.ids) if dense else processed.logits
            return processed.choices(), None, (scores.amax(-1) - scores.logsumexp(-1)).exp()
        q = processed.probabilities()
        surest = q.amax(-1)
        if any(processed.greedy):
            greedy = torch.tensor(processed.greedy, device=q.device)
            at_one = (processed.logits.amax(-1) - processed.logits.logsumexp(-1)).exp()
            surest = torch.where(greedy, at_one, surest)
        tokens = draw(processed, rows, self._head.ids if dense else None)
        return tokens, q, surest


def committed(p: Proposal) -> int:
    """Tokens of the sequence before the drafts of the open block."""
    return p.sequence.history.prompt_length + p.first


def drafts(p: Proposal) -> list[int]:
    """The drafts before the place where the next one would stand: of a tree, the path."""
    return p.sequence.history.tokens[committed(p) :]
