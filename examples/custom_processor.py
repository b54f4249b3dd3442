"""A processor of your own, under speculation: it is applied at every position of every draft.

It must be a function of its arguments, because how often it is called depends on what was drafted and rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

import constrained_spec as cs
from constrained_spec.processors.base import Position


@dataclass(frozen=True)
class NoRecentRepeat:
    """Makes every id among the last ``window`` output tokens less likely."""

    window: int
    amount: float

    def __call__(self, logits: Tensor, positions: Sequence[Position]) -> Tensor:  # [N, V] -> [N, V]
        for row, position in zip(logits, positions, strict=True):
            output = position.prefix[position.history.prompt_length :]
            row[list(set(output[-self.window :]))] -= self.amount
        return logits


def main() -> None:
    engine = cs.Engine.load("smollm2-135m", capacity=512)
    question = [{"role": "user", "content": "Write one sentence about the sea."}]
    custom = [NoRecentRepeat(window=4, amount=4.0)]
    plain, fast = (engine.generate(question, max_tokens=24, processors=custom, drafter=d) for d in ("none", "ngram"))
    print(fast.text, "| same as target-only:", fast.tokens == plain.tokens)


if __name__ == "__main__":
    main()
