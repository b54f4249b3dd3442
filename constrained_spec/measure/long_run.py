"""What a round costs beside the model as the output grows: it must not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.forced import ForcedDrafter
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.engine.job import Job, RoundEvent
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.grammars.compile import Constraint, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.types import Vocabulary


class Cycle:
    """A model that costs nothing: it repeats a text of its vocabulary, with a slip now and then."""

    def __init__(self, vocabulary: Vocabulary, text: Seq[int], capacity: int) -> None:
        self.vocabulary = vocabulary
        self.name = "cycle"
        self.device = torch.device("cpu")
        self.slots, self.capacity = 1, capacity
        self._text = list(text)
        self._length = 0
        self._row = torch.full((vocabulary.size,), -20.0)

    def score(self, blocks: Seq[Block]) -> Tensor:
        [block] = blocks
        first = self._length + len(block.tokens) - block.want
        rows = self._row.repeat(block.want, 1)
        for i in range(block.want):
            place = first + i
            rows[i, self._text[(place + place // 97) % len(self._text)]] = 0.0
        self._length += len(block.tokens)
        return rows

    def length(self, slot: int) -> int:
        return self._length

    def set_length(self, slot: int, length: int) -> None:
        self._length = length

    def clear(self, slot: int) -> None:
        self._length = 0

    def copy(self, source: int, target: int, length: int) -> None:
        self._length = length

    def fingerprint(self, slot: int) -> bytes:
        return str(self._length).encode()


class _Ignored:
    def event(self, event: RoundEvent) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error


def long_run(vocabulary: Vocabulary, constraint: Constraint | None, tokens: int, *, text: str) -> dict[str, float]:
    """Median microseconds of a round beside the model, in the second and in the last tenth of an output.

    The first tenth is left out: there caches fill. ``growth`` is their ratio.
    """
    model = Cycle(vocabulary, vocabulary.encode(text), tokens + 64)
    grammar = None if constraint is None else compile_constraint(constraint, vocabulary)
    ngram = NgramDrafter()
    job = Job(
        prompt=vocabulary.encode(text)[:8],
        sampling=Sampling(max_tokens=tokens, stop=("\x01\x02",), frequency_penalty=1e-6, ignore_eos=True),
        coins=Coins(0), sink=_Ignored(), matcher=None if grammar is None else grammar.matcher(),
        drafter=MixtureDrafter([ForcedDrafter(ngram), ngram]), gamma=8,
    )  # fmt: skip
    scheduler = Scheduler(model, Pipeline(vocabulary))
    scheduler.add(job)
    costs: list[tuple[int, float]] = []
    while not scheduler.idle:
        forward = scheduler.totals.forward
        start = time.perf_counter()
        scheduler.step()
        spent = time.perf_counter() - start - (scheduler.totals.forward - forward)
        costs.append((len(job.tokens), spent))
    early = statistics.median(s for n, s in costs if 0.1 * tokens <= n < 0.2 * tokens)
    late = statistics.median(s for n, s in costs if n >= 0.9 * tokens)
    return {"tokens": tokens, "early_us": early * 1e6, "late_us": late * 1e6, "growth": late / early}
