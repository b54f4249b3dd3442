"""What a tree of drafts needs beside what a chain needs: a history per branch, and slots that can keep one path."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from constrained_spec.errors import TransactionError
from constrained_spec.processors.base import Position
from constrained_spec.state.participant import KvState, Slots
from constrained_spec.types import History


@runtime_checkable
class TreeSlots(Slots, Protocol):
    """Slots of a model that scores tree blocks.

    ``takes_trees`` False: it could, but a node's scores are not those of the same token in a chain, so that drafts
    should not stand in trees: keys and values lie at other places there, and are summed in another order.
    """

    @property
    def takes_trees(self) -> bool: ...

    def compact(self, slot: int, base: int, path: Seq[int]) -> None:
        """Keep one path of the tree written from ``base`` on; ``path`` holds indices within it, ascending."""
        ...


class TreeKv(KvState):
    """A slot that may hold a tree of drafts: node i of the round's proposal at place (committed length) + i.

    That is where a block of all nodes in their order puts them. A slot that was filled along the path only, as a chain
    drafter does, is a plain ``KvState``.
    """

    __slots__ = ("_trees",)

    def __init__(self, model: TreeSlots, slot: int) -> None:
        super().__init__(model, slot)
        self._trees = model

    def keep(self, base: int, path: Seq[int]) -> None:
        """Of what lies from ``base`` on, keep the nodes ``path`` as far as they were written."""
        written = self.length - base
        if written > 0:
            # A path ascends and parents stand before their children, so what was written of it is a prefix.
            self._trees.compact(self.slot, base, [node for node in path if node < written])


def kv_state(model: Slots, slot: int) -> KvState:
    """The state of one slot, able to hold a tree if its model can score one."""
    return TreeKv(model, slot) if isinstance(model, TreeSlots) and model.takes_trees else KvState(model, slot)


def branch(history: History, length: int) -> History:
    """An independent history of the first ``length`` tokens; the prompt is shared. O(length), without hashing it."""
    new = copy.copy(history)
    new.tokens = list(history.tokens)
    new.output_counts = dict(history.output_counts)
    new.truncate(length)
    return new


def child_history(parent: Position, token: int) -> History:
    """The history of a node below ``parent``'s: the parent's own where nothing follows there yet, else a new branch.

    So one history serves every node of a branch, each of which reads it up to its own index, and siblings never share.
    """
    history = parent.history
    if len(history) != parent.index:
        history = branch(history, parent.index)
    history.append(token)
    return history


def tree_block(pending: Seq[int], nodes: Seq[int], parents: Seq[int]) -> tuple[list[int], list[int]]:
    """(tokens, parents) of the block that writes a chain of ``pending`` tokens and the tree that follows it.

    ``parents`` are indices of nodes, -1 for the root; the result's are indices within the block.
    """
    n = len(pending)
    return [*pending, *nodes], [*range(-1, n - 1), *(n + parent for parent in parents)]


def require_path(parents: Seq[int], path: Seq[int]) -> None:
    """Raises ``TransactionError`` unless ``path`` leads from the root downwards."""
    above = -1
    for node in path:
        if not 0 <= node < len(parents) or parents[node] != above:
            raise TransactionError(f"{list(path)} is no path from the root of the {len(parents)} drafts")
        above = node
