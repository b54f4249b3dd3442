"""Drafters of the audit: one is wrong on purpose, one is rejected where it is told, one watches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import Vocabulary

SPREAD = 8.0  # of a guess model's logits: over-confident drafts, most of them wrong


class GuessModel(ToyModel):
    """A "model" over any vocabulary whose logits are noise, keyed by the last tokens: a draft model that knows nothing.

    Behind a ``ModelDrafter`` it samples from q with the product's own code: masked, penalised and over-confident.
    """

    def __init__(self, vocabulary: Vocabulary, *, slots: int, capacity: int, device: torch.device) -> None:
        def logits(prefix: tuple[int, ...]) -> Tensor:
            digest = hashlib.blake2b(repr(prefix[-4:]).encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
            return torch.randn(vocabulary.size, generator=generator) * SPREAD

        super().__init__(
            vocabulary.tokens, logits, eos_ids=vocabulary.eos_ids, slots=slots, capacity=capacity, name="guess"
        )
        self._vocabulary = vocabulary  # the target's own: its special tokens have names
        self._device = device

    @property
    def device(self) -> torch.device:
        return self._device

    def score(self, blocks: Seq[Block]) -> Tensor:
        return super().score(blocks).to(self._device)


class ScriptDrafter:
    """Drafts a known continuation, with a wrong token at place ``cut`` of every block.

    With the target's own greedy continuation as the script, exactly the first ``cut`` drafts of a block stand.
    ``wrong`` is spelled there if it is legal, then the script goes on as if nothing had happened; without it some legal
    token other than the script's is taken.
    """

    name = "script"

    def __init__(self, script: Seq[int], gamma: int, cut: int, wrong: Seq[int] = ()) -> None:
        self._script, self._gamma, self._cut, self._wrong = list(script), gamma, cut, list(wrong)

    def open(self, sequence: Sequence) -> None:
        """Nothing is kept per sequence."""

    def close(self, sequence: Sequence) -> None:
        """Nothing is kept per sequence."""

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            own = self._script[p.first : p.first + self._gamma]
            block = own[: self._cut] + self._wrong + own[self._cut :] if self._wrong else own
            for i, token in enumerate(block):
                if p.room <= 0:
                    break
                if not self._wrong and i == self._cut:
                    other = other_legal(p, token)
                    token = token if other is None else other
                if not p.point(token, self.name):
                    break


def other_legal(p: Proposal, token: int) -> int | None:
    """The next legal id above ``token``, in a circle; None if the grammar leaves only that one."""
    mask, vocabulary = p.tx.position.mask, p.sequence.vocabulary
    if mask is None:
        return (token + 1) % vocabulary.size
    legal = vocabulary.legal_ids(mask)
    others = legal[legal != token]
    if not len(others):
        return None
    return int(others[np.searchsorted(others, token) % len(others)])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a sequence holds between two rounds. ``ahead``: committed tokens that the target's slot lacks, always 1."""

    output: tuple[int, ...]
    prints: dict[str, str]
    ahead: int
    stale_caches: int  # draft caches that hold more than the committed tokens


class Observer:
    """Any drafter, with a snapshot of the sequence at every round's start and at the end.

    ``silent`` lets the inner drafter keep its state and proposes nothing: the target-only run to compare with.
    """

    def __init__(self, inner: Drafter, *, silent: bool = False) -> None:
        self.inner = inner
        self.silent = silent
        self.snapshots: list[Snapshot] = []

    @property
    def name(self) -> str:
        return self.inner.name

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.snapshots.append(snapshot(sequence))
        self.inner.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        self.snapshots += [snapshot(p.sequence) for p in proposals]
        if not self.silent:
            self.inner.propose(proposals)


def snapshot(sequence: Sequence) -> Snapshot:
    """Digests of every participant but the caches, whose numbers depend on the block shapes: of these, the lengths."""
    committed = len(sequence.history)
    prints = {
        name: digest.hex()
        for name, digest in sequence.fingerprints().items()
        if not name.startswith("kv") and name != "logprobs"
    }
    stale = sum(cache.length > committed for cache in sequence.caches[1:])
    return Snapshot(tuple(sequence.output), prints, committed - sequence.kv.length, stale)
