"""The next draft of each row of a batch: greedy, by the target's noise, or drawn from q."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from constrained_spec.coins import Coins, Role
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.draws import draw
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.verify import inverse_cdf
from tests.engine.test_trained_heads import StateToy

ROWS = ((0.0, "invariant"), (1.0, "invariant"), (1.0, "coupling"), (0.0, "coupling"), (0.7, "invariant"))


@pytest.mark.parametrize("before", [0, 2])
def test_every_row_of_a_batch_is_drawn_by_its_own_rule(before: int) -> None:
    model = StateToy(slots=len(ROWS), tokens=(None, *(bytes([65 + i]) for i in range(40))))
    pipeline = Pipeline(model.vocabulary)
    width = model.vocabulary.size
    within = torch.arange(3, width)
    differ = 0
    for seed in range(12):
        with ExitStack() as stack:
            live = []
            for slot, (temperature, verifier) in enumerate(ROWS):
                s = Sequence(
                    prompt=(1, 2), sampling=Sampling(temperature=temperature, max_tokens=9), coins=Coins(seed, slot),
                    vocabulary=model.vocabulary, target=model, slot=slot, capacity=model.capacity,
                )  # fmt: skip
                p = Proposal(stack.enter_context(Transaction(s)), 4, verifier)
                for _ in range(before):
                    assert p.point(3, "test")
                live.append(p)
            logits = torch.randn(len(ROWS), width, generator=torch.Generator().manual_seed(seed))
            logits[:, :3] = -torch.inf
            processed = pipeline.process(logits, [p.tx.position for p in live])
            found = draw(processed, live)
            assert torch.equal(found, draw(processed, live, within)), "nothing outside has a chance"
            best = processed.logits.argmax(-1)
            differ += int((found != best).sum())
            for i, p in enumerate(live):
                coins = p.sequence.coins
                if p.sequence.sampling.greedy:
                    expected = best[i]
                elif p.verifier == "invariant":
                    expected = (processed.logits[i].double() + torch.from_numpy(coins.gumbel(before, width))).argmax()
                else:
                    u = torch.tensor([coins.uniform(Role.DRAFT, p.round, before)], dtype=torch.float64)
                    expected = inverse_cdf(processed.probabilities()[i : i + 1], u)[0]
                assert found[i] == expected, (seed, i)
    assert differ > 12
