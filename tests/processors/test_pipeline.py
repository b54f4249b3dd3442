"""The whole pipeline: order, batch against row by row, greedy limit, dead rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from constrained_spec.config import Sampling
from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.processors.base import Position, Processor
from constrained_spec.processors.pipeline import Pipeline, Processed, validate_sampling
from constrained_spec.types import History, Vocabulary

V = 37  # not a multiple of 32
EOS = (0, 5)
INF = float("inf")


def vocabulary(size: int = V) -> Vocabulary:
    return Vocabulary((None, *(b"%d" % i for i in range(1, size))), EOS, {}, encode=lambda text: [])


PIPELINE = Pipeline(vocabulary())


def history(prompt: Sequence[int] = (1, 2), output: Sequence[int] = ()) -> History:
    h = History(prompt)
    for token in output:
        h.append(token)
    return h


def mask(ids: Sequence[int], size: int = V) -> NDArray[np.int32]:
    bits = np.zeros((size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def at(
    sampling: Sampling, h: History | None = None, index: int | None = None, ids: Sequence[int] | None = None
) -> Position:
    h = h or history()
    return Position(h, len(h) if index is None else index, sampling, None if ids is None else mask(ids))


def noise(n: int, seed: int = 0, size: int = V) -> Tensor:
    return torch.randn(n, size, generator=torch.Generator().manual_seed(seed)) * 3


def run(logits: Tensor, *positions: Position, custom: Sequence[Sequence[Processor]] = ()) -> Processed:
    return PIPELINE.process(logits.clone(), positions, custom)


def law(logits: Sequence[float], sampling: Sampling, ids: Sequence[int] | None = None) -> list[float]:
    """Probabilities of the first ids; all others start at -inf."""
    row = torch.full((1, V), -INF)
    row[0, : len(logits)] = torch.tensor(logits)
    return cast("list[float]", run(row, at(sampling, ids=ids)).probabilities()[0, : len(logits)].tolist())


# ---- reference: one row, plain Python, straight from the declaration ------------------------------------------------


def reference(logits: Tensor, p: Position) -> list[float]:
    s, x = p.sampling, [float(v) for v in logits]
    output = p.prefix[p.history.prompt_length :]
    for i in set(p.prefix):
        x[i] = x[i] / s.repetition_penalty if x[i] > 0 else x[i] * s.repetition_penalty
    for i in set(output):
        x[i] -= s.presence_penalty + s.frequency_penalty * output.count(i)
    for i, bias in s.logit_bias.items():
        x[i] += bias
    for i in s.suppress_tokens:
        x[i] = -INF
    legal = set(range(V)) if p.mask is None else {i for i in range(V) if (int(p.mask[i >> 5]) >> (i & 31)) & 1}
    if len(output) < s.min_tokens and not s.ignore_eos and legal - set(EOS):
        for i in EOS:
            x[i] = -INF
    x = [v if i in legal else -INF for i, v in enumerate(x)]
    if max(x) == -INF:
        return [0.0] * V
    if s.greedy:
        return [float(i == x.index(max(x))) for i in range(V)]
    x = [v / s.temperature for v in x]
    if s.top_k:
        least = sorted(x, reverse=True)[min(s.top_k, V) - 1]
        x = [v if v >= least else -INF for v in x]
    order = sorted(range(V), key=lambda i: (-x[i], i))
    q, total = softmax(x), 0.0
    kept: set[int] = set()
    for i in order:
        if s.top_p < 1 and kept and total >= s.top_p:
            break
        kept.add(i)
        total += q[i]
    x = [v if i in kept else -INF for i, v in enumerate(x)]
    q = softmax(x)
    return softmax([v if s.min_p == 0 or q[i] >= s.min_p * max(q) else -INF for i, v in enumerate(x)])


def softmax(x: Sequence[float]) -> list[float]:
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


tokens = st.integers(0, V - 1)
samplings = st.builds(
    Sampling,
    min_tokens=st.sampled_from([0, 0, 4]),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 5, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.31, 0.87]),
    min_p=st.sampled_from([0.0, 0.0, 0.053, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 2.0, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.6, -0.4]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, 3.0]), max_size=3),
    suppress_tokens=st.lists(tokens, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)


@st.composite
def batches(draw: st.DrawFn) -> list[Position]:
    """Several sequences, several places of each, some with drafts behind the place."""
    positions = []
    for _ in range(draw(st.integers(1, 3))):
        h = history(draw(st.lists(tokens, min_size=1, max_size=4)), draw(st.lists(tokens, max_size=6)))
        s = draw(samplings)
        for index in range(draw(st.integers(h.prompt_length, len(h))), len(h) + 1):
            ids = draw(st.none() | st.sets(tokens, max_size=8) | st.just(set(EOS)))
            positions.append(at(s, h, index, None if ids is None else sorted(ids)))
    return draw(st.permutations(positions))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(batches(), st.integers(0, 2**16))
def test_batch_equals_reference_and_row_by_row(positions: list[Position], seed: int) -> None:
    logits = noise(len(positions), seed)
    together = run(logits, *positions)
    for i, p in enumerate(positions):
        alone = run(logits[i : i + 1], p)
        torch.testing.assert_close(together.logits[i], alone.logits[0], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(together.choices()[i], alone.choices()[0])
        torch.testing.assert_close(together.probabilities()[i], alone.probabilities()[0], rtol=1e-6, atol=0)
        expected = torch.tensor(reference(logits[i], p))
        torch.testing.assert_close(together.probabilities()[i], expected, rtol=1e-4, atol=1e-6)
        assert bool(together.dead[i]) == (float(expected.sum()) == 0)


# ---- order ----------------------------------------------------------------------------------------------------------


def test_t3_grammar_comes_before_top_k() -> None:
    """CASES T3: x illegal at .6, a .3, b .1, top_k 2."""
    got = law([math.log(0.6), math.log(0.3), math.log(0.1)], Sampling(temperature=1, top_k=2), ids=[1, 2])
    assert got == pytest.approx([0, 0.75, 0.25])


def test_t4_min_p_and_top_p_are_relative_to_legal_tokens() -> None:
    """CASES T4: against the masked maximum (.3) b is at a third of it; against the unmasked one (.6) at a sixth."""
    logits = [math.log(0.6), math.log(0.3), math.log(0.1)]
    assert law(logits, Sampling(temperature=1, min_p=0.3), ids=[1, 2]) == pytest.approx([0, 0.75, 0.25])
    assert law(logits, Sampling(temperature=1, min_p=0.34), ids=[1, 2]) == pytest.approx([0, 1, 0])
    # Legal masses are .75 and .25: .7 is reached by a alone, .8 needs both.
    assert law(logits, Sampling(temperature=1, top_p=0.7), ids=[1, 2]) == pytest.approx([0, 1, 0])
    assert law(logits, Sampling(temperature=1, top_p=0.8), ids=[1, 2]) == pytest.approx([0, 0.75, 0.25])


def test_truncation_never_leaves_an_empty_set() -> None:
    logits = torch.zeros(1, V)
    logits[0, 7] = -80.0  # the only legal id is among the least probable
    got = run(logits, at(Sampling(temperature=0.3, top_k=1, top_p=0.01, min_p=1.0), ids=[7]))
    assert got.probabilities()[0, 7] == 1
    assert not got.dead


def test_custom_runs_after_bias_and_before_the_mask() -> None:
    seen: list[Tensor] = []

    def spy(logits: Tensor, positions: Sequence[Position]) -> Tensor:
        seen.append(logits.clone())
        logits[:, 9] = INF  # a forbidden id
        return logits

    got = run(torch.zeros(1, V), at(Sampling(logit_bias={3: 2.5}, suppress_tokens=(4,)), ids=[3, 4]), custom=[[spy]])
    assert seen[0][0, 3] == 2.5
    assert seen[0][0, 4] == -INF
    assert seen[0][0, 9] == 0
    assert got.choices().tolist() == [3]
    assert not got.dead


# ---- temperature ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-2, 1e-8, 1e-44, 1e-300])
def test_sampled_law_tends_to_the_greedy_one(temperature: float) -> None:
    logits = noise(4)
    greedy = run(logits, *[at(Sampling(temperature=0))] * 4)
    sampled = run(logits, *[at(Sampling(temperature=temperature))] * 4)
    torch.testing.assert_close(sampled.probabilities(), greedy.probabilities(), rtol=0, atol=1e-3)
    assert not sampled.dead.any()


def test_greedy_rows_are_neither_scaled_nor_truncated() -> None:
    logits = noise(2)
    got = run(logits, at(Sampling(temperature=0, top_k=1, top_p=0.1, min_p=0.9)), at(Sampling(temperature=1)))
    assert torch.equal(got.logits, logits)
    assert got.greedy == (True, False)
    assert torch.equal(got.logprobs_base, logits.log_softmax(-1))
    assert got.probabilities()[0].count_nonzero() == 1
    assert got.probabilities()[0, got.choices()[0]] == 1


# ---- dead rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_dead_rows_are_found_and_do_not_touch_their_neighbours(temperature: float) -> None:
    logits = noise(5)
    logits[1, 3] = math.nan
    logits[2, 3] = INF
    s = Sampling(temperature=temperature, top_k=3, top_p=0.9, min_p=0.1)
    positions = [at(s), at(s), at(s), at(s, ids=[]), at(s)]
    got = run(logits, *positions)
    assert got.dead.tolist() == [False, True, True, True, False]
    p = got.probabilities()
    assert p.isfinite().all()
    assert p.sum(-1)[[0, 4]].tolist() == pytest.approx([1, 1])
    if temperature:
        assert p[1:4].count_nonzero() == 0
    assert torch.equal(p[4], run(logits[4:], positions[4]).probabilities()[0])


def test_a_mask_does_not_hide_a_nan() -> None:
    logits = noise(1)
    logits[0, 3] = math.nan
    assert run(logits, at(Sampling(), ids=[1, 2])).dead.tolist() == [True]


def test_impossible_is_minus_infinity_not_a_large_number() -> None:
    """CASES B23: a clamped -inf lets a forbidden id back in where every legal id is improbable."""
    logits = torch.full((1, V), 3e38)
    logits[0, 2] = -3e38
    got = run(logits, at(Sampling(temperature=1), ids=[2]))
    assert got.choices().tolist() == [2]
    assert (got.logits[0] == -INF).sum() == V - 1
    assert got.probabilities()[0, 2] == 1


# ---- custom processors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add:
    amount: float

    def __call__(self, logits: Tensor, positions: Sequence[Position]) -> Tensor:
        return logits + self.amount * torch.arange(V)


def in_place(logits: Tensor, positions: Sequence[Position]) -> Tensor:
    for row, p in zip(logits, positions, strict=True):
        row[p.index % V] += 1000.0
    return logits


def test_custom_processors_reach_only_the_rows_that_asked() -> None:
    logits = noise(6)
    h = history([1], [2, 3, 4, 6, 7])
    positions = [at(Sampling(), h, i) for i in range(1, 7)]
    a, b = Add(0.5), Add(-0.25)
    custom: list[list[Processor]] = [[a], [], [in_place], [a], [a, b], [in_place]]
    got = run(logits, *positions, custom=custom).logits
    ramp = torch.arange(V)
    assert torch.equal(got[0], logits[0] + 0.5 * ramp)
    assert torch.equal(got[1], logits[1])
    assert got[2].sub(logits[2]).nonzero().tolist() == [[3]]
    assert torch.equal(got[3], logits[3] + 0.5 * ramp)
    assert torch.equal(got[4], (logits[4] + 0.5 * ramp) + -0.25 * ramp)
    assert got[5].sub(logits[5]).nonzero().tolist() == [[6]]


def test_in_place_edits_under_another_result_do_not_leak() -> None:
    def scribble(logits: Tensor, positions: Sequence[Position]) -> Tensor:
        result = logits.clone()
        logits.fill_(7.0)
        return result

    logits = noise(3)
    got = run(logits, *[at(Sampling())] * 3, custom=[[scribble], [], [scribble]])
    assert torch.equal(got.logits, logits)


def test_a_tensor_of_the_processors_own_is_never_edited() -> None:
    own = noise(2, 9)
    kept = own.clone()
    got = run(noise(2), *[at(Sampling(temperature=0.5), ids=[1])] * 2, custom=[[lambda logits, positions: own]] * 2)
    assert torch.equal(own, kept)
    assert got.choices().tolist() == [1, 1]


def test_a_custom_processor_cannot_bring_a_suppressed_id_back() -> None:
    def clamp(logits: Tensor, positions: Sequence[Position]) -> Tensor:
        return logits.clamp(min=-1e4) + 1e9 * (torch.arange(V) == 4)

    assert run(noise(1), at(Sampling(suppress_tokens=(4,))), custom=[[clamp]]).logits[0, 4] == -INF


def failing(logits: Tensor, positions: Sequence[Position]) -> Tensor:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (failing, ["failing", "ValueError", "no luck"]),
        (lambda logits, positions: logits[:, :-1], ["<lambda>", f"[1, {V - 1}]", f"[1, {V}]"]),
        (lambda logits, positions: None, ["NoneType"]),
        (lambda logits, positions: logits > 0, ["bool"]),
    ],
)
def test_a_failing_custom_processor_is_named(processor: Processor, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        run(noise(1), at(Sampling()), custom=[[processor]])
    assert caught.value.param == "processors"
    assert all(word in str(caught.value) for word in words)


# ---- other inputs ---------------------------------------------------------------------------------------------------


def test_buffers_of_any_kind() -> None:
    """Views, half precision and inference tensors, as backends hand them over."""
    wide = noise(2, size=V + 3)
    positions = [at(Sampling(temperature=0.7, top_p=0.9), ids=range(1, V))] * 2
    expected = run(wide[:, :V].contiguous(), *positions).probabilities()
    assert torch.equal(PIPELINE.process(wide.clone()[:, :V], positions).probabilities(), expected)
    with torch.inference_mode():
        made_inside = wide[:, :V].clone()
    assert torch.equal(PIPELINE.process(made_inside, positions).probabilities(), expected)
    half = PIPELINE.process(wide[:, :V].bfloat16(), positions)
    assert half.logits.dtype == half.probabilities().dtype == torch.float32
    assert PIPELINE.process(torch.empty(0, V), []).probabilities().shape == (0, V)


@pytest.mark.parametrize(
    ("sampling", "param", "word"),
    [
        (Sampling(logit_bias={V: 1.0}), "logit_bias", str(V)),
        (Sampling(logit_bias={-1: 1.0}), "logit_bias", "-1"),
        (Sampling(logit_bias=cast("dict[int, float]", {"7": 1.0})), "logit_bias", "'7'"),
        (Sampling(suppress_tokens=(3, 99)), "suppress_tokens", "99"),
        (Sampling(logit_bias={7: 1e39}), "logit_bias", "[7]"),
        (Sampling(repetition_penalty=1e-40), "repetition_penalty", "range"),
        (Sampling(presence_penalty=-1e38), "presence_penalty", "range"),
    ],
)
def test_validation_names_option_and_id(sampling: Sampling, param: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_sampling(sampling, vocabulary())
    assert caught.value.param == param
    assert word in str(caught.value)


def test_validation_accepts_every_id() -> None:
    validate_sampling(Sampling(logit_bias={0: -100.0, V - 1: 100.0}, suppress_tokens=(0, V - 1)), vocabulary())
