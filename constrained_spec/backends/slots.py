"""KV as slots: one preallocated buffer per layer, per-row write positions, rollback by arithmetic. DESIGN section 9."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from constrained_spec.backends.base import Block


@dataclass(frozen=True, slots=True)
class Plan:
    """Where one forward reads and writes. T is the longest block, K the number of key positions that are read."""

    rows: tuple[int, ...]  # slot of each batch row
    starts: tuple[int, ...]  # tokens in the slot before the block
    counts: tuple[int, ...]  # tokens of each block
    width: int  # T
    keys: int  # K
    write: Tensor | None  # [B, T] position of each query's key; None if one contiguous row
    slot_index: Tensor | None  # [B] for scattered rows; None if the rows are a contiguous range of slots


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer, [slots, heads, capacity + 1, head_dim].

    The last position is where padded queries of shorter blocks write: no mask ever shows it.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        super().__init__()
        self._slots = slots
        self._capacity = capacity
        self.plan: Plan | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def buffer(like: Tensor) -> Tensor:
            # Zeros, not empty: a masked NaN would still poison the weighted sum of values.
            return like.new_zeros(self._slots, like.shape[1], self._capacity + 1, like.shape[3])

        self.keys, self.values = buffer(key_states), buffer(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [B, heads, T, head_dim] where the plan says and return what the rows may read, [B, heads, K, head_dim].

        A view for one row or a contiguous range of slots; other sets of slots are gathered.
        """
        plan = self.plan
        assert plan is not None, "a forward outside score()"
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self._through(self.keys, key_states, plan), self._through(self.values, value_states, plan)

    @staticmethod
    def _through(buffer: Tensor, states: Tensor, plan: Plan) -> Tensor:
        first = plan.rows[0]
        if plan.write is None:
            start = plan.starts[0]
            buffer[first, :, start : start + plan.width] = states[0]
            return buffer[first : first + 1, :, : plan.keys]
        if plan.slot_index is None:
            window = buffer[first : first + len(plan.rows)]
            index = plan.write[:, None, :, None].expand_as(states)
            window.scatter_(2, index, states)
            return window[:, :, : plan.keys]
        # Advanced indices around a slice: [B, T] broadcast, heads in the middle, so values are [B, T, heads, dim].
        buffer[plan.slot_index[:, None], :, plan.write] = states.transpose(1, 2)
        return buffer[plan.slot_index, :, : plan.keys]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (self.plan.keys if self.plan else query_length), 0

    def get_seq_length(self) -> int:
        return max(self.plan.starts) if self.plan else 0

    def get_max_length(self) -> int:
        return self._capacity


class SlotCache(Cache):  # type: ignore[misc]
    """The cache of a whole model, and the only owner of slot lengths."""

    def __init__(self, layers: int, slots: int, capacity: int) -> None:
        self._slot_layers = [SlotLayer(slots, capacity) for _ in range(layers)]
        super().__init__(layers=list(self._slot_layers))
        self.capacity = capacity
        self.lengths = [0] * slots

    def plan(self, blocks: Sequence[Block], device: torch.device) -> Plan:
        rows = tuple(b.slot for b in blocks)
        assert len(set(rows)) == len(rows), "one block per slot"
        starts = tuple(self.lengths[r] for r in rows)
        counts = tuple(len(b.tokens) for b in blocks)
        assert all(c > 0 for c in counts)
        assert all(s + c <= self.capacity for s, c in zip(starts, counts, strict=True)), "a block beyond the capacity"
        width = max(counts)
        write = None
        if len(blocks) > 1:
            trash = self.capacity
            write = torch.tensor(
                [[s + t if t < c else trash for t in range(width)] for s, c in zip(starts, counts, strict=True)],
                device=device,
            )
        contiguous = all(b == a + 1 for a, b in pairwise(rows))
        keys = max(s + c for s, c in zip(starts, counts, strict=True))
        slot_index = None if contiguous else torch.tensor(rows, device=device)
        return Plan(rows, starts, counts, width, keys, write, slot_index)

    def begin(self, plan: Plan) -> None:
        for layer in self._slot_layers:
            layer.plan = plan

    def end(self, plan: Plan) -> None:
        """The forward succeeded: the blocks are now part of their slots."""
        for row, count in zip(plan.rows, plan.counts, strict=True):
            self.lengths[row] += count

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Keep the entries ``base + path[i]`` (an accepted tree path, increasing) as positions base, base + 1, …"""
        assert all(i <= p for i, p in enumerate(path)), "a path never moves to the right"
        moved = [base + p for p in path]
        for layer in self._slot_layers:
            if layer.is_initialized:
                assert layer.keys is not None and layer.values is not None
                for buffer in (layer.keys, layer.values):
                    buffer[slot, :, base : base + len(path)] = buffer[slot][:, moved]
        self.lengths[slot] = base + len(path)

    def nbytes(self) -> int:
        return sum(
            buffer.numel() * buffer.element_size()
            for layer in self._slot_layers
            for buffer in (layer.keys, layer.values)
            if buffer is not None
        )

    def fingerprint(self, slot: int) -> bytes:
        length = self.lengths[slot]
        h = hashlib.blake2b(str(length).encode(), digest_size=16)
        for layer in self._slot_layers:
            for buffer in (layer.keys, layer.values):
                if buffer is not None:
                    h.update(buffer[slot, :, :length].contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return h.digest()


def depths(block: Block) -> list[int]:
    """Distance of each token of a block from the slot's last token, minus one: its place on its own path."""
    if block.parents is None:
        return list(range(len(block.tokens)))
    out: list[int] = []
    for parent in block.parents:
        out.append(0 if parent < 0 else out[parent] + 1)
    return out


def visibility(plan: Plan, blocks: Sequence[Block], window: int | None, device: torch.device) -> Tensor:
    """Which key each query may see, bool [B, T, K]: the committed prefix, itself and its ancestors in the block.

    With a ``window`` only keys less than that many positions away. Padded queries see what a chain would.
    """
    key = torch.arange(plan.keys, device=device)
    start = torch.tensor(plan.starts, device=device)[:, None, None]
    query = torch.arange(plan.width, device=device)[None, :, None]
    seen = key <= start + query
    distance = start + query - key
    for row, block in enumerate(blocks):
        if block.parents is None:
            continue
        base, depth = plan.starts[row], depths(block)
        for t, parent in enumerate(block.parents):
            seen[row, t, base:] = False if parent < 0 else seen[row, parent, base:]
            seen[row, t, base + t] = True
            # A key of the block stands at its depth, one of the prefix at its index.
            at = torch.tensor([base + d for d in depth], device=device)
            distance[row, t, :base] = base + depth[t] - key[:base]
            distance[row, t, base : base + len(depth)] = base + depth[t] - at
    return seen if window is None else seen & (distance < window)
