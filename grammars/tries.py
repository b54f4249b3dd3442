"""Byte tries in level order, built without a Python loop over the strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes at one depth, children of one parent contiguous. Depth 0 (the root alone) is not stored."""

    parent: Ints  # [n] index within the level above
    byte: NDArray[np.uint8]  # [n]
    child_start: Ints  # [n_above + 1] the children of node p above are child_start[p] : child_start[p + 1]
    ids: Ints  # ids of the strings that end in this level, by node
    ids_start: Ints  # [n + 1] offsets into ids


def expand(starts: Ints, nodes: Ints) -> tuple[Ints, Ints]:
    """Members of the groups ``nodes`` of a CSR: (member indices, how many each node has)."""
    begin = starts[nodes]
    counts = starts[nodes + 1] - begin
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begin - (ends - counts), counts) + np.arange(total), counts


def build_levels(strings: Sequence[bytes], ids: Sequence[int]) -> tuple[Level, ...]:
    """``strings`` sorted, none empty; equal ones share a node. ``ids[i]`` names ``strings[i]``."""
    if not strings:
        return ()
    lengths = np.fromiter((len(s) for s in strings), np.int64, len(strings))
    offsets = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(strings), np.uint8)
    names = np.asarray(ids, np.int64)
    node = np.zeros(len(strings), np.int64)
    active = np.arange(len(strings))
    levels: list[Level] = []
    above = 1
    for depth in range(int(lengths.max())):
        active = active[lengths[active] > depth]
        over, byte = node[active], data[offsets[active] + depth]
        # Sorted order keeps strings with a common prefix together, so a node starts where (parent, byte) changes.
        new = np.ones(len(active), np.bool_)
        new[1:] = (over[1:] != over[:-1]) | (byte[1:] != byte[:-1])
        index = np.cumsum(new) - 1
        parent = over[new]
        n = len(parent)
        node[active] = index
        ending = lengths[active] == depth + 1
        levels.append(
            Level(
                parent=parent,
                byte=byte[new],
                child_start=np.searchsorted(parent, np.arange(above + 1)).astype(np.int64),
                ids=names[active[ending]],
                ids_start=np.searchsorted(index[ending], np.arange(n + 1)).astype(np.int64),
            )
        )
        above = n
    return tuple(levels)
