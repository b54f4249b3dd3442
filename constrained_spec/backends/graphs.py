"""The specialised step on fixed shapes, which is what a CUDA graph can replay.

Starting some twenty small kernels a layer one after the other takes longer than the GPU needs to run them. A graph
starts them all at once, but they are the same kernels on the same memory each time. So a step runs over all slots, a
fixed number of columns each, with the first places of every slot as keys, and all that differs between rounds is data,
in one buffer that travels in one copy. Nothing waits for the GPU here: a round's one sync is its caller's, who reads
the logits.

Columns that are no token (behind a short block, and in slots that take no part) compute what nobody reads. A fixed
shape makes them write too: they write a token's keys and values once more, to that token's place. So no slot is
touched but at the places of its block, whatever its length and however full it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from constrained_spec.backends.base import Block
from constrained_spec.backends.features import FeatureStore
from constrained_spec.backends.slots import SLIDING, SlotCache, SlotLayer, own_positions

WIDTHS = (1, 2, 4, 8, 16, 32)  # columns of a slot: what is longer runs as it is
KEYS = 256  # places of a slot that are read: a multiple of this, or all
ROWS = 256  # rows below which a GPU is bound by reading the weights: columns that are no token cost next to nothing
PADDED = 4  # above that, the most columns per token
_ALIGNED = 8  # elements between the rows of a mask, a multiple of which the kernels read as it is
_WARM = 2  # runs before a capture: what libraries set up on first use must not fall into it
_CAPTURING = threading.Lock()  # torch allows one capture at a time in a process

# Attention of one layer: qkv [N, heads + 2 kv heads, dim] -> [N, heads, dim]. Writes keys and values.
Read = Callable[[SlotLayer, Tensor], Tensor]
# From ids [N] at positions [N] to states behind the last norm [N, hidden]. No shape may depend on a value.
Layers = Callable[[Tensor, Tensor, Read], Tensor]
Bucket = tuple[int, int]  # columns of every slot, keys of every slot


class StaticStep:
    """Forwards of short blocks in shapes that do not depend on the round.

    On CUDA each bucket of shapes is captured the first time it is needed and replayed from then on; all share one pool
    of memory. Elsewhere the same function runs as it is.
    """

    def __init__(
        self, cache: SlotCache, heads: int, kv_heads: int, dim: int, hidden: int, *, window: int | None
    ) -> None:
        """``hidden`` is the width of a state; ``window`` that of the sliding layers."""
        keys = cache.slot_layers[0].keys
        self._slots, self._capacity = cache.slots, cache.capacity
        self._heads, self._kv_heads, self._groups, self._dim = heads, kv_heads, heads // kv_heads, dim
        # Per kind of layer, how far a query sees.
        self._windows = {
            layer.kind: window if layer.kind == SLIDING else None
            for layer in sorted(cache.slot_layers, key=lambda layer: layer.kind)
        }
        rows = cache.slots * WIDTHS[-1]
        self._inputs = _Inputs(sum(self._sizes(WIDTHS[-1])), keys.device)
        self._states = torch.zeros(rows, hidden, dtype=keys.dtype, device=keys.device)
        self._places = torch.arange(-(-cache.capacity // _ALIGNED) * _ALIGNED, device=keys.device)
        self._graphs = _Graphs(keys.device) if keys.device.type == "cuda" else None

    # ---- a round --------------------------------------------------------------------------------------------------

    def run(
        self, layers: Layers, blocks: Sequence[Block], starts: Sequence[int], store: FeatureStore | None
    ) -> Tensor | None:
        """States [sum of want, hidden] behind the last norm, in block order; None if no bucket holds the blocks.

        Block b is written from place ``starts[b]`` on, and has room there. The states of all its tokens go to
        ``store``. None also means that CUDA would not capture, and then ``note`` says why: nothing is lost, since what
        was written is what the same blocks write again.
        """
        bucket = self.bucket(blocks, starts)
        if bucket is None:
            return None
        width, _ = bucket
        values, want = self._values(width, blocks, starts)
        self._inputs.send(values)
        if self._graphs is None:
            self._compute(bucket, layers)
        elif not self._graphs.run(bucket, lambda: self._compute(bucket, layers)):
            return None
        if store is not None:
            for block, start in zip(blocks, starts, strict=True):
                row = block.slot * width
                store.write(block.slot, start, self._states[row : row + len(block.tokens)])
        # A copy: the next round overwrites the states.
        return self._states.index_select(0, self._fields(width)[4][:want])

    def bucket(self, blocks: Sequence[Block], starts: Sequence[int]) -> Bucket | None:
        """Columns and keys for these blocks; None where one is too long, or most columns would be no token."""
        longest, tokens = max(len(b.tokens) for b in blocks), sum(len(b.tokens) for b in blocks)
        width = next((w for w in WIDTHS if w >= longest), None)
        if width is None or self._slots * width > max(ROWS, PADDED * tokens):
            return None
        end = max(start + len(b.tokens) for b, start in zip(blocks, starts, strict=True))
        return width, min(self._capacity, -(-end // KEYS) * KEYS)

    # ---- inputs ---------------------------------------------------------------------------------------------------

    def _sizes(self, width: int) -> list[int]:
        n = self._slots * width
        return [self._slots, n, n, n, n, *(n for _ in self._windows)]

    def _fields(self, width: int) -> tuple[Tensor, ...]:
        """Views of the inputs: per slot where its block starts; per column id, position, source row; the wanted rows;
        and per column, for each kind of layer, which columns of its own block it sees, as bits.
        """
        sizes = self._sizes(width)
        return torch.split(self._inputs.buffer[: sum(sizes)], sizes)

    def _values(self, width: int, blocks: Sequence[Block], starts: Sequence[int]) -> tuple[list[int], int]:
        """The inputs of a round, in the order of ``_fields``, and how many rows are wanted."""
        n = self._slots * width
        begins, ids, positions = [0] * self._slots, [0] * n, [0] * n
        source = [blocks[0].slot * width] * n  # of what a column writes: some token, unless it is one itself
        words = {kind: [0] * n for kind in self._windows}
        wanted: list[int] = []
        for block, start in zip(blocks, starts, strict=True):
            count = len(block.tokens)
            row = block.slot * width
            rows = slice(row, row + count)
            begins[block.slot] = start
            ids[rows] = block.tokens
            positions[rows] = own_positions(block, start)
            source[rows] = range(row, row + count)
            wanted += range(row + count - block.want, row + count)
            for kind, window in self._windows.items():
                words[kind][rows] = _seen(block, window)
        idle = [0] * (n - len(wanted))
        flat = [*begins, *ids, *positions, *source, *wanted, *idle]
        for column in words.values():
            flat += column
        return flat, len(wanted)

    # ---- the static function --------------------------------------------------------------------------------------

    def _compute(self, bucket: Bucket, layers: Layers) -> None:
        """From the inputs to the states. Shapes and addresses depend on the bucket alone."""
        width, keys = bucket
        n = self._slots * width
        starts, ids, positions, source, _, *words = self._fields(width)
        owners = torch.div(source, width, rounding_mode="floor")
        places = starts.index_select(0, owners) + source % width
        masks = {
            kind: self._mask(starts, positions, seen, bucket, window)
            for (kind, window), seen in zip(self._windows.items(), words, strict=True)
        }

        def read(slots: SlotLayer, qkv: Tensor) -> Tensor:
            new = qkv[:, self._heads :].unflatten(1, (2, self._kv_heads))
            # Several rows write to one place, but all of them the same: their order does not matter.
            slots.both[owners, :, :, places] = new.index_select(0, source)
            query = qkv[:, : self._heads].view(self._slots, width, self._heads, self._dim).transpose(1, 2)
            folded = query.reshape(self._slots, self._kv_heads, self._groups * width, self._dim)
            both = slots.both[:, :, :, :keys]
            got = nn.functional.scaled_dot_product_attention(
                folded, both[:, 0], both[:, 1], attn_mask=masks[slots.kind]
            )
            return got.reshape(self._slots, self._heads, width, self._dim).transpose(1, 2).flatten(0, 1)

        self._states[:n].copy_(layers(ids, positions, read))

    def _mask(self, starts: Tensor, positions: Tensor, seen: Tensor, bucket: Bucket, window: int | None) -> Tensor:
        """Additive mask [slots, 1, groups * width, keys]: all before the block as far as the window, and ``seen``.

        A column that is no token starts at 0 and sees nothing; its softmax is anything, and its result is not read.
        """
        width, keys = bucket
        at = self._places[: -(-keys // _ALIGNED) * _ALIGNED]
        offset = (at - starts.unsqueeze(1)).unsqueeze(1)  # [slots, 1, keys]: column of the block at each place
        before = offset < 0
        # Bit ``width`` of a word is 0, which is what lies behind the block.
        own = (seen.view(self._slots, width, 1) >> offset.clamp(0, width)) & 1
        earlier = before if window is None else before & (at > positions.view(self._slots, width, 1) - window)
        visible = torch.where(before, earlier, own.bool())
        mask = torch.zeros(visible.shape, dtype=self._states.dtype, device=visible.device)
        # The lowest finite value, not -inf: it underflows to a weight of exactly 0 and never makes a NaN.
        mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        return mask.repeat(1, self._groups, 1).unsqueeze(1)[..., :keys]

    # ---- facts ----------------------------------------------------------------------------------------------------

    @property
    def note(self) -> str:
        """How forwards run here, in words; and why not as graphs, if CUDA would not capture one."""
        if self._graphs is None:
            return "fixed shapes"
        failure = self._graphs.failure
        return "CUDA graphs" if failure is None else f"no further CUDA graphs, a capture failed: {failure}"

    @property
    def captured(self) -> tuple[Bucket, ...]:
        """The buckets that have a graph."""
        return () if self._graphs is None else tuple(self._graphs.found)

    def nbytes(self) -> int:
        """Bytes of the static buffers, pinned ones included. What a graph uses while it runs is torch's pool."""
        return self._inputs.nbytes() + self._states.nbytes + self._places.nbytes


class _Inputs:
    """One buffer of integers on the device, filled by one copy that nothing waits for."""

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.buffer = torch.zeros(size, dtype=torch.long, device=device)
        # Two in turn: while the copy of a round may still read one, the next round fills the other.
        self._hosts = [torch.zeros(size, dtype=torch.long, pin_memory=pinned) for _ in range(2)]
        self._read = [torch.cuda.Event() for _ in self._hosts] if pinned else []
        self._turn = 0

    def send(self, values: Sequence[int]) -> None:
        """Make the first values of the buffer ``values``, for whatever is started on this stream from now on."""
        self._turn = 1 - self._turn
        host, target = self._hosts[self._turn][: len(values)], self.buffer[: len(values)]
        if self._read:
            self._read[self._turn].synchronize()  # the copy of two rounds ago: long over, unless nobody read since
        host.copy_(torch.tensor(values))
        target.copy_(host, non_blocking=True)
        if self._read:
            self._read[self._turn].record(torch.cuda.current_stream(target.device))

    def nbytes(self) -> int:
        return self.buffer.nbytes + sum(host.nbytes for host in self._hosts)


class _Graphs:
    """The graph of each bucket, captured when it is first run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.found: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self.failure: str | None = None  # why there will be no more
        with torch.cuda.device(device):
            # One stream and one pool for all: a graph leaves nothing in the pool that another could overwrite, as its
            # result is copied to memory outside.
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def run(self, bucket: Bucket, compute: Callable[[], None]) -> bool:
        """Start what ``compute`` does; false if this bucket has no graph and gets none."""
        graph = self.found.get(bucket)
        if graph is None:
            if self.failure is not None:
                return False
            try:
                graph = self._capture(compute)
            except RuntimeError as error:  # all that torch raises for CUDA is one, out of memory included
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self.failure = f"{first} (columns and keys: {bucket})"
                return False
            self.found[bucket] = graph
        graph.replay()
        return True

    def _capture(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with _CAPTURING, torch.cuda.device(self._device):
            now = torch.cuda.current_stream()
            # Entered once more for its end: a capture that fails would leave its own stream the current one.
            with torch.cuda.stream(now):
                self._stream.wait_stream(now)
                with torch.cuda.stream(self._stream):
                    for _ in range(_WARM):
                        compute()
                now.wait_stream(self._stream)
                # Other threads may go on using CUDA meanwhile.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    compute()
        return graph


def _seen(block: Block, window: int | None) -> list[int]:
    """Per token of a block, bit j: it sees token j. A chain sees what is before it, a tree ancestors; and itself."""
    n = len(block.tokens)
    parents = block.parents if block.parents is not None else range(-1, n - 1)
    seen: list[int] = []
    for i, parent in enumerate(parents):
        word, at, reach = 1 << i, parent, n if window is None else window
        if reach >= n:
            seen.append(word | (seen[parent] if parent >= 0 else 0))
            continue
        # Each step up is one position back.
        while at >= 0 and reach > 1:
            word, at, reach = word | 1 << at, parents[at], reach - 1
        seen.append(word)
    return seen
