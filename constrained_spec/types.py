"""Values that every layer shares: the vocabulary, the token history, finish reasons."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]
Exactness = Literal["exact", "approximate"]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What the ids of a model mean, independent of any tokeniser library.

    ``tokens[i]`` is the exact byte string that id ``i`` appends to the text; ``None`` marks an id without text:
    special and control tokens, and the padded tail of an embedding table. ``size`` is the width of the logits.
    """

    tokens: tuple[bytes | None, ...]
    eos_ids: tuple[int, ...]
    special: Mapping[str, int]
    encode: Callable[[str], list[int]]  # text -> ids, no special tokens added or parsed
    tokenizer_json: str | None = None  # serialised `tokenizers` definition, when there is one
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        h = hashlib.blake2b(digest_size=16)
        for t in self.tokens:
            h.update(b"\x00" if t is None else b"\x01" + len(t).to_bytes(4, "little") + t)
        h.update(repr((self.eos_ids, sorted(self.special.items()))).encode())
        object.__setattr__(self, "digest", h.hexdigest())

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def mask_words(self) -> int:
        """Number of int32 words in one packed mask row."""
        return (len(self.tokens) + 31) // 32

    def legal_ids(self, mask: NDArray[np.int32]) -> NDArray[np.intp]:
        """The ids that a packed mask row [mask_words] allows, ascending."""
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=self.size, bitorder="little"))

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.tokens[i] or b"" for i in ids)


class History:
    """Prompt and output ids of one sequence, drafts included while a round is open. Append and truncate only."""

    __slots__ = ("output_counts", "prompt_ids", "prompt_length", "tokens")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens: list[int] = list(prompt)
        self.prompt_length = len(prompt)
        self.prompt_ids = frozenset(prompt)
        self.output_counts: dict[int, int] = {}  # of tokens[prompt_length:], drafts included

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.output_counts[token] = self.output_counts.get(token, 0) + 1

    def truncate(self, length: int) -> None:
        assert self.prompt_length <= length <= len(self.tokens)
        for token in self.tokens[length:]:
            left = self.output_counts[token] - 1
            if left:
                self.output_counts[token] = left
            else:
                del self.output_counts[token]
        del self.tokens[length:]
