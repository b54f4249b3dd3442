"""docs/argument.md: its statements point at tests that exist, and those shown nowhere else are shown here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from constrained_spec.lab.world import GAMMA, LENGTH, WORLD
from constrained_spec.verify import (
    World,
    coupling,
    distance,
    expected_committed,
    inverse_cdf,
    law,
    round_of,
    target_law,
)
from constrained_spec.verify.law import coupling_rule, typical_rule

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/argument.md").read_text("utf-8")
POINTER = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def statements() -> list[str]:
    return re.findall(r"(?ms)^- .*?(?=^- |^$|\Z)", DOCUMENT)


def test_every_statement_names_a_test() -> None:
    assert len(statements()) > 30
    assert [s for s in statements() if len(POINTER.findall(s)) != 1] == []
    assert len(POINTER.findall(DOCUMENT)) == len(statements())


@pytest.mark.parametrize(("path", "name"), sorted(set(POINTER.findall(DOCUMENT))))
def test_the_named_test_exists(path: str, name: str) -> None:
    defined = set[str]()
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):  # a state machine's test case
            defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
    assert name in defined
    assert name.lower().startswith("test")


WORKED = World(3, lambda _: (0.5, 0.3, 0.2), lambda _: (0.6, 0.1, 0.3))


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
def test_tokens_a_round_are_the_geometric_sum(gamma: int) -> None:
    mean = sum(len(tokens) * chance for tokens, chance in round_of(coupling_rule)(WORKED, (), gamma, gamma + 1))
    assert mean == pytest.approx(expected_committed(0.8, gamma), abs=1e-12)


def test_a_biased_rule_may_commit_more() -> None:
    exact, typical = (
        sum(len(tokens) * chance for tokens, chance in round_of(rule)(WORLD, (), GAMMA, GAMMA + 1))
        for rule in (coupling_rule, typical_rule)
    )
    assert typical > exact
    assert distance(law(WORLD, "typical", GAMMA, LENGTH), target_law(WORLD, LENGTH)) > 0.01
    assert distance(law(WORLD, "coupling", GAMMA, LENGTH), target_law(WORLD, LENGTH)) < 1e-12


def test_the_locally_masked_law_is_not_the_conditional_one() -> None:
    """Two tokens, and "ab" is not valid: after a only a is left, though the model seldom goes on so."""
    first, after = (0.5, 0.5), {0: (0.1, 0.9), 1: (0.5, 0.5)}
    valid = {(0, 0), (1, 0), (1, 1)}
    masked = World(2, lambda s: first if not s else (1.0, 0.0) if s == (0,) else after[s[0]], lambda _: (0.5, 0.5))
    joint = {(x, y): first[x] * after[x][y] for x in (0, 1) for y in (0, 1)}
    conditional = {s: joint[s] / sum(joint[v] for v in valid) for s in valid}
    committed = law(masked, "coupling", 2, 2)
    assert distance(committed, target_law(masked, 2)) < 1e-12
    assert committed[0, 0] == pytest.approx(0.5)
    assert conditional[0, 0] == pytest.approx(1 / 11)


def first_token(draft_u: float, accept_u: float, draw_u: float, gamma: int) -> int:
    """Of one round in the worked world; every place spends the same coins."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(gamma + 1, 3)
    q = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64).expand(gamma, 3)
    draft, accept = (torch.full((gamma,), u, dtype=torch.float64) for u in (draft_u, accept_u))
    drafted = inverse_cdf(q, draft).unsqueeze(0)
    verdict = coupling(
        p, torch.tensor([0]), drafted, torch.tensor([gamma]), q, torch.arange(gamma).unsqueeze(0),
        accept.unsqueeze(0), torch.tensor([draw_u], dtype=torch.float64),
    )  # fmt: skip
    return int(drafted[0, 0] if verdict.accepted[0] else verdict.token[0])


def test_the_same_coins_with_other_drafts_make_other_texts() -> None:
    """The first token with and without a draft in front of it: another one, though its law is p both times."""
    assert first_token(0.7, 0.2, 0.1, gamma=0) == 0
    assert first_token(0.7, 0.2, 0.1, gamma=1) == 2
    for gamma in (0, 1, 3):
        assert distance(law(WORKED, "coupling", gamma, 2), target_law(WORKED, 2)) < 1e-12
