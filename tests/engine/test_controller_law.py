"""Draft lengths chosen by the controller, from what earlier rounds did and took, change no law.

Frequencies against enumerated probabilities by chi-square; seeds fixed; the false-alarm rate of each test is 1e-6.
"""

from __future__ import annotations

from collections import Counter

import pytest

from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.engine.controller import Controller, RowOutcome, RowState
from constrained_spec.engine.round import RoundTimes, Row, run_round
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.transaction import Commit
from tests.engine.test_round_law import RUNS, SAMPLINGS, Parrot, _chi_square, _Once, exact_law, new_sequence, table


@pytest.mark.parametrize(("sampling", "pattern", "verifier"), [
    ("plain", None, "coupling"), ("processed", r"(a|b)+c?", "coupling"), ("ends", None, "block"),
])  # fmt: skip
def test_gammas_that_follow_the_history_keep_the_law(sampling: str, pattern: str | None, verifier: str) -> None:
    model, draft = table(1), table(2)
    pipeline = Pipeline(model.vocabulary)
    drafter: Drafter = MixtureDrafter([_Once(Parrot()), ModelDrafter(draft, pipeline, model.vocabulary)])
    rules = SAMPLINGS[sampling]
    law = exact_law(model, pipeline, rules, pattern)
    controller = Controller()
    seen: Counter[tuple[int, ...]] = Counter()
    gammas: Counter[int] = Counter()
    for seed in range(RUNS):
        s = new_sequence(model, rules, seed, pattern)
        drafter.open(s)
        while not s.finished:
            [choice] = controller.choose([RowState(key=seed, limit=min(4, s.room - 1), drafter_name=drafter.name)])
            gammas[choice.gamma] += 1
            before = s.counts.proposed, s.counts.accepted
            [outcome] = run_round(model, pipeline, [Row(s, drafter, choice.gamma, verifier)]).outcomes
            assert isinstance(outcome, Commit)
            proposed, accepted = s.counts.proposed - before[0], s.counts.accepted - before[1]
            # A clock that depends on the very tokens: the next gamma then does too.
            seconds = 0.01 * (1 + 0.02 * proposed + 0.3 * (outcome.tokens[-1] % 3))
            row = RowOutcome(seed, choice.gamma, proposed, accepted, len(outcome.tokens), s.counts)
            controller.observe(
                [row], RoundTimes(propose=0.0, draft=0.0, forward=seconds, masks=0.0, verify=0.0, total=seconds)
            )
        drafter.close(s)
        controller.forget(seed)
        seen[tuple(s.output)] += 1
    assert len(gammas) >= 3
    assert seen.keys() <= law.keys()
    assert _chi_square(seen, law) > 1e-6
