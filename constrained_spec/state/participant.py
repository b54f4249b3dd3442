"""The protocol of everything that a rejected suffix must not touch."""

from __future__ import annotations

import hashlib
from typing import Protocol, TypeVar

from constrained_spec.types import History

MarkT = TypeVar("MarkT")


class Participant(Protocol[MarkT]):
    """State of one sequence that follows the committed tokens.

    ``rollback(mark())`` after any number of ``advance`` calls restores the ``fingerprint``. Only ``Transaction`` calls
    these methods.
    """

    def mark(self) -> MarkT: ...

    def advance(self, token: int) -> None: ...

    def rollback(self, mark: MarkT) -> None: ...

    def fingerprint(self) -> bytes:
        """Digest of everything in it that can change a later step."""
        ...


class Slots(Protocol):
    """The part of a language model that state needs: slot lengths."""

    def length(self, slot: int) -> int: ...

    def set_length(self, slot: int, length: int) -> None: ...

    def fingerprint(self, slot: int) -> bytes: ...


class HistoryState:
    """Token ids and penalty counts."""

    __slots__ = ("history",)

    def __init__(self, history: History) -> None:
        self.history = history

    def mark(self) -> int:
        return len(self.history)

    def advance(self, token: int) -> None:
        self.history.append(token)

    def rollback(self, mark: int) -> None:
        self.history.truncate(mark)

    def fingerprint(self) -> bytes:
        h = self.history
        state = (h.tokens, h.prompt_length, sorted(h.output_counts.items()))
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()


class KvState:
    """The length of one slot of a model: what a forward wrote past the committed tokens is cut by arithmetic."""

    __slots__ = ("_model", "slot")

    def __init__(self, model: Slots, slot: int) -> None:
        self._model = model
        self.slot = slot

    @property
    def length(self) -> int:
        return self._model.length(self.slot)

    def mark(self) -> int:
        return self._model.length(self.slot)

    def advance(self, token: int) -> None:
        """Nothing: keys and values are written by the forward; a committed token may also still be outside the slot."""

    def rollback(self, mark: int) -> None:
        if self._model.length(self.slot) > mark:
            self._model.set_length(self.slot, mark)

    def fingerprint(self) -> bytes:
        return self._model.fingerprint(self.slot)
