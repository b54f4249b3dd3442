"""Planted faults: each is seen by the ledger that owns it, and leaves nothing behind."""

from __future__ import annotations

import pytest

from constrained_spec.audit import regression, state
from constrained_spec.audit.plants import PLANTS, plant_named
from constrained_spec.audit.replay import exact_replay
from constrained_spec.audit.subject import Subject
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.engine import judge
from constrained_spec.errors import ConfigError
from constrained_spec.processors import penalties
from constrained_spec.state.participant import KvState
from constrained_spec.state.transaction import Transaction
from constrained_spec.types import History

LEAKS = [name for name, plant in PLANTS.items() if plant.ledger == "state"]
BIASES = [name for name, plant in PLANTS.items() if plant.ledger == "probability"]


def _replaceable() -> list[object]:
    return [
        judge.CHAIN_JUDGES, ModelDrafter._process, penalties._counts, Transaction._settle_matcher, History.truncate,
        KvState.rollback,
    ]  # fmt: skip


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_replaces_one_function_and_puts_it_back(name: str) -> None:
    before = _replaceable()
    with pytest.raises(KeyboardInterrupt), plant_named(name).active():
        during = _replaceable()
        assert sum(a is not b for a, b in zip(before, during, strict=True)) == 1
        raise KeyboardInterrupt
    assert all(a is b for a, b in zip(before, _replaceable(), strict=True))


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ConfigError, match="full-p-repair"):
        plant_named("gremlin")


@pytest.mark.parametrize("name", BIASES)
def test_biases_are_seen_on_the_engine(subject: Subject, name: str) -> None:
    found = regression.control(subject, PLANTS[name], regression.exact_laws(subject))
    assert found["detected"], found


def test_leaks_are_seen_on_the_engine_and_in_the_replay(subject: Subject) -> None:
    rows = state.leaks(subject)
    assert [row["plant"] for row in rows] == LEAKS
    for row in rows:
        assert row["detected"] and row["on_the_engine"] and row["in_the_replay"], row


def test_the_sound_system_shows_none_of_it(subject: Subject) -> None:
    evidence = exact_replay()
    assert evidence["failed"] == 0 and evidence["repairs"] > 100
