"""Grammar masks of any width, and min_tokens where the grammar disagrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from constrained_spec.config import Sampling
from constrained_spec.processors.base import Position
from constrained_spec.processors.grammar_mask import _ceilings, _ceilings_of
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.types import History, Vocabulary

EOS = (2, 35)


def vocabulary(size: int) -> Vocabulary:
    return Vocabulary((b"t",) * size, tuple(e for e in EOS if e < size), {}, encode=lambda text: [])


def pack(ids: set[int], size: int) -> NDArray[np.int32]:
    row = np.zeros((size + 31) // 32, dtype=np.uint32)
    for i in ids:
        row[i >> 5] |= np.uint32(1 << (i & 31))
    return row.view(np.int32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 100), st.data())
def test_exactly_the_masked_ids_remain(size: int, data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.none() | st.sets(st.integers(0, size - 1)), min_size=1, max_size=4))
    logits = torch.arange(size * len(allowed), dtype=torch.float32).view(-1, size) - 50
    h, s = History([0]), Sampling()
    places = [Position(h, 1, s, None if ids is None else pack(ids, size)) for ids in allowed]
    got = Pipeline(vocabulary(size)).process(logits.clone(), places)
    for i, ids in enumerate(allowed):
        for token in range(size):
            legal = ids is None or token in ids
            assert got.logits[i, token] == (logits[i, token] if legal else float("-inf"))
        assert bool(got.dead[i]) == (ids == set())


@pytest.mark.parametrize("width", [1, 32, 37, 96])
def test_the_device_unpacks_as_the_table_does(width: int) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (5, (width + 31) // 32)).astype(np.int32)
    table = _ceilings(words, width, torch.device("cpu"))
    assert torch.equal(_ceilings_of(torch.from_numpy(words), width), table)


@pytest.mark.parametrize(
    ("min_tokens", "ids", "ignore_eos", "choice"),
    [
        (0, None, False, 2),
        (3, None, False, 2),  # the third output token exists: EOS may follow
        (4, None, False, 5),
        (4, None, True, 2),  # with ignore_eos, EOS is an ordinary id
        (4, {2, 5}, False, 5),
        (4, {2}, False, 2),  # CASES B33: the grammar leaves only EOS, and wins
        (4, {2, 35}, False, 2),  # every EOS id counts as EOS
        (4, {2, 35, 7}, False, 7),
        (4, {5, 7}, False, 5),
    ],
)
def test_min_tokens(min_tokens: int, ids: set[int] | None, ignore_eos: bool, choice: int) -> None:
    h = History([1])
    for token in (3, 3, 3):
        h.append(token)
    logits = torch.zeros(1, 40)
    logits[0, [2, 35, 5, 7]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    s = Sampling(min_tokens=min_tokens, ignore_eos=ignore_eos)
    place = Position(h, 4, s, None if ids is None else pack(ids, 40))
    got = Pipeline(vocabulary(40)).process(logits, [place])
    assert got.choices().tolist() == [choice]
    assert not got.dead


def test_min_tokens_along_a_drafted_run() -> None:
    """Every place of a block has its own index: EOS becomes possible in the middle of it."""
    h = History([1])
    for token in (3, 3, 3, 3):
        h.append(token)
    logits = torch.zeros(5, 40)
    logits[:, 2], logits[:, 5] = 2.0, 1.0
    places = [Position(h, 1 + j, Sampling(min_tokens=2)) for j in range(5)]
    assert Pipeline(vocabulary(40)).process(logits, places).choices().tolist() == [5, 5, 2, 2, 2]
