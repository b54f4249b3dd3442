"""Attention of the specialised step: ragged blocks over their slots, where keys and values lie.

A block is read by a call of its own, over just its own keys; several short blocks in neighbouring slots by one call
for all, padded to the longest, because a call costs more than what it computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from constrained_spec.backends.base import Block
from constrained_spec.backends.slots import SLIDING, SlotCache, SlotLayer, own_positions, within_tree

SHORT = 32  # tokens of a block that may be read together with others
FEW = 3  # blocks, below which one call for all of them costs more than a call each
BUCKET = 64  # keys that a row-wise query reads: its end is rounded up to a multiple
TILES = (2, 4, 8, 16)  # queries that are computed together, where that leaves each as it is alone
_FOLDED = 4  # rows below which the matrix kernels of some libraries add up in another order


@dataclass(frozen=True, slots=True)
class Segment:
    """One block that is read alone: rows ``rows`` of the token list, written to places start … end of the slot."""

    slot: int
    rows: slice
    start: int
    end: int
    views: dict[str, tuple[int, int, Tensor | None]]  # per layer kind: keys low … high, and the additive mask


@dataclass(frozen=True, slots=True)
class Together:
    """Short blocks in slots ``first`` … ``last`` that one call reads, padded to a width of the longest of them.

    Token ``rows[i]`` of the list is query ``columns[i]`` of slot ``first + owners[i]``, written to place ``places[i]``.
    """

    first: int
    last: int
    width: int
    rows: Tensor  # [N] long, all four
    owners: Tensor
    columns: Tensor
    places: Tensor
    views: dict[str, tuple[int, int, Tensor]]  # per layer kind: keys low … high, and the additive mask


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward: which rows of the token list each block has, the position of every token, and how they are read."""

    rows: list[slice]
    positions: list[int]
    alone: list[Segment]
    together: Together | None


class Attention:
    """Grouped-query attention over the slots of ``cache``. ``row_wise``: a query's result depends on no other one."""

    def __init__(
        self, cache: SlotCache, heads: int, kv_heads: int, dim: int, *, window: int | None, row_wise: bool
    ) -> None:
        layer = cache.slot_layers[0].both
        self._dtype, self._device = layer.dtype, layer.device
        self._capacity = cache.capacity
        self._kinds = tuple(sorted({layer.kind for layer in cache.slot_layers}))
        self._heads, self._kv_heads, self._dim = heads, kv_heads, dim
        self._groups = heads // kv_heads
        self._window = window
        self._row_wise = row_wise
        self._tiles = _exact_tiles(layer, heads // kv_heads) if row_wise else ()

    # ---- planning -------------------------------------------------------------------------------------------------

    def plan(self, blocks: Sequence[Block], starts: Sequence[int]) -> Plan:
        """What each block reads and writes; block b is written from place ``starts[b]`` of its slot on."""
        rows, own, at = [], [], 0
        for block, start in zip(blocks, starts, strict=True):
            rows.append(slice(at, at + len(block.tokens)))
            own.append(own_positions(block, start))
            at = rows[-1].stop
        short = self._short(blocks, starts)
        alone = [
            segment
            for i, block in enumerate(blocks) if i not in short
            for segment in self._segments(block, starts[i], rows[i].start, own[i])
        ]  # fmt: skip
        together = self._together(blocks, starts, rows, own, sorted(short)) if short else None
        return Plan(rows, [position for places in own for position in places], alone, together)

    def _segments(self, block: Block, start: int, row: int, own: list[int]) -> list[Segment]:
        """A block that is read alone, in one piece; row by row in pieces whose queries read the same keys as alone."""
        n = len(own)
        cuts = [0, n]
        if self._row_wise and block.parents is None:
            cuts[1:1] = [i for i in range(1, n) if self._turns(start + i)]
        found = []
        for a, b in itertools.pairwise(cuts):
            piece = block if b - a == n else Block(block.slot, block.tokens[a:b], want=0)
            views = {kind: self._view(piece, start + a, own[a:b], kind) for kind in self._kinds}
            found.append(Segment(block.slot, slice(row + a, row + b), start + a, start + b, views))
        return found

    def _turns(self, place: int) -> bool:
        """Does a query here read other keys than the one before it? More of them, though invisible, change the sum."""
        low = 0 if self._window is None or SLIDING not in self._kinds else place - self._window + 1
        return place % BUCKET == 0 or (low > 0 and low % BUCKET == 0)

    def _short(self, blocks: Sequence[Block], starts: Sequence[int]) -> frozenset[int]:
        """Indices of the blocks that are read together. Slots in between that take no part are read for nothing."""
        short = [i for i, block in enumerate(blocks) if len(block.tokens) <= SHORT]
        if self._row_wise or len(short) < FEW:
            return frozenset()
        slots, ends = [blocks[i].slot for i in short], [starts[i] + len(blocks[i].tokens) for i in short]
        if (max(slots) - min(slots) + 1) * max(ends) > 2 * sum(ends):
            return frozenset()  # slots apart, or one text much longer than the others
        return frozenset(short)

    def _together(
        self, blocks: Sequence[Block], starts: Sequence[int], rows: Sequence[slice], own: Sequence[list[int]],
        short: Sequence[int],
    ) -> Together:  # fmt: skip
        slots = [blocks[i].slot for i in short]
        first, last = min(slots), max(slots)
        high, width = max(starts[i] + len(own[i]) for i in short), max(len(own[i]) for i in short)
        table = [
            (rows[i].start + column, blocks[i].slot - first, column, starts[i] + column)
            for i in short
            for column in range(len(own[i]))
        ]
        index, owners, columns, places = torch.tensor(table, device=self._device).t().contiguous().unbind(0)
        views = {}
        for kind in self._kinds:
            window = self._window if kind == SLIDING else None
            low = 0 if window is None else max(0, min(starts[i] for i in short) - window + 1)
            # Padding, and slots that take no part, see nothing: what is computed there is never read.
            visible = torch.zeros(last - first + 1, width, high - low, dtype=torch.bool, device=self._device)
            for i in short:
                seen = self._visible(blocks[i], starts[i], own[i], window, low, high)
                visible[blocks[i].slot - first, : len(own[i])] = seen
            views[kind] = low, high, self._additive(visible).repeat(1, self._groups, 1).unsqueeze(1)
        return Together(first, last, width, index, owners, columns, places, views)

    def _view(self, block: Block, start: int, own: list[int], kind: str) -> tuple[int, int, Tensor | None]:
        window = self._window if kind == SLIDING else None
        n, end = len(own), start + len(own)
        # No query stands before ``start``, so nothing below low is in any window.
        low = 0 if window is None else max(0, start - window + 1)
        if not self._row_wise:
            if n == 1:
                return low, end, None
            mask = self._additive(self._visible(block, start, own, window, low, end))
            return low, end, mask.repeat(self._groups, 1)[None, None]
        low, high = low // BUCKET * BUCKET, min(self._capacity, -(-end // BUCKET) * BUCKET)
        mask = self._additive(self._visible(block, start, own, window, low, high))
        tile, count = self._tiling(n)
        mask = nn.functional.pad(mask, (0, 0, 0, tile * count - n)).view(count, 1, 1, tile, high - low)
        return low, high, mask.expand(-1, -1, self._groups, -1, -1).reshape(count, 1, self._groups * tile, high - low)

    def _tiling(self, n: int) -> tuple[int, int]:
        """(queries of a tile, tiles) for n queries."""
        tile = next((t for t in self._tiles if t >= n), self._tiles[-1])
        return tile, -(-n // tile)

    def _visible(self, block: Block, start: int, own: list[int], window: int | None, low: int, high: int) -> Tensor:
        """Which keys low … high each query of a block sees, [n, high - low]."""
        keys = torch.arange(low, high, device=self._device)
        queries = torch.tensor(own, device=self._device).unsqueeze(1)
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        if block.parents is not None:
            # Places of a tree are not positions: only ancestors are visible, and the window counts depths.
            visible[:, start - low :] = False
            visible[:, start - low : start - low + len(own)] = within_tree(block.parents, window).to(self._device)
        return visible

    def _additive(self, visible: Tensor) -> Tensor:
        # The lowest finite value, not -inf: it underflows to a weight of exactly 0 and never makes a NaN.
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~visible, torch.finfo(self._dtype).min)

    # ---- reading --------------------------------------------------------------------------------------------------

    def read(self, slots: SlotLayer, qkv: Tensor, plan: Plan) -> Tensor:
        """qkv [N, heads + 2 kv heads, dim] -> [N, heads, dim]; writes keys and values of one layer."""
        out = torch.empty(len(qkv), self._heads, self._dim, dtype=qkv.dtype, device=qkv.device)
        for s in plan.alone:
            both = slots.both[s.slot]  # [2, kv heads, capacity, head dim]
            new = qkv[s.rows, self._heads :].unflatten(1, (2, self._kv_heads))
            both[:, :, s.start : s.end] = new.permute(1, 2, 0, 3)
            low, high, mask = s.views[slots.kind]
            self._read_one(qkv[s.rows, : self._heads], both[:, None, :, low:high], mask, out[s.rows])
        if plan.together is not None:
            self._read_together(slots, qkv, plan.together, out)
        return out

    def _read_one(self, query: Tensor, both: Tensor, mask: Tensor | None, out: Tensor) -> None:
        """Attention of n queries [n, heads, dim] over keys and values [2, 1, kv heads, K, dim], into ``out``."""
        n = len(query)
        if self._row_wise:
            tile, count = self._tiling(n)
            # [tiles, kv heads, groups * tile, dim]: the batch is the tiles, and all share the keys. What fills a tile
            # up is never read.
            if n == 1:
                filled = query.expand(tile, -1, -1)
            else:
                filled = query if n == tile * count else nn.functional.pad(query, (0, 0, 0, 0, 0, tile * count - n))
            folded = filled.view(count, tile, self._kv_heads, self._groups, self._dim).permute(0, 2, 3, 1, 4)
            both = both.expand(-1, count, -1, -1, -1)
            got = nn.functional.scaled_dot_product_attention(
                folded.reshape(count, self._kv_heads, -1, self._dim), both[0], both[1], attn_mask=mask
            )
            got = got.view(count, self._kv_heads, self._groups, tile, self._dim)
            if count == 1:
                out.unflatten(1, (self._kv_heads, self._groups)).copy_(got[0, :, :, :n].permute(2, 0, 1, 3))
            else:
                out.copy_(got.permute(0, 3, 1, 2, 4).reshape(-1, self._heads, self._dim)[:n])
            return
        # [1, kv heads, groups * n, dim]: query head h belongs to key head h // groups.
        folded = query.transpose(0, 1).reshape(1, self._kv_heads, self._groups * n, self._dim)
        got = nn.functional.scaled_dot_product_attention(folded, both[0], both[1], attn_mask=mask)
        out.copy_(got.reshape(self._heads, n, self._dim).transpose(0, 1))

    def _read_together(self, slots: SlotLayer, qkv: Tensor, t: Together, out: Tensor) -> None:
        slots.both[t.first + t.owners, :, :, t.places] = qkv[t.rows, self._heads :].unflatten(1, (2, self._kv_heads))
        low, high, mask = t.views[slots.kind]
        count = t.last - t.first + 1
        query = qkv.new_zeros(count, self._heads, t.width, self._dim)
        query[t.owners, :, t.columns] = qkv[t.rows, : self._heads]
        both = slots.both[t.first : t.last + 1, :, :, low:high]
        folded = query.view(count, self._kv_heads, self._groups * t.width, self._dim)
        got = nn.functional.scaled_dot_product_attention(folded, both[:, 0], both[:, 1], attn_mask=mask)
        out[t.rows] = got.reshape(count, self._heads, t.width, self._dim)[t.owners, :, t.columns]


def _exact_tiles(layer: Tensor, groups: int) -> tuple[int, ...]:
    """Tile sizes that give a query the same result to the last bit, in whatever tile and place it is; at least one.

    ``layer`` [slots, 2, kv heads, capacity, dim] gives shape, type and device. A kernel sums over keys and features in
    an order that hangs on shapes, never on values: so every number of keys that a query may read is tried once, with
    random ones.
    """
    _, _, kv_heads, capacity, dim = layer.shape
    tiles = [t for t in TILES if groups * t >= _FOLDED]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(layer.device, layer.dtype)

    query = random(1, kv_heads, groups, 1, dim)
    cache = random(2, 1, kv_heads, capacity, dim)
    with torch.inference_mode():
        for keys in {*range(BUCKET, capacity, BUCKET), capacity}:
            key, value = cache[0, :, :, :keys], cache[1, :, :, :keys]
            seen = {}
            for tile in tiles:
                folded = query.expand(-1, -1, -1, tile, -1).reshape(1, kv_heads, groups * tile, dim)
                mask = torch.zeros(1, 1, groups * tile, keys, dtype=layer.dtype, device=layer.device)
                got = nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask)
                seen[tile] = got.view(kv_heads, groups, tile, dim)
            first = seen[tiles[0]]
            if not torch.equal(first, first[:, :, :1].expand_as(first)):
                return (1,)  # not even the places of one tile agree
            tiles = [t for t in tiles if torch.equal(seen[t], first[:, :, :1].expand_as(seen[t]))]
    return tuple(tiles)
