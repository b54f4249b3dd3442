"""One decoder layer extrapolates the target's final states (EAGLE, Li et al. 2024; unrolled training: EAGLE-3, 2025).

Entry i of the layer reads the target's final state after token i and the embedding of token i + 1, attends to the
entries before it, and predicts the state after token i + 1, whose product with the target's own output rows gives the
law of token i + 2. Behind the known text the predicted states stand in for the true ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from constrained_spec.backends.base import FeatureModel
from constrained_spec.backends.products import Maker
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.heads import LEAST, Branches, Chain, HeadDrafter, Place, committed, drafts
from constrained_spec.drafters.manifest import Part
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.participant import KvState
from constrained_spec.state.sequence import Sequence

_CHUNK = 256  # entries of one sequence computed together: bounds the mask of a long prompt


class EntrySlots:
    """Keys and values of the layer's entries, by slot. ``length`` counts the entries made from true final states.

    A draft's entry is written behind them and never counted, so a block leaves nothing to undo.
    """

    def __init__(self, slots: int, capacity: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device):
        self.both = torch.empty(slots, 2, heads, capacity, dim, dtype=dtype, device=device)
        self._lengths = [0] * slots

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def set_length(self, slot: int, length: int) -> None:
        self._lengths[slot] = length

    def fingerprint(self, slot: int) -> bytes:
        length = self._lengths[slot]
        h = hashlib.blake2b(length.to_bytes(8, "little"), digest_size=16)
        h.update(self.both[slot, :, :, :length].contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return h.digest()


@dataclass(slots=True)
class _Guess(Chain):
    base: int = 0  # entries from true states
    states: list[Tensor] = field(default_factory=list)  # [hidden] each: predicted at the root, and after each draft fed
    fed: list[int] = field(default_factory=list)  # the drafts whose entries stand behind the true ones

    def follow(self, path: list[int]) -> int:
        """Forget the entries that are not of ``path``, a branch of a tree; how many drafts of it are yet to be fed."""
        shared = next((i for i, (a, b) in enumerate(zip(path, self.fed, strict=False)) if a != b), len(path))
        del self.fed[shared:], self.states[shared + 1 :]
        return len(path) - len(self.fed)


@dataclass(slots=True)
class _Tree(Branches):
    """Entry i of ``fed`` stands behind the ``base`` true ones."""

    slot: int
    base: int
    states: dict[int, Tensor]  # node -> [hidden]: predicted after it; -1 the root
    bridge: int
    capacity: int
    fed: dict[int, int] = field(default_factory=dict)  # node -> number of its entry behind the true ones

    def reaches(self, p: Proposal, node: int) -> bool:
        missing = len(self.missing(p, node))
        return missing <= self.bridge and self.base + len(self.fed) + missing <= self.capacity

    def missing(self, p: Proposal, node: int) -> list[int]:
        """The nodes down to ``node`` that have no entry yet, the uppermost first."""
        path = []
        while node not in self.states:
            path.append(node)
            node = p.tx.parents[node]
        return path[::-1]

    def above(self, p: Proposal, node: int) -> list[int]:
        """Numbers of the entries of ``node`` and the nodes above it."""
        found = []
        while node >= 0:
            found.append(self.fed[node])
            node = p.tx.parents[node]
        return found


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of one sequence in a forward: entries start … start + n of its slot.

    Of a tree, ``depths`` are the places of the rows in the text and ``visible`` [n, start + n] what each attends to.
    """

    slot: int
    start: int
    n: int
    depths: Seq[int] | None = None
    visible: Tensor | None = None


class EagleDrafter(HeadDrafter):
    """Its own slot cache follows the sequence's: after each round it reads the true states of what was committed.

    ``bridge`` is the number of another drafter's drafts in the block that it feeds itself to go on behind them; behind
    more it stays silent, since each costs a step and none gives a draft.
    """

    name = "eagle"
    kind = "eagle"

    def __init__(
        self,
        model: FeatureModel,
        pipeline: Pipeline,
        part: Part,
        *,
        least: float = LEAST,
        bridge: int = 4,
        allow_variants: bool = False,
    ) -> None:
        super().__init__(model, pipeline, part, least=least, allow_variants=allow_variants)
        self._bridge = bridge
        self._caches: dict[int, KvState] = {}
        self._layer = EagleLayer(part, self._head.make, model)
        self.slots = EntrySlots(
            model.slots, model.capacity, self._layer.kv_heads, self._layer.dim, self._layer.dtype, model.device
        )

    def open(self, sequence: Sequence) -> None:
        # The target's own slot numbers serve here too: no two open sequences share one.
        self.slots.set_length(sequence.slot, 0)
        cache = KvState(self.slots, sequence.slot)
        self._caches[id(sequence)] = cache
        sequence.caches.append(cache)

    def close(self, sequence: Sequence) -> None:
        super().close(sequence)
        cache = self._caches.pop(id(sequence), None)
        if cache is not None:
            sequence.caches.remove(cache)

    def _begin(self, proposals: Seq[Proposal]) -> list[Chain | None]:
        """Read the true final states that came since the last block; the last of them begins the chain."""
        out: list[Chain | None] = [None] * len(proposals)
        new: list[tuple[int, Tensor, int]] = []  # index, states of its slot, first entry to make
        for i, p in enumerate(proposals):
            states = self._model.features(p.sequence.slot)
            # The newest committed token is never in the slot; in the first round nothing is.
            if states is not None and 0 < len(states) == committed(p) - 1:
                # One entry at least, for its prediction.
                new.append((i, states, min(self.slots.length(p.sequence.slot), len(states) - 1)))
        while new:
            spans, given, tokens, rest = [], [], [], []
            for i, states, start in new:
                s = proposals[i].sequence
                stop = min(len(states), start + _CHUNK)
                spans.append(_Span(s.slot, start, stop - start))
                given.append(states[start:stop])
                tokens += s.history.tokens[start + 1 : stop + 1]
                if stop < len(states):
                    rest.append((i, states, stop))
            predicted = self._forward(torch.cat(given), tokens, spans)
            at = 0
            for (i, states, _), span in zip(new, spans, strict=True):
                at += span.n
                end = span.start + span.n
                self.slots.set_length(span.slot, end)
                if end == len(states):
                    out[i] = _Guess(proposals[i].tx, base=end, states=[predicted[at - 1]])
            new = rest
        return out

    def _reaches(self, p: Proposal, chain: Chain) -> bool:
        assert isinstance(chain, _Guess)
        path = drafts(p)
        return chain.base + len(path) < self._model.capacity and chain.follow(path) <= self._bridge

    def _states(self, live: Seq[tuple[Proposal, Chain]]) -> tuple[Tensor, Tensor | None]:
        todo = [(drafts(p), chain, p.sequence.slot) for p, chain in live if isinstance(chain, _Guess)]
        while behind := [(path, chain, slot) for path, chain, slot in todo if len(chain.fed) < len(path)]:
            tokens = [path[len(chain.fed)] for path, chain, _ in behind]
            spans = [_Span(slot, chain.base + len(chain.fed), 1) for _, chain, slot in behind]
            predicted = self._forward(torch.stack([chain.states[-1] for _, chain, _ in behind]), tokens, spans)
            for row, (token, (_, chain, _)) in enumerate(zip(tokens, behind, strict=True)):
                chain.fed.append(token)
                chain.states.append(predicted[row])
        return torch.stack([chain.states[-1] for _, chain, _ in todo]), None

    def branches(self, proposals: Seq[Proposal]) -> list[Branches | None]:
        found: list[Branches | None] = []
        for p, chain in zip(proposals, self._begin(proposals), strict=True):
            if not isinstance(chain, _Guess):
                found.append(None)
                continue
            capacity = self._model.capacity
            found.append(_Tree(p.sequence.slot, chain.base, {-1: chain.states[0]}, self._bridge, capacity))
        return found

    def _states_at(self, places: Seq[Place]) -> Tensor:
        trees = [(p, tree, node) for p, tree, node in places if isinstance(tree, _Tree)]
        self._feed(trees)
        return torch.stack([tree.states[node] for _, tree, node in trees])

    def _feed(self, places: Seq[tuple[Proposal, _Tree, int]]) -> None:
        """Make the entries that are missing down to each node, a level of all trees at a time."""
        while True:
            todo: dict[int, tuple[Proposal, _Tree, list[int]]] = {}
            for p, tree, node in places:
                path = tree.missing(p, node)
                if path:
                    nodes = todo.setdefault(id(tree), (p, tree, []))[2]
                    if path[0] not in nodes:
                        nodes.append(path[0])
            if not todo:
                return
            given, tokens, spans = [], [], []
            for p, tree, nodes in todo.values():
                start = tree.base + len(tree.fed)
                for i, node in enumerate(nodes):
                    tree.fed[node] = start - tree.base + i
                visible = torch.zeros(len(nodes), start + len(nodes), dtype=torch.bool)
                visible[:, : tree.base] = True
                depths = []
                for row, node in enumerate(nodes):
                    seen = tree.above(p, node)
                    visible[row, [tree.base + i for i in seen]] = True
                    depths.append(tree.base + len(seen) - 1)
                spans.append(_Span(tree.slot, start, len(nodes), depths, visible.to(self._model.device)))
                given += [tree.states[p.tx.parents[node]] for node in nodes]
                tokens += [p.tokens[node] for node in nodes]
            predicted = self._forward(torch.stack(given), tokens, spans)
            row = 0
            for _, tree, nodes in todo.values():
                for node in nodes:
                    tree.states[node] = predicted[row]
                    row += 1

    def _forward(self, states: Tensor, tokens: list[int], spans: Seq[_Span]) -> Tensor:
        embedded = self._model.embed(torch.tensor(tokens, device=states.device))
        return self._layer(states, embedded, self.slots.both, spans)


class EagleLayer:
    """``norm(layer(W [norm(state); norm(embedding)]))``, a decoder layer of the Llama family in between.

    Tensors of the part, by transformers' names where they have one: ``fuse`` [hidden, 2 hidden], ``norm_state``,
    ``norm_token``, ``norm_attention``, ``norm_mlp``, ``norm_out`` [hidden], ``q``, ``k``, ``v``, ``o``, ``gate``,
    ``up``, ``down``.
    """

    def __init__(self, part: Part, make: Maker, model: FeatureModel) -> None:
        t, shape = part.tensors, part.manifest.shape
        device = model.device
        self.dtype = model.embed(torch.zeros(1, dtype=torch.long, device=device)).dtype
        self.heads, self.kv_heads, self.dim = (int(shape[n]) for n in ("heads", "kv_heads", "head_dim"))
        self._groups = self.heads // self.kv_heads
        self._epsilon = float(shape["epsilon"])
        w = {name: x.to(device, self.dtype) for name, x in t.items() if name != "reduced"}
        self._width = (w["norm_out"].shape[0],)
        self._norms = {name: x for name, x in w.items() if name.startswith("norm")}
        # Pairs that rotate together lie side by side: the rotation is one complex product (see ``Decoder``).
        pairs = torch.arange(self.dim).view(2, -1).t().flatten()
        turning = torch.cat((w["q"], w["k"])).view(self.heads + self.kv_heads, self.dim, -1)[:, pairs].flatten(0, 1)
        self._fuse, self._qkv, self._out, self._opening, self._down = (
            make(x.contiguous(), None)
            for x in (w["fuse"], torch.cat((turning, w["v"])), w["o"], torch.cat((w["gate"], w["up"])), w["down"])
        )
        places = torch.arange(model.capacity, device=device, dtype=torch.float64)
        inverse = float(shape["rope_theta"]) ** (-torch.arange(0, self.dim, 2, device=device) / self.dim)
        angles = places[:, None] * inverse.double()
        self._rotation = torch.polar(torch.ones_like(angles), angles).to(torch.complex64).unsqueeze(1)

    def __call__(self, states: Tensor, embedded: Tensor, both: Tensor, spans: Seq[_Span]) -> Tensor:
        """States and embeddings [M, hidden] of the spans' rows in turn -> predicted states [M, hidden].

        Writes keys and values into ``both`` [slots, 2, kv heads, capacity, dim].
        """
        x = self._fuse(torch.cat((self._norm(states, "norm_state"), self._norm(embedded, "norm_token")), -1))
        x = self._out.onto(self._attend(self._norm(x, "norm_attention"), both, spans), x)
        opened, values = self._opening(self._norm(x, "norm_mlp")).chunk(2, -1)
        x = self._down.onto(nn.functional.silu(opened).mul_(values), x)
        return self._norm(x, "norm_out")

    def _attend(self, x: Tensor, both: Tensor, spans: Seq[_Span]) -> Tensor:
        turning = self.heads + self.kv_heads
        qkv = self._qkv(x).view(len(x), turning + self.kv_heads, self.dim)
        turned = torch.view_as_complex(qkv[:, :turning].float().unflatten(-1, (-1, 2)))
        places = [at for s in spans for at in s.depths or range(s.start, s.start + s.n)]
        turned = torch.view_as_real(turned * self._rotation[places]).flatten(-2).to(x.dtype)
        out = torch.empty(len(x), self.heads, self.dim, dtype=x.dtype, device=x.device)
        at = 0
        for s in spans:
            rows, at = slice(at, at + s.n), at + s.n
            cache, end = both[s.slot], s.start + s.n
            cache[0, :, s.start : end] = turned[rows, self.heads :].transpose(0, 1)
            cache[1, :, s.start : end] = qkv[rows, turning:].transpose(0, 1)
            # [1, kv heads, groups * n, dim]: query head h belongs to key head h // groups.
            query = turned[rows, : self.heads].transpose(0, 1).reshape(1, self.kv_heads, self._groups * s.n, self.dim)
            got = nn.functional.scaled_dot_product_attention(
                query, cache[None, 0, :, :end], cache[None, 1, :, :end], attn_mask=self._mask(s, x)
            )
            out[rows] = got.reshape(self.heads, s.n, self.dim).transpose(0, 1)
        return out.flatten(1)

    def _mask(self, s: _Span, x: Tensor) -> Tensor | None:
        if s.visible is not None:
            return s.visible.repeat(self._groups, 1)
        if s.n == 1:
            return None
        visible = torch.ones(s.n, s.start + s.n, dtype=torch.bool, device=x.device).tril(s.start)
        return visible.repeat(self._groups, 1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return nn.functional.rms_norm(x, self._width, self._norms[name], self._epsilon)
