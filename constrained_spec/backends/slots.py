"""KV as slots: one preallocated buffer per layer, written at per-row positions, rolled back by arithmetic.

DESIGN section 9. Row b of a forward writes its block at positions len_b … of its slot. What lies at or beyond a slot's
length is never visible to a later query: it is masked, and overwritten before the length grows over it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from constrained_spec.backends.base import Block
from constrained_spec.errors import RequestError

FULL = "full_attention"
SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What one kind of layer reads: keys ``low`` to ``high`` of every slot in the step."""

    low: int
    high: int
    mask: Tensor | None  # additive [B, 1, Q, high - low]; None where transformers' own rule is right


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """Real tokens of a ragged step: token ``columns[n]`` of row ``rows[n]`` goes to ``places[n]`` of ``slots[n]``."""

    rows: Tensor  # [N] long, all four
    columns: Tensor
    slots: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward: rows in ascending slot order, blocks right-aligned in a width of the longest.

    Padding stands at the left. It writes nothing, and each of its queries sees what the row's first token sees, so that
    no softmax row is empty.
    """

    blocks: tuple[Block, ...]
    starts: tuple[int, ...]  # slot lengths before the step
    width: int
    gather: Tensor | None  # [B] slot ids; None where the slots are consecutive and a view will do
    scatter: Scatter | None  # None where every row writes the same places
    position_ids: Tensor  # [B, Q]
    spans: Mapping[str, Span]  # per layer kind


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each token of a tree block; a child of the slot's last token has depth 0."""
    out: list[int] = []
    for i, parent in enumerate(parents):
        assert -1 <= parent < i, "a parent stands before its child"
        out.append(0 if parent < 0 else out[parent] + 1)
    return out


def ancestors(parents: Sequence[int]) -> Tensor:
    """Boolean [n, n]: row i is true at i and at every ancestor of i."""
    out = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            out[i] |= out[parent]
    return out


def within_tree(parents: Sequence[int], window: int | None) -> Tensor:
    """Boolean [n, n]: what each token of a tree block sees of it: ancestors, and no further than the window."""
    seen = ancestors(parents)
    if window is not None:
        depth = torch.tensor(depths(parents))
        seen &= depth[:, None] - depth[None, :] < window
    return seen


def own_positions(block: Block, start: int) -> list[int]:
    """Position of each token of a block that is written from place ``start`` on."""
    if block.parents is None:
        return list(range(start, start + len(block.tokens)))
    return [start + depth for depth in depths(block.parents)]


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer, [slots, kv_heads, capacity, head_dim] each: the two halves of ``both``."""

    is_croppable = True

    def __init__(self, kind: str, both: Tensor) -> None:  # [slots, 2, kv_heads, capacity, head_dim]
        super().__init__()
        self.kind = kind
        self.is_sliding = kind == SLIDING
        self.both = both
        self.keys: Tensor = both[:, 0]
        self.values: Tensor = both[:, 1]
        self.is_initialized = True
        self.step: Step | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("the buffers exist from the start")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the block's keys and values [B, H, Q, D]; return those to read, [B, H, high - low, D]."""
        assert self.step is not None
        return self._through(self.keys, key_states, self.step), self._through(self.values, value_states, self.step)

    def _through(self, buffer: Tensor, new: Tensor, step: Step) -> Tensor:
        first, last = step.blocks[0].slot, step.blocks[-1].slot
        if step.scatter is None:
            start = step.starts[0]
            buffer[first : last + 1, :, start : start + step.width] = new
        else:
            s = step.scatter
            buffer[s.slots, :, s.places] = new[s.rows, :, s.columns]
        span = step.spans[self.kind]
        prefix = buffer[:, :, span.low : span.high]
        return prefix[first : last + 1] if step.gather is None else prefix.index_select(0, step.gather)

    def get_seq_length(self) -> int:
        return 0 if self.step is None else max(self.step.starts)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if self.step is None:
            return query_length, 0
        span = self.step.spans[self.kind]
        return span.high - span.low, span.low

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


class SlotCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """All layers' slots, and the one length each slot has in all of them."""

    def __init__(self, layers: Sequence[SlotLayer], *, window: int | None, implicit_causal: bool) -> None:
        """``window`` is that of the sliding layers. ``implicit_causal``: the attention function masks by itself where
        it is given no mask, so none is built for a plain prefill or a single query.
        """
        super().__init__(layers=list(layers))
        self.slot_layers = tuple(layers)
        self._window = window
        self._implicit_causal = implicit_causal
        self._kinds = tuple(sorted({layer.kind for layer in layers}))
        keys = layers[0].keys
        self._dtype, self._device = keys.dtype, keys.device
        self.slots, self.capacity = int(keys.shape[0]), int(keys.shape[2])
        self._lengths = [0] * self.slots

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def set_length(self, slot: int, length: int) -> None:
        assert 0 <= length <= self._lengths[slot], "a slot can only be shortened"
        self._lengths[slot] = length

    def reserve(self, blocks: Sequence[Block]) -> tuple[int, ...]:
        """Lengths of the slots of ``blocks``. Raises ``RequestError`` if one has no room for its block."""
        assert blocks and len({b.slot for b in blocks}) == len(blocks), "distinct slots"
        starts = tuple(self._lengths[b.slot] for b in blocks)
        for block, start in zip(blocks, starts, strict=True):
            assert block.tokens and 0 <= block.want <= len(block.tokens)
            assert block.parents is None or len(block.parents) == len(block.tokens)
            if start + len(block.tokens) > self.capacity:
                raise RequestError(
                    f"slot {block.slot} holds {start} of {self.capacity} tokens, {len(block.tokens)} more do not fit",
                    param="prompt",
                    hint="shorten the prompt, or load the model with a larger capacity",
                )
        return starts

    def grow(self, blocks: Sequence[Block]) -> None:
        """A forward has written the blocks: the lengths grow. Without this call it never happened."""
        for block in blocks:
            self._lengths[block.slot] += len(block.tokens)

    def begin(self, blocks: Sequence[Block]) -> Step:
        """Plan one forward of ``blocks``, given in ascending order of distinct slots. No length changes yet."""
        ids = [b.slot for b in blocks]
        assert all(a < b for a, b in itertools.pairwise(ids)), "ascending"
        starts = self.reserve(blocks)
        width = max(len(b.tokens) for b in blocks)
        positions = [_positions(b, start, width) for b, start in zip(blocks, starts, strict=True)]
        position_ids = torch.tensor(positions, device=self._device)
        consecutive = ids[-1] - ids[0] == len(ids) - 1
        aligned = consecutive and len(set(starts)) == 1 and all(len(b.tokens) == width for b in blocks)
        step = Step(
            blocks=tuple(blocks),
            starts=starts,
            width=width,
            gather=None if consecutive else torch.tensor(ids, device=self._device),
            scatter=None if aligned else self._scatter(blocks, starts, width),
            position_ids=position_ids,
            spans=self._spans(blocks, starts, position_ids),
        )
        for layer in self.slot_layers:
            layer.step = step
        return step

    def end(self) -> None:
        """Drop the step's tensors."""
        for layer in self.slot_layers:
            layer.step = None

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Keep one path of the tree block written from ``base`` on: its entries move to base, base + 1, …

        ``path`` holds indices within the block, ascending, root first. The slot's length becomes base + len(path). The
        moved keys stay right because a path's k-th token was encoded at position base + k.
        """
        assert all(a < b for a, b in itertools.pairwise(path)), "a path descends"
        assert not path or (path[0] >= 0 and base + path[-1] < self._lengths[slot])
        moved = [k for k, index in enumerate(path) if k != index]
        if moved:
            first = moved[0]  # everything before the first moved entry is in place already
            source = torch.tensor([base + index for index in path[first:]], device=self._device)
            target = slice(base + first, base + len(path))
            for layer in self.slot_layers:
                for buffer in (layer.keys, layer.values):
                    buffer[slot, :, target] = buffer[slot].index_select(1, source)
        self.set_length(slot, base + len(path))

    def clear(self, slot: int) -> None:
        """Empty the slot and zero its buffers. A masked value has weight 0, and 0 times NaN is NaN."""
        for layer in self.slot_layers:
            layer.both[slot].zero_()
        self._lengths[slot] = 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Make slot ``target`` hold the first ``length`` tokens of slot ``source``."""
        assert 0 <= length <= self._lengths[source] and source != target
        for layer in self.slot_layers:
            layer.both[target, :, :, :length] = layer.both[source, :, :, :length]
        self._lengths[target] = length

    def release(self) -> None:
        """Give the buffers back; only the lengths remain."""
        self.slot_layers = ()
        self.layers: list[SlotLayer] = []

    def fingerprint(self, slot: int) -> bytes:
        """Digest of the slot's length and of every key and value before it."""
        length = self._lengths[slot]
        h = hashlib.blake2b(length.to_bytes(8, "little"), digest_size=16)
        for layer in self.slot_layers:
            for buffer in (layer.keys, layer.values):
                h.update(buffer[slot, :, :length].contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return h.digest()

    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for layer in self.slot_layers for t in (layer.keys, layer.values))

    def _scatter(self, blocks: Sequence[Block], starts: Sequence[int], width: int) -> Scatter:
        rows: list[int] = []
        columns: list[int] = []
        slots: list[int] = []
        places: list[int] = []
        for row, (block, start) in enumerate(zip(blocks, starts, strict=True)):
            n = len(block.tokens)
            rows += [row] * n
            columns += range(width - n, width)
            slots += [block.slot] * n
            places += range(start, start + n)
        index = torch.tensor([rows, columns, slots, places], device=self._device)
        return Scatter(*index.unbind(0))

    def _spans(self, blocks: Sequence[Block], starts: Sequence[int], position_ids: Tensor) -> dict[str, Span]:
        high = max(start + len(b.tokens) for b, start in zip(blocks, starts, strict=True))
        spans: dict[str, Span] = {}
        for kind in self._kinds:
            window = self._window if kind == SLIDING else None
            if window is not None and window >= high and FULL in spans:
                spans[kind] = spans[FULL]  # nothing is out of the window yet
                continue
            # No query of the step stands before min(starts), so nothing below low is in any window.
            low = 0 if window is None else max(0, min(starts) - window + 1)
            implicit = self._implicit_causal and _plain(blocks, starts, window)
            mask = None if implicit else self._mask(blocks, starts, position_ids, low, high, window)
            spans[kind] = Span(low, high, mask)
        return spans

    def _mask(
        self,
        blocks: Sequence[Block],
        starts: Sequence[int],
        position_ids: Tensor,
        low: int,
        high: int,
        window: int | None,
    ) -> Tensor:
        """Additive mask [B, 1, Q, high - low] in the model's dtype."""
        keys = torch.arange(low, high, device=self._device)
        queries = position_ids.unsqueeze(-1)
        visible = keys <= queries  # [B, Q, K]
        if window is not None:
            visible &= keys > queries - window
        for row, (block, start) in enumerate(zip(blocks, starts, strict=True)):
            if block.parents is None:
                continue
            # Before ``start`` places are positions. In a tree block place start + i has position start + depth_i, so
            # the rule above does not hold there: only ancestors are visible, and the window counts depths.
            n = len(block.tokens)
            visible[row, -n:, start - low : start - low + n] = within_tree(block.parents, window).to(self._device)
        # The lowest finite value, not -inf: it underflows to a weight of exactly 0 and never makes a NaN.
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~visible, torch.finfo(self._dtype).min).unsqueeze(1)


def _positions(block: Block, start: int, width: int) -> list[int]:
    return [start] * (width - len(block.tokens)) + own_positions(block, start)


def _plain(blocks: Sequence[Block], starts: Sequence[int], window: int | None) -> bool:
    """Whether "causal for several queries, everything for one" is the right mask."""
    widths = {len(b.tokens) for b in blocks}
    if len(widths) > 1 or len(set(starts)) > 1:
        return False
    width = widths.pop()
    if width == 1:
        return True  # the span ends at the query and begins at its window
    chain = all(b.parents is None for b in blocks)
    return starts[0] == 0 and chain and (window is None or width <= window)
