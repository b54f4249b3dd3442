"""Answers as padded tensors, the reduced vocabulary, and the target's own law at every place of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from constrained_spec.backends.base import FeatureModel
from constrained_spec.training.data import Sample
from constrained_spec.types import Vocabulary


def reduced_vocabulary(samples: Sequence[Sample], vocabulary: Vocabulary, size: int) -> Tensor:
    """The ``size`` ids [R], ascending, that the answers use most; then those of the prompts, then the first ids.

    Single bytes and EOS are always among them: a rare word is spelled by what is short.
    """
    out: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for s in samples:
        out.update(s.tokens[s.prompt :].tolist())
        seen.update(s.tokens[: s.prompt].tolist())
    always = [*vocabulary.eos_ids, *(i for i, t in enumerate(vocabulary.tokens) if t is not None and len(t) == 1)]
    order = [*always, *(i for i, _ in out.most_common()), *(i for i, _ in seen.most_common()), *range(vocabulary.size)]
    kept = list(dict.fromkeys(i for i in order if i in vocabulary.eos_ids or vocabulary.tokens[i] is not None))
    return torch.tensor(sorted(kept[:size]))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B answers padded to T tokens at the right.

    Place j of an answer is where the target's state after token j gives the law of token j + 1. ``rows``, ``places``
    [M] name the M places of output tokens that a chain can reach, and ``start`` [M] how many drafts may stand before:
    a chain begins at the newest of the known tokens, and these include the first output token.
    """

    tokens: Tensor  # [B, T]
    states: Tensor  # [B, T, hidden] float32, zeros behind an answer's last known state
    rows: Tensor
    places: Tensor
    depth: Tensor  # [M]: place j has depth j - prompt, the longest chain that can end there
    illegal: Tensor  # [M, R] bool
    target: Tensor  # [M, R] logits of the target, -inf where illegal


class Batches:
    """Batches of about ``size`` tokens in random order, forever; the same for the same seed and starting step."""

    def __init__(
        self,
        samples: Sequence[Sample],
        model: FeatureModel,
        reduced: Tensor,
        *,
        size: int,
        longest: int,
        places: int | None = None,
    ) -> None:
        """A prompt is cut at its front, so that an answer with its prompt has at most ``longest`` tokens. ``places``
        bounds the places of a random batch, chosen by chance: the product with the output rows is what a step costs.
        """
        self._samples = [s for s in (_cut(s, longest) for s in samples) if s.outputs > 2]
        self._size = size
        self._most = places
        self._reduced = reduced
        self.head = model.head_rows(reduced.to(model.device)).float().cpu()  # [R, hidden]
        self._words, self._bits = reduced.numpy() >> 5, (reduced.numpy() & 31).astype(np.int32)

    def __len__(self) -> int:
        """Batches in one pass over the answers."""
        return max(1, sum(len(s.tokens) for s in self._samples) // self._size)

    def forever(self, seed: int) -> Iterator[Batch]:
        rng = Random(seed)
        while True:
            yield from self.once(rng)

    def once(self, rng: Random | None = None) -> Iterator[Batch]:
        """Every answer once; in order of length without ``rng``."""
        order = sorted(self._samples, key=lambda s: len(s.tokens) + (rng.random() * 40 if rng is not None else 0.0))
        groups: list[list[Sample]] = [[]]
        for s in order:
            if groups[-1] and (len(groups[-1]) + 1) * len(s.tokens) > self._size:
                groups.append([])
            groups[-1].append(s)
        if rng is not None:
            rng.shuffle(groups)
        for group in groups:
            yield self._pad(group, rng)

    def _pad(self, group: Sequence[Sample], rng: Random | None) -> Batch:
        longest = max(len(s.tokens) for s in group)
        tokens = torch.zeros(len(group), longest, dtype=torch.long)
        states = torch.zeros(len(group), longest, group[0].features.shape[1])
        rows, places, depth, illegal = [], [], [], []
        for b, s in enumerate(group):
            n = len(s.tokens)
            tokens[b, :n] = s.tokens
            states[b, : n - 1] = s.features.float()
            # Token prompt is always known; the law of a later token j + 1 is what a draft is compared with.
            own = torch.arange(s.prompt, n - 1)
            rows.append(torch.full_like(own, b))
            places.append(own)
            depth.append(own - s.prompt)
            illegal.append(self._illegal(s))
        found = [torch.cat(part) for part in (rows, places, depth, illegal)]
        count = len(found[0])
        if rng is not None and self._most is not None and count > self._most:
            some = torch.tensor(sorted(rng.sample(range(count), self._most)))
            found = [part[some] for part in found]
        at, place, deep, banned = found
        logits = (states[at, place] @ self.head.t()).masked_fill_(banned, float("-inf"))
        return Batch(tokens, states, at, place, deep, banned, logits)

    def _illegal(self, s: Sample) -> Tensor:
        """[outputs - 1, R]: reduced ids that the grammar forbids at each output place but the first."""
        if s.masks is None:
            return torch.zeros(s.outputs - 1, len(self._reduced), dtype=torch.bool)
        found = s.masks.numpy()[1:, self._words] >> self._bits & 1
        illegal = torch.from_numpy(found == 0)
        # Where no reduced id is legal there is nothing to learn: an even law on both sides has no loss.
        return illegal & ~illegal.all(1, keepdim=True)


def _cut(s: Sample, longest: int) -> Sample:
    over = min(len(s.tokens) - longest, s.prompt - 1)
    if over <= 0:
        return s
    return Sample(s.kind, s.prompt - over, s.tokens[over:], s.features[over:], s.masks)
