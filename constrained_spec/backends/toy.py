"""A language model of exact tables, for checks of law and state on a vocabulary one can enumerate."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.types import Vocabulary

Logits = Callable[[tuple[int, ...]], Tensor]


def table(rows: Mapping[tuple[int, ...], Tensor], default: Tensor) -> Logits:
    """Logits looked up by the longest suffix of the prefix that is a key of ``rows``."""
    longest = max(map(len, rows), default=0)

    def look(prefix: tuple[int, ...]) -> Tensor:
        for n in range(min(longest, len(prefix)), -1, -1):
            found = rows.get(prefix[len(prefix) - n :])
            if found is not None:
                return found
        return default

    return look


class ToyModel:
    """Next-token logits are ``logits(prefix)``, a pure function. A slot is a list of ids.

    >>> model = ToyModel([b"a", b"b", None], lambda prefix: torch.zeros(3), eos_ids=(2,))
    >>> model.score([Block(0, [0, 1], want=1)]).shape
    torch.Size([1, 3])
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        logits: Logits,
        *,
        eos_ids: Sequence[int] = (),
        slots: int = 1,
        capacity: int = 64,
        name: str = "toy",
    ) -> None:
        if slots < 1 or capacity < 1:
            raise ConfigError("slots and capacity must be at least 1", param="slots" if slots < 1 else "capacity")
        if any(not 0 <= i < len(tokens) or tokens[i] is not None for i in eos_ids):
            raise ConfigError("an EOS id must name a token without text", param="eos_ids")
        self._vocabulary = Vocabulary(
            tokens=tuple(tokens),
            eos_ids=tuple(eos_ids),
            special={f"<{i}>": i for i, token in enumerate(tokens) if token is None},
            encode=self.encode,
        )
        self._by_length = sorted(
            ((token, i) for i, token in enumerate(tokens) if token), key=lambda pair: len(pair[0]), reverse=True
        )
        self._logits = logits
        self._slots: list[list[int]] = [[] for _ in range(slots)]
        self._capacity = capacity
        self._name = name

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def name(self) -> str:
        return self._name

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def capacity(self) -> int:
        return self._capacity

    def encode(self, text: str) -> list[int]:
        """Greedy longest match on the text's bytes; among equal byte strings the first id. Raises ``RequestError``."""
        data, at, out = text.encode(), 0, []
        while at < len(data):
            found = next(((t, i) for t, i in self._by_length if data.startswith(t, at)), None)
            if found is None:
                raise RequestError(f"no token spells byte {data[at]:#04x} at {at}", param="prompt")
            out.append(found[1])
            at += len(found[0])
        return out

    def score(self, blocks: Sequence[Block]) -> Tensor:
        assert len({b.slot for b in blocks}) == len(blocks), "distinct slots"
        rows = []
        for block in blocks:
            held, n = self._slots[block.slot], len(block.tokens)
            assert n and 0 <= block.want <= n
            if len(held) + n > self._capacity:
                raise RequestError(
                    f"slot {block.slot} holds {len(held)} of {self._capacity} tokens, {n} more do not fit",
                    param="prompt",
                )
            paths = _paths(block)
            rows += [self._row((*held, *paths[i])) for i in range(n - block.want, n)]
        for block in blocks:
            self._slots[block.slot].extend(block.tokens)
        return torch.stack(rows) if rows else torch.empty(0, self._vocabulary.size)

    def _row(self, prefix: tuple[int, ...]) -> Tensor:
        row = self._logits(prefix).to(torch.float32)
        assert row.shape == (self._vocabulary.size,)
        return row

    def length(self, slot: int) -> int:
        return len(self._slots[slot])

    def set_length(self, slot: int, length: int) -> None:
        assert 0 <= length <= len(self._slots[slot]), "a slot can only be shortened"
        del self._slots[slot][length:]

    def clear(self, slot: int) -> None:
        """See ``LanguageModel``."""
        self._slots[slot].clear()

    def copy(self, source: int, target: int, length: int) -> None:
        """See ``LanguageModel``."""
        assert 0 <= length <= len(self._slots[source])
        self._slots[target] = self._slots[source][:length]

    @property
    def takes_trees(self) -> bool:
        return True

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Keep one path of the tree block written from ``base`` on; ``path`` holds indices within the block."""
        held = self._slots[slot]
        held[base:] = [held[base + i] for i in path]

    def fingerprint(self, slot: int) -> bytes:
        return hashlib.blake2b(repr(self._slots[slot]).encode(), digest_size=16).digest()


def _paths(block: Block) -> list[tuple[int, ...]]:
    """For each token of the block, the tokens from the slot's end down to it."""
    out: list[tuple[int, ...]] = []
    for i, token in enumerate(block.tokens):
        parent = i - 1 if block.parents is None else block.parents[i]
        assert -1 <= parent < i, "a parent stands before its child"
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out
