"""Where logits come from. The engine, the state and the drafters know this protocol and nothing of any library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from constrained_spec.types import Vocabulary


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens to write into one slot, from its current length on.

    ``want`` trailing tokens get a row of logits each (the distribution after that token). ``parents[i]`` is the index
    within the block of token i's parent, or -1 for the slot's last token; None means a chain.
    """

    slot: int
    tokens: Sequence[int]
    want: int
    parents: Sequence[int] | None = None


class LanguageModel(Protocol):
    """A decoder with KV slots."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def slots(self) -> int:
        """Number of rows of KV."""
        ...

    @property
    def capacity(self) -> int:
        """Positions in a slot: the context limit."""
        ...

    def score(self, blocks: Sequence[Block]) -> Tensor:
        """ONE forward for ragged blocks of distinct slots. Returns float32 logits [sum of want, V], in block order.

        Each slot's length grows by its block's token count; the caller sets it back after verification.
        """
        ...

    def length(self, slot: int) -> int: ...

    def set_length(self, slot: int, length: int) -> None:
        """Forget everything from ``length`` on. Arithmetic, never a copy. ``length`` <= the current one."""
        ...

    def fingerprint(self, slot: int) -> bytes:
        """Digest of the slot's length and of the keys and values before it (for tests and self-checks)."""
        ...
