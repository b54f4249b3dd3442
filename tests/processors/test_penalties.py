"""Penalties and biases at every drafted position."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from constrained_spec.config import Sampling
from constrained_spec.processors.base import Position
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.types import History, Vocabulary

V = 40
X, Y, EOS = 7, 9, 0
PIPELINE = Pipeline(Vocabulary((None, *(b"t",) * (V - 1)), (EOS,), {}, encode=lambda text: []))


def positions(
    sampling: Sampling, prompt: Sequence[int], output: Sequence[int], drafts: Sequence[int]
) -> list[Position]:
    """Every place of a round: before each draft and after the last. The history already holds all drafts."""
    h = History(prompt)
    for token in (*output, *drafts):
        h.append(token)
    start = len(prompt) + len(output)
    return [Position(h, start + j, sampling) for j in range(len(drafts) + 1)]


def changes(sampling: Sampling, places: Sequence[Position], base: float = 1.0) -> list[dict[int, float]]:
    """Which logits of a constant row differ after the pipeline, per place."""
    logits = torch.full((len(places), V), base)
    got = PIPELINE.process(logits, places).logits
    return [{i: round(float(v), 4) for i, v in enumerate(row) if v != base} for row in got]


def test_presence_sees_the_drafts_before_each_place() -> None:
    """CASES B21: drafts x x x with presence_penalty 2."""
    s = Sampling(presence_penalty=2.0)
    assert changes(s, positions(s, [1, X], [], [X, X, X])) == [{}, {X: -1.0}, {X: -1.0}, {X: -1.0}]


def test_frequency_counts_the_drafts_before_each_place() -> None:
    """CASES B21: position 2 sees both."""
    s = Sampling(frequency_penalty=0.5, presence_penalty=0.25)
    got = changes(s, positions(s, [1], [Y], [X, X, Y]))
    assert got == [{Y: 0.25}, {X: 0.25, Y: 0.25}, {X: -0.25, Y: 0.25}, {X: -0.25, Y: -0.25}]


def test_presence_and_frequency_ignore_the_prompt() -> None:
    s = Sampling(frequency_penalty=1.0, presence_penalty=1.0)
    assert changes(s, positions(s, [X] * 5, [], [])) == [{}]


@pytest.mark.parametrize(("base", "x"), [(3.0, 1.5), (-3.0, -6.0), (0.0, 0.0)])
def test_repetition_divides_positive_and_multiplies_negative(base: float, x: float) -> None:
    s = Sampling(repetition_penalty=2.0)
    logits = torch.full((2, V), base)
    got = PIPELINE.process(logits, positions(s, [X, X], [], [Y])).logits
    assert got[:, X].tolist() == [x, x]  # the prompt counts, once
    assert got[:, Y].tolist() == [base, x]  # a draft from the next place on
    assert got[:, EOS].tolist() == [base, base]


def test_repetition_keeps_impossible_ids_impossible() -> None:
    s = Sampling(repetition_penalty=0.5)
    logits = torch.full((1, V), float("-inf"))
    assert PIPELINE.process(logits, positions(s, [X], [], [])).logits[0, X] == float("-inf")


def test_repetition_comes_before_presence() -> None:
    s = Sampling(repetition_penalty=2.0, presence_penalty=1.0)
    assert changes(s, positions(s, [1], [X], []), base=4.0) == [{1: 2.0, X: 1.0}]


@pytest.mark.parametrize("sign", [1, -1])
def test_frequency_penalty_changes_greedy_text(sign: int) -> None:
    """CASES B19: opposite penalties must give different texts, also where the repeated id was drafted."""
    s = Sampling(frequency_penalty=2.0 * sign)
    logits = torch.zeros(4, V)
    logits[:, X], logits[:, Y] = 1.0, 0.5
    got = PIPELINE.process(logits, positions(s, [1], [], [X, X, X])).choices().tolist()
    assert got == ([X, Y, Y, Y] if sign > 0 else [X] * 4)


def test_logit_bias_holds_at_every_place() -> None:
    """CASES B20: a bias of -100 on an id that the draft always proposes."""
    s = Sampling(logit_bias={X: -100.0, Y: 2.0})
    assert changes(s, positions(s, [1], [], [X] * 4)) == [{X: -99.0, Y: 3.0}] * 5


def test_suppressed_ids_are_impossible_at_every_place() -> None:
    s = Sampling(suppress_tokens=(X, Y), temperature=1.0)
    p = PIPELINE.process(torch.zeros(3, V), positions(s, [1], [], [X, X])).probabilities()
    assert p[:, [X, Y]].count_nonzero() == 0
    assert p.sum(-1).tolist() == pytest.approx([1, 1, 1])


def test_a_place_before_the_end_of_the_history_is_that_prefix() -> None:
    """CASES B24: the same place gives the same row whether or not drafts stand behind it."""
    s = Sampling(repetition_penalty=1.05, frequency_penalty=0.3, presence_penalty=-0.2)
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(1))
    output, drafts = [3, X, 3], [X, 4, X, 5]
    together = PIPELINE.process(logits.clone(), positions(s, [1, 2], output, drafts)).logits
    for j in range(5):
        [alone] = positions(s, [1, 2], [*output, *drafts[:j]], [])
        assert torch.equal(together[j], PIPELINE.process(logits[j : j + 1].clone(), [alone]).logits[0])


def test_prompt_ids_beyond_the_vocabulary_have_no_logit() -> None:
    """CASES B43: placeholder ids in a prompt."""
    s = Sampling(repetition_penalty=2.0)
    assert changes(s, positions(s, [-1, V, 10**6, X], [], [])) == [{X: 0.5}]


def test_steps_that_no_row_uses_touch_nothing() -> None:
    s = Sampling()
    logits = torch.full((2, V), float("nan"))
    before: Tensor = logits.clone()
    got = PIPELINE.process(logits, positions(s, [1], [X], [Y]))
    assert torch.equal(got.logits.isnan(), before.isnan())
    assert got.logits.data_ptr() == logits.data_ptr()
