"""The specialised step: a decoder of the Llama family computed straight into the slots.

What transformers computes module by module, with the costs between the products gone: queries, keys and values are one
product, the rotation is one complex multiplication by a table, keys and values go to their slot in one copy, query
heads that share a key head read it in place, a mask exists only where not everything is visible, and the output product
sees the wanted rows only. Blocks of different lengths are one list of tokens: no padding.

It takes the weights over from the model, one by one: nothing is held twice. Whether it computes what transformers
computes is measured before that, see ``TransformersModel``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from constrained_spec.backends.base import Block
from constrained_spec.backends.features import FeatureStore
from constrained_spec.backends.graphs import Read, StaticStep
from constrained_spec.backends.products import Dense, Int8, Maker, Packed, Product
from constrained_spec.backends.reading import Attention
from constrained_spec.backends.slots import SlotCache, SlotLayer
from constrained_spec.backends.tables import Plain, Quantized, Table, narrowest
from constrained_spec.errors import RequestError

FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})  # the frequencies do not depend on the length
MAX_BLOCK = 256  # tokens of one sequence in one forward: bounds the mask and the activations of a long prompt


def unspecialisable(model: PreTrainedModel) -> str | None:
    """Why this model must run through its stock forward, None if it need not."""
    config = model.config
    if config.model_type not in FAMILY:
        return f"architecture {config.model_type}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in STATIC_ROPE or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"position encoding {rope.get('rope_type')}"
    if len({(p.dtype, p.device) for p in model.parameters()}) > 1:
        return "weights of several dtypes or devices"
    for layer in model.model.layers:
        parts = [*_attention(layer), layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj]
        if any(type(part) is not nn.Linear for part in (*parts, layer.mlp.down_proj)):
            return "linear layers that are not torch's own"
    if type(model.lm_head) is not nn.Linear:
        return "an output layer that is not torch's own"
    return None


Affine = tuple[Tensor, Tensor | None]  # weight [out, in] and bias [out]


def _attention(layer: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    a = layer.self_attn
    return a.q_proj, a.k_proj, a.v_proj


class Mlp:
    """``W_down (silu(W_gate x) * W_up x)``."""

    def __init__(self, gate: Affine, up: Affine, down: Affine, make: Maker) -> None:
        self.down = make(*down)
        # oneDNN multiplies while it stores, so there two products are cheaper than one and a pass over the result.
        self.split: tuple[Packed, Packed] | None = None
        self.joint: Product | None = None
        if make is Packed:
            self.split = Packed(*gate), Packed(*up)
        else:
            self.joint = make(*_stacked([gate, up]))

    def remade(self, make: Maker) -> Mlp:
        """The same of other products."""
        named = self.tensors()
        parts = [f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")]
        gate, up, down = ((named[f"{part}.weight"], named.get(f"{part}.bias")) for part in parts)
        return Mlp(gate, up, down, make)

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        if self.split is not None:
            gate, up = self.split
            inner = up.times(x, gate.silu(x))
        else:
            assert self.joint is not None
            opened, values = self.joint(x).chunk(2, -1)
            inner = nn.functional.silu(opened).mul_(values)
        return self.down.onto(inner, residual)

    def tensors(self) -> dict[str, Tensor]:
        if self.split is not None:
            gate, up = (p.tensors() for p in self.split)
        else:
            assert self.joint is not None
            both = {name: t.chunk(2) for name, t in self.joint.tensors().items()}
            gate, up = ({name: pair[i] for name, pair in both.items()} for i in (0, 1))
        named = {"gate_proj": gate, "up_proj": up, "down_proj": self.down.tensors()}
        return {f"mlp.{part}.{name}": t for part, found in named.items() for name, t in found.items()}

    def nbytes(self) -> int:
        return sum(p.nbytes() for p in (self.down, *(self.split or ()), self.joint) if p is not None)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. The two halves of a head are interleaved in ``qkv``: pairs that rotate lie side by side."""

    norm: Tensor  # [hidden]
    qkv: Product
    head_norms: tuple[Tensor, Tensor] | None  # [head_dim] each, of queries and keys (Qwen 3)
    out: Product
    mlp_norm: Tensor
    mlp: Mlp
    slots: SlotLayer

    def remade(self, make: Maker) -> Layer:
        """The same of other products, in the same slots."""
        return replace(self, qkv=_remade(self.qkv, make), out=_remade(self.out, make), mlp=self.mlp.remade(make))

    def nbytes(self) -> int:
        norms = (self.norm, self.mlp_norm, *(self.head_norms or ()))
        return self.products_nbytes() + sum(int(t.nbytes) for t in norms)

    def products_nbytes(self) -> int:
        return self.qkv.nbytes() + self.out.nbytes() + self.mlp.nbytes()


class Decoder:
    """Weights and forward. Holds no per-sequence state: keys, values and lengths are the cache's."""

    def __init__(
        self, model: PreTrainedModel, cache: SlotCache, make: Maker | None = None, *, static: bool | None = None
    ) -> None:
        """With ``make`` the model's weights are taken over, layer by layer, and it cannot run any more; without, this
        is a trial on the weights where they are. ``static`` runs short blocks in fixed shapes, on CUDA as graphs; None
        where that pays: on CUDA. On a CPU a block costs by its rows. A trial and int8 never do.
        """
        config = model.config
        self._cache = cache
        self.store: FeatureStore | None = None  # where the final hidden states of every token go, if anyone reads them
        self._head_table: Table | None = None
        self._dim: int = model.model.layers[0].self_attn.head_dim
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._epsilon: float = config.rms_norm_eps
        self._dtype: torch.dtype = model.dtype
        self._device: torch.device = model.device
        self._vocabulary: int = model.lm_head.weight.shape[0]
        self._hidden: int = config.hidden_size
        self._window: int | None = getattr(config, "sliding_window", None)
        self._rotation = _rotation(model, cache.capacity, self._dim)
        self._head_order = _interleaved(self._heads + self._kv_heads, self._kv_heads, self._dim)
        self._attention = Attention(
            cache, self._heads, self._kv_heads, self._dim,
            window=self._window,
            # Rows of a quantised block must not depend on the block, so each query gets an attention of its own.
            row_wise=make is Int8,
        )  # fmt: skip
        self.static: StaticStep | None = None
        # A graph keeps the addresses of the weights, and a trial's pass; a quantised row must not depend on the shape.
        if make not in (None, Int8) and (self._device.type == "cuda" if static is None else static):
            self.static = self.static_step()
        self._norm: Tensor = model.model.norm.weight.detach()
        embedding: nn.Embedding = model.model.embed_tokens
        head: nn.Linear = model.lm_head
        self._plain_head = head.bias is None
        self.tied = head.weight is embedding.weight
        rows = embedding.weight.detach()
        self.layers: Sequence[Layer] | _Lazily
        if make is None:
            self.layers = _Lazily(model, cache, lambda i: self._layer(model, i, Dense))
            self._head: Product = Dense(*_affine(head))
            self._table: Table = Plain(rows, self._dtype)
            return
        taken = []
        for i, stock in enumerate(model.model.layers):
            taken.append(self._layer(model, i, make))
            for part in stock.modules():
                if isinstance(part, nn.Linear):
                    # Replaced, not emptied: other holders of the tensor keep it.
                    part.weight = nn.Parameter(part.weight.new_empty(0), requires_grad=False)
        self.layers = taken
        self._head = make(*_affine(head))
        if not self.tied or isinstance(self._head, Dense):
            self._table = Plain(rows, self._dtype)
        else:
            self._table = Quantized(self._head, self._dtype) if isinstance(self._head, Int8) else narrowest(rows)
            embedding.weight = nn.Parameter(rows.new_empty(0), requires_grad=False)
        head.weight = nn.Parameter(rows.new_empty(0), requires_grad=False)

    # ---- forward --------------------------------------------------------------------------------------------------

    def score(self, blocks: Sequence[Block]) -> Tensor:
        """See ``LanguageModel.score``. Raises ``RequestError`` if a block does not fit into its slot."""
        starts = self._cache.reserve(blocks)
        logits = self._logits(blocks, starts)
        self._cache.grow(blocks)
        return logits

    def _logits(self, blocks: Sequence[Block], starts: Sequence[int], depth: int | None = None) -> Tensor:
        pieces: list[list[Tensor]] = [[] for _ in blocks]
        with torch.inference_mode():
            for wave in _waves(blocks, starts):
                rows = self._rows([part for _, part, _ in wave], [start for _, _, start in wave], depth)
                for (i, _, _), piece in zip(wave, rows.split([part.want for _, part, _ in wave]), strict=True):
                    pieces[i].append(piece)
        # Made outside inference mode, the result is an ordinary tensor that its owner may edit.
        with torch.no_grad():
            hidden = torch.cat([piece for found in pieces for piece in found])
            logits = self._head(hidden) if len(hidden) else hidden.new_empty(0, self._vocabulary)
        return logits.float()

    def remade(self, make: Maker) -> Decoder:
        """The same decoder of products that ``make`` makes, beside this one and in the same slots, for drafts alone.

        It holds its products a second time and shares all else. Of float products only: those of int8 are refused
        before.
        """
        twin = copy(self)
        twin.store = twin.static = twin._head_table = None
        twin.layers = [layer.remade(make) for layer in self.layers]
        twin._head = _remade(self._head, make)
        return twin

    def products_nbytes(self) -> int:
        """Bytes of the products: what ``remade`` holds anew."""
        return self._head.nbytes() + sum(layer.products_nbytes() for layer in self.layers)

    def score_ahead(self, blocks: Sequence[Block], starts: Sequence[int], layers: int | None = None) -> Tensor:
        """Logits as ``score`` gives them, after the first ``layers`` or all, block b written from ``starts[b]`` on.

        No length changes: behind a slot's length nothing is visible, and the next full forward overwrites it.
        """
        for block, start in zip(blocks, starts, strict=True):
            if start + len(block.tokens) > self._cache.capacity:
                raise RequestError(f"slot {block.slot} has no room for {len(block.tokens)} drafts", param="gamma")
        return self._logits(blocks, starts, len(self.layers) if layers is None else layers)

    def _rows(self, blocks: Sequence[Block], starts: Sequence[int], depth: int | None = None) -> Tensor:
        """Final hidden states [sum of want, hidden] of one forward, or those after the first ``depth`` layers."""
        if self.static is not None and depth is None:
            states = self.static.run(self._states, blocks, starts, self.store)
            if states is not None:
                return states
        ids = torch.tensor([t for b in blocks for t in b.tokens], device=self._device)
        plan = self._attention.plan(blocks, starts)
        x = self._through(ids, plan.positions, lambda slots, qkv: self._attention.read(slots, qkv, plan), depth)
        if self.store is not None and depth is None:
            # Row by row the same as the norm of the wanted rows alone.
            x = self._normed(x)
            for block, start, rows in zip(blocks, starts, plan.rows, strict=True):
                self.store.write(block.slot, start, x[rows])
        last = [x[rows.stop - b.want : rows.stop] for b, rows in zip(blocks, plan.rows, strict=True)]
        wanted = torch.cat(last) if len(last) > 1 else last[0]
        return wanted if self.store is not None and depth is None else self._normed(wanted)

    def _states(self, ids: Tensor, positions: Tensor, read: Read) -> Tensor:
        """Final states [N, hidden] of ids [N] at positions [N]."""
        return self._normed(self._through(ids, positions, read))

    def _normed(self, x: Tensor) -> Tensor:
        return _rms(x, (self._hidden,), self._norm, self._epsilon)

    def _through(self, ids: Tensor, positions: Tensor | list[int], read: Read, depth: int | None = None) -> Tensor:
        """States [N, hidden] behind the first ``depth`` layers, or all, of ids [N] at positions [N]."""
        rotation = self._rotation[positions]
        x: Tensor = self._table(ids)
        width = (self._hidden,)
        for layer in itertools.islice(self.layers, depth):
            attended = self._attend(layer, _rms(x, width, layer.norm, self._epsilon), rotation, read)
            x = layer.out.onto(attended, x)
            x = layer.mlp.onto(_rms(x, width, layer.mlp_norm, self._epsilon), x)
        return x

    def _attend(self, layer: Layer, x: Tensor, rotation: Tensor, read: Read) -> Tensor:
        """x [N, hidden] -> [N, heads * head_dim]; writes keys and values."""
        turning = self._heads + self._kv_heads
        qkv = layer.qkv(x).view(len(x), turning + self._kv_heads, self._dim)
        if layer.head_norms is not None:
            for part, norm in zip((slice(0, self._heads), slice(self._heads, turning)), layer.head_norms, strict=True):
                qkv[:, part] = _rms(qkv[:, part], (self._dim,), norm, self._epsilon)
        _rotate(qkv[:, :turning], rotation)
        return read(layer.slots, qkv).flatten(1)

    def static_step(self) -> StaticStep:
        """A step of fixed shapes over this decoder's slots, for ``static``."""
        return StaticStep(self._cache, self._heads, self._kv_heads, self._dim, self._hidden, window=self._window)

    # ---- facts ----------------------------------------------------------------------------------------------------

    @property
    def plain_head(self) -> bool:
        """Whether the output product has no bias."""
        return self._plain_head

    def embed(self, ids: Tensor) -> Tensor:
        return self._table(ids)

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows [n, hidden] of the output weight. An untied packed one is held a second time, made on the first call."""
        if self.tied:
            return self._table(ids)
        if self._head_table is None:
            if isinstance(self._head, Int8):
                self._head_table = Quantized(self._head, self._dtype)
            else:
                self._head_table = narrowest(self._head.tensors()["weight"])
        return self._head_table(ids)

    def nbytes(self) -> int:
        static = 0 if self.static is None else self.static.nbytes()
        tail = self._head.nbytes() + self._norm.nbytes + self._rotation.nbytes + static
        table = 0 if self.tied and isinstance(self._head, Dense) else self._table.nbytes()
        return sum(layer.nbytes() for layer in self.layers) + tail + table

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What defines the model, by the names of transformers and in their order; each is made when its turn comes."""
        head = self._head.tensors()
        if "bias" in head:
            yield "lm_head.bias", head.pop("bias")
        # transformers names a tied weight once, as the embedding's.
        owner = "model.embed_tokens" if self.tied else "lm_head"
        yield from ((f"{owner}.{name}", tensor) for name, tensor in sorted(head.items()))
        if not self.tied:
            yield "model.embed_tokens.weight", self._table(torch.arange(self._vocabulary, device=self._device))
        for i, layer in sorted(enumerate(self.layers), key=lambda pair: f"{pair[0]}."):
            yield from ((f"model.layers.{i}.{name}", tensor) for name, tensor in sorted(self._stock(layer).items()))
        yield "model.norm.weight", self._norm

    def _stock(self, layer: Layer) -> dict[str, Tensor]:
        """The tensors of transformers' layer that ``layer`` was made from."""
        back = torch.argsort(self._head_order)
        sizes = [heads * self._dim for heads in (self._heads, self._kv_heads, self._kv_heads)]
        found = {"input_layernorm.weight": layer.norm, "post_attention_layernorm.weight": layer.mlp_norm}
        for name, joint in layer.qkv.tensors().items():
            for part, tensor in zip(("q_proj", "k_proj", "v_proj"), joint[back].split(sizes), strict=True):
                found[f"self_attn.{part}.{name}"] = tensor
        found |= {f"self_attn.o_proj.{name}": tensor for name, tensor in layer.out.tensors().items()}
        for part, norm in zip(("q_norm", "k_norm"), layer.head_norms or (), strict=False):
            found[f"self_attn.{part}.weight"] = norm[torch.argsort(self._head_order[: self._dim])]
        return found | layer.mlp.tensors()

    # ---- building -------------------------------------------------------------------------------------------------

    def _layer(self, model: PreTrainedModel, index: int, make: Maker) -> Layer:
        stock = model.model.layers[index]
        a = stock.self_attn
        weight, bias = _stacked([_affine(part) for part in _attention(stock)])
        rows = self._head_order
        order = rows[: self._dim]
        norms = None
        if hasattr(a, "q_norm"):
            norms = a.q_norm.weight.detach()[order], a.k_norm.weight.detach()[order]
        return Layer(
            norm=stock.input_layernorm.weight.detach(),
            qkv=make(weight[rows], None if bias is None else bias[rows]),
            head_norms=norms,
            out=make(*_affine(a.o_proj)),
            mlp_norm=stock.post_attention_layernorm.weight.detach(),
            mlp=Mlp(_affine(stock.mlp.gate_proj), _affine(stock.mlp.up_proj), _affine(stock.mlp.down_proj), make),
            slots=self._cache.slot_layers[index],
        )


class _Lazily:
    """The layers of a trial, one at a time: never two copies of all weights."""

    def __init__(self, model: PreTrainedModel, cache: SlotCache, build: Callable[[int], Layer]) -> None:
        self._count, self._build = len(cache.slot_layers), build

    def __iter__(self) -> Iterator[Layer]:
        return (self._build(i) for i in range(self._count))

    def __len__(self) -> int:
        return self._count


def _affine(linear: nn.Linear) -> Affine:
    return linear.weight.detach(), None if linear.bias is None else linear.bias.detach()


def _remade(product: Product, make: Maker) -> Product:
    named = product.tensors()
    return make(named["weight"], named.get("bias"))


def _stacked(parts: Sequence[Affine]) -> Affine:
    """Weights one under the other, and biases if any has one."""
    weight = torch.cat([w for w, _ in parts])
    if all(bias is None for _, bias in parts):
        return weight, None
    return weight, torch.cat([w.new_zeros(w.shape[0]) if bias is None else bias for w, bias in parts])


def _interleaved(turning: int, still: int, dim: int) -> Tensor:
    """Order of the output features of the joint product: in every head that rotates, i and i + dim/2 side by side.

    Scores are sums over a head's features, so the order, shared by queries and keys, changes none.
    """
    pairs = torch.arange(dim).view(2, dim // 2).t().flatten()
    heads = torch.arange(turning).unsqueeze(1) * dim + pairs
    return torch.cat([heads.flatten(), torch.arange(turning * dim, (turning + still) * dim)])


def _rotation(model: PreTrainedModel, capacity: int, dim: int) -> Tensor:
    """Complex [capacity, 1, dim / 2]: the rotation of each position, from the model's own module."""
    places = torch.arange(capacity, device=model.device)[None]
    with torch.no_grad():
        cos, sin = model.model.rotary_emb(torch.zeros(1, device=model.device, dtype=torch.float32), places)
    return torch.complex(cos[0, :, : dim // 2].float(), sin[0, :, : dim // 2].float()).unsqueeze(1)


def _rotate(x: Tensor, rotation: Tensor) -> None:
    """Turn the pairs of x [N, heads, dim] by rotation [N, 1, dim / 2], in place."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs.mul_(rotation)).flatten(-2)
    if x.dtype != torch.float32:
        x.copy_(turned)


def _rms(x: Tensor, shape: tuple[int, ...], weight: Tensor, epsilon: float) -> Tensor:
    return nn.functional.rms_norm(x, shape, weight, epsilon)


def _waves(blocks: Sequence[Block], starts: Sequence[int]) -> Iterator[list[tuple[int, Block, int]]]:
    """Forwards that write all blocks, long ones part by part: (index of the block, its part, where it starts)."""
    longest = max(len(b.tokens) for b in blocks)
    if longest <= MAX_BLOCK:
        yield [(i, block, start) for i, (block, start) in enumerate(zip(blocks, starts, strict=True))]
        return
    for at in range(0, longest, MAX_BLOCK):
        wave = []
        for i, (block, start) in enumerate(zip(blocks, starts, strict=True)):
            n = len(block.tokens)
            if block.parents is not None and n > MAX_BLOCK:
                raise RequestError(f"a tree block has at most {MAX_BLOCK} tokens, not {n}", param="gamma")
            tokens = block.tokens[at : at + MAX_BLOCK]
            if tokens:
                stop = at + len(tokens)
                want = max(0, min(len(tokens), stop - (n - block.want)))
                wave.append((i, Block(block.slot, tokens, want, block.parents), start + at))
        yield wave
