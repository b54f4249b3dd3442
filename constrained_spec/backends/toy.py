"""A language model whose logits are any function of the prefix: exact worlds for law and state tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.types import Vocabulary


class ToyModel:
    """``logits(prefix) -> [V]``, deterministic; slots are token lists, so a leaked token changes what comes next."""

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        logits: Callable[[tuple[int, ...]], Tensor],
        *,
        eos_ids: Sequence[int] = (),
        slots: int = 1,
        capacity: int = 64,
        name: str = "toy",
    ) -> None:
        self.name = name
        self.device = torch.device("cpu")
        self.capacity = capacity
        self._logits = logits
        self._slots: list[list[int]] = [[] for _ in range(slots)]
        spelling = sorted(((t, i) for i, t in enumerate(tokens) if t), key=lambda pair: -len(pair[0]))

        def encode(text: str) -> list[int]:
            data, ids = text.encode(), []
            while data:
                token, i = next(pair for pair in spelling if data.startswith(pair[0]))
                ids.append(i)
                data = data[len(token) :]
            return ids

        special = {f"<{i}>": i for i, t in enumerate(tokens) if t is None}
        self.vocabulary = Vocabulary(tokens=tuple(tokens), eos_ids=tuple(eos_ids), special=special, encode=encode)

    @property
    def slots(self) -> int:
        return len(self._slots)

    def score(self, blocks: Sequence[Block]) -> Tensor:
        rows = []
        for block in blocks:
            slot = self._slots[block.slot]
            base = tuple(slot)
            assert len(base) + len(block.tokens) <= self.capacity
            parents = block.parents if block.parents is not None else range(-1, len(block.tokens) - 1)
            paths: list[tuple[int, ...]] = []
            for token, parent in zip(block.tokens, parents, strict=True):
                paths.append((*(base if parent < 0 else paths[parent]), token))
            slot.extend(block.tokens)
            rows += [self._logits(path) for path in paths[len(paths) - block.want :]]
        return torch.stack(rows).float().clone()

    def length(self, slot: int) -> int:
        return len(self._slots[slot])

    def set_length(self, slot: int, length: int) -> None:
        assert 0 <= length <= len(self._slots[slot])
        del self._slots[slot][length:]

    def fingerprint(self, slot: int) -> bytes:
        return hashlib.blake2b(repr(self._slots[slot]).encode(), digest_size=16).digest()
