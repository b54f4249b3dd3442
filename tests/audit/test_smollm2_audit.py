"""The audit's own power on the real model: tractable spaces, and the faults that a tiny model shows too easily."""

from __future__ import annotations

import dataclasses

import pytest

from constrained_spec.audit import regression, state
from constrained_spec.audit.exact_law import MAX_OUTPUTS
from constrained_spec.audit.plants import PLANTS
from constrained_spec.audit.subject import QUICK, Subject
from constrained_spec.backends.load import load_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smollm2() -> Subject:
    effort = dataclasses.replace(QUICK, cut_gamma=2)
    return Subject(load_model("smollm2-135m", slots=8, capacity=512), None, "auto", "coupling", 8, (), effort)


def test_the_small_spaces_are_small_and_their_laws_whole(smollm2: Subject) -> None:
    for law in regression.exact_laws(smollm2).values():
        assert 4 <= len(law) <= MAX_OUTPUTS
        assert sum(law.values()) == pytest.approx(1, abs=1e-5)
        assert max(law.values()) < 0.6  # a law that is nearly one output would test nothing


def test_a_skipped_penalty_is_seen(smollm2: Subject) -> None:
    found = regression.control(smollm2, PLANTS["skipped-penalty"], regression.exact_laws(smollm2))
    assert found["detected"] and found["samples"] <= 200, found


def test_rejections_leave_nothing_and_leaks_are_seen(smollm2: Subject) -> None:
    evidence = state.every_cut(smollm2)
    assert evidence["failed"] == 0 and evidence["rejections"] > 20, evidence
    assert all(row["detected"] for row in state.leaks(smollm2))
