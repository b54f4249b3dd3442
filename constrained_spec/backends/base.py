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

    def clear(self, slot: int) -> None:
        """Empty the slot, its memory included: what a forward wrote there may not be finite, which no mask hides."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Make slot ``target`` hold the first ``length`` tokens of slot ``source``, which are spared a forward."""
        ...

    def fingerprint(self, slot: int) -> bytes:
        """Digest of the slot's length and of the keys and values before it (for tests and self-checks)."""
        ...


class FeatureModel(LanguageModel, Protocol):
    """A model whose logits are a product of its final hidden states, and that shows these states.

    What a part trained for one model needs of it. ``keep_features`` comes first; without it nothing is kept or copied.
    """

    @property
    def feature_size(self) -> int:
        """Width of a final hidden state."""
        ...

    def weights_digest(self) -> str:
        """Names the weights: two models with the same digest compute the same."""
        ...

    def keep_features(self) -> None:
        """From now on every forward keeps the final hidden state of each of its tokens, by slot and place.

        Raises ``ModelError`` if the logits are not a plain product of these states.
        """
        ...

    def features(self, slot: int) -> Tensor | None:
        """Final hidden states [length of the slot, feature_size]: row i after the token at place i.

        A view, valid until the next ``score``. None if the slot holds tokens from before ``keep_features``.
        """
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings of ids [n]: [n, feature_size]."""
        ...

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows of the output product for ids [n]: [n, feature_size]; ``features @ head_rows.T`` are logits."""
        ...
