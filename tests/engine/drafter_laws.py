"""Whole requests on a small world with one drafter, counted against the enumerated law of the target.

The world of ``test_round_law``, with room for several drafts in one block. Seeds are fixed; the false-alarm rate of
each count is 1e-6.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from scipy.stats import chi2

from constrained_spec.backends.toy import ToyModel
from constrained_spec.drafters.base import Drafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.transaction import Commit
from tests.engine.test_round_law import SAMPLINGS, exact_law, new_sequence

RUNS = 700
TOKENS = 4


def assert_target_law(
    model: ToyModel, drafter: Drafter, verifier: str, sampling: str, pattern: str | None
) -> Counter[str]:
    """Generate RUNS texts with ``drafter`` and compare their frequencies. Returns the proposed drafts by source."""
    pipeline = Pipeline(model.vocabulary)
    rules = dataclasses.replace(SAMPLINGS[sampling], max_tokens=TOKENS)
    law = exact_law(model, pipeline, rules, pattern)
    seen: Counter[tuple[int, ...]] = Counter()
    sources: Counter[str] = Counter()
    for seed in range(RUNS):
        s = new_sequence(model, rules, seed, pattern)
        drafter.open(s)
        while not s.finished:
            [outcome] = run_round(model, pipeline, [Row(s, drafter, 3, verifier)]).outcomes
            assert isinstance(outcome, Commit)
        assert not s.disabled
        drafter.close(s)
        seen[tuple(s.output)] += 1
        sources.update({k: v[0] for k, v in s.counts.by_source.items()})
    assert_frequencies(seen, law, RUNS)
    return sources


def assert_frequencies(seen: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float], runs: int) -> None:
    """Counts of whole texts against their law, by chi-square; false-alarm rate 1e-6."""
    assert seen.keys() <= law.keys()
    # Texts expected fewer than five times are pooled.
    cells = [(seen[k], v * runs) for k, v in law.items() if v * runs >= 5]
    rare = [k for k, v in law.items() if v * runs < 5]
    pooled = (sum(seen[k] for k in rare), sum(law[k] for k in rare) * runs)
    cells += [pooled] if pooled[1] > 1 else []
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    assert chi2.sf(statistic, max(1, len(cells) - 1)) > 1e-6
