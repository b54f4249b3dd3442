"""Exact evidence: the running code on small worlds, and the enumeration of a grammar's outputs on a model."""

from __future__ import annotations

import math

import pytest
import torch

from constrained_spec.audit.exact_law import enumerate_law
from constrained_spec.audit.plants import PLANTS
from constrained_spec.audit.worlds import small_worlds
from constrained_spec.backends.toy import ToyModel
from constrained_spec.config import Sampling
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.compile import Choice, Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline

TOKENS = (None, b"a", b"b", b"ab")


@pytest.mark.parametrize("verifier", ["coupling", "block", "tree", "invariant"])
def test_exact_verifiers_have_the_targets_law(verifier: str) -> None:
    evidence = small_worlds(verifier)
    assert evidence["max_rule_error"] < 1e-9
    assert evidence["wrong_rule_error"] > 0.1
    if verifier != "invariant":
        assert evidence["max_code_error"] < 1e-9
        assert evidence["extremes"] == {"runs": 1600, "kept_impossible": 0, "drew_impossible": 0}


def test_an_approximate_verifier_shows() -> None:
    assert small_worlds("typical")["max_rule_error"] > 0.1


@pytest.mark.parametrize("verifier", ["coupling", "block", "tree"])
def test_a_wrong_repair_in_the_running_code_shows(verifier: str) -> None:
    with PLANTS["full-p-repair"].active():
        evidence = small_worlds(verifier)
    assert evidence["max_code_error"] > 0.05
    assert evidence["max_rule_error"] < 1e-9  # the definition is not what was broken
    assert small_worlds(verifier)["max_code_error"] < 1e-9  # and it is whole again


def _model() -> ToyModel:
    return ToyModel(TOKENS, lambda prefix: torch.tensor([0.0, 1.0, 0.0, 2.0]), eos_ids=(0,), capacity=16)


def test_every_tokenisation_is_an_output_of_its_own() -> None:
    model = _model()
    grammar = compile_constraint(Choice(("ab", "b")), model.vocabulary)
    law = enumerate_law(model, Pipeline(model.vocabulary), [1, 2], grammar, Sampling(temperature=1.0, max_tokens=4))
    total = math.e + 1 + math.e**2  # a, b, ab at the first place; after "a" only b is left
    wanted = {(1, 2): math.e / total, (2,): 1 / total, (3,): math.e**2 / total}
    assert law == pytest.approx(wanted, rel=1e-6)


def test_penalties_and_stops_are_in_the_law() -> None:
    model = _model()
    grammar = compile_constraint(Regex("[ab]{2}"), model.vocabulary)
    sampling = Sampling(temperature=1.0, max_tokens=4, presence_penalty=1.0, stop=("a",))
    law = enumerate_law(model, Pipeline(model.vocabulary), [1], grammar, sampling)
    assert set(law) == {(1,), (2, 1), (2, 2), (3,)}  # "a" stops at once, "ab" is one token
    first = math.e + 1 + math.e**2
    assert law[2, 2] == pytest.approx(1 / first * math.exp(-1) / (math.e + math.exp(-1)), rel=1e-6)
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)


def test_too_many_outputs_are_refused() -> None:
    model = _model()
    grammar = compile_constraint(Regex("[ab]{7}"), model.vocabulary)
    with pytest.raises(ConfigError, match="more than 64 outputs"):
        enumerate_law(model, Pipeline(model.vocabulary), [1], grammar, Sampling(temperature=1.0, max_tokens=9))
