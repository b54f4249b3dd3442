"""The one face of every constraint engine: immutable ``Grammar``, cheap mutable ``Matcher``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MaskRow = NDArray[np.int32]  # [ceil(V / 32)], bit i of word i // 32 is token i, little endian


class Grammar(ABC):
    """A compiled constraint over one vocabulary: immutable, shareable between threads and sequences."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Content digest: equal keys mean the same language over the same vocabulary with the same options."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """A fresh matcher at the empty prefix."""


class Matcher(ABC):
    """One sequence's position in a grammar. The mask is a function of the consumed tokens and of nothing else.

    EOS never reaches an engine: its bits are set exactly when ``is_complete``; taking it only sets a flag here
    (some engines do not record it, so a later rollback would undo a real token). After EOS the mask is empty.
    """

    @abstractmethod
    def mask_into(self, row: MaskRow) -> None:
        """Overwrite ``row`` with the legal next tokens. Raises a typed error if the engine failed."""

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Consume one token. False means refused, and then nothing has changed."""

    @abstractmethod
    def mark(self) -> int:
        """A checkpoint; valid until rolled back past."""

    @abstractmethod
    def rollback(self, mark: int) -> None:
        """Return to ``mark``: afterwards ``fingerprint`` is what it was then."""

    @abstractmethod
    def fork(self) -> Matcher:
        """An independent matcher at the same position."""

    @abstractmethod
    def forced(self) -> bytes:
        """The longest byte string every completion must continue with; empty if there is a choice."""

    @abstractmethod
    def forced_tokens(self) -> list[int]:
        """``forced`` in the tokeniser's own spelling (a draft: verified, never injected)."""

    @abstractmethod
    def draft_masks(self, tokens: Sequence[int], rows: NDArray[np.int32]) -> int:
        """Masks at every prefix of ``tokens``: rows[j] before tokens[j], rows[n] after the last.

        ``rows`` is [len(tokens) + 1, words]. Returns how many tokens are legal in a row, n; rows 0..n are filled, the
        rest zeroed. The position does not change.
        """

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """The text so far is in the language: stopping is allowed."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Nothing but stopping is possible (or EOS was taken)."""

    @abstractmethod
    def fingerprint(self) -> bytes:
        """Digest of everything that can change a later step."""
