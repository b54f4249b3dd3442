"""The model of exact tables: chains, trees, slots, text."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.backends.toy import ToyModel, table
from constrained_spec.errors import ConfigError, RequestError

TOKENS = (b"a", b"b", b"ab", b"\xc3", b"\xa9", None)


def spell(prefix: tuple[int, ...]) -> Tensor:
    """Logits that tell the whole prefix."""
    return torch.tensor([float(sum((t + 1) * 7**k for k, t in enumerate(prefix))), 0, 0, 0, 0, 0], dtype=torch.float64)


def toy(slots: int = 2, capacity: int = 8) -> ToyModel:
    return ToyModel(TOKENS, spell, eos_ids=(5,), slots=slots, capacity=capacity)


def test_it_is_a_language_model() -> None:
    model: LanguageModel = toy()
    assert (model.slots, model.capacity, model.device.type, model.vocabulary.eos_ids) == (2, 8, "cpu", (5,))
    assert model.vocabulary.special == {"<5>": 5}


def test_chains_in_slots() -> None:
    model = toy()
    got = model.score([Block(1, [0, 1, 2], want=2), Block(0, [3], want=1)])
    assert got.dtype == torch.float32
    assert got[:, 0].tolist() == [float(spell(p)[0]) for p in ((0, 1), (0, 1, 2), (3,))]
    model.set_length(1, 1)
    assert model.score([Block(1, [4], want=1)])[0, 0] == spell((0, 4))[0]
    assert (model.length(0), model.length(1)) == (1, 2)


def test_a_tree_and_one_path_of_it() -> None:
    model = toy()
    model.score([Block(0, [1], want=0)])
    got = model.score([Block(0, [0, 1, 2, 3], want=4, parents=(-1, -1, 0, 1))])
    assert got[:, 0].tolist() == [float(spell(p)[0]) for p in ((1, 0), (1, 1), (1, 0, 2), (1, 1, 3))]
    model.compact(0, 1, [1, 3])
    assert model.length(0) == 3
    assert model.score([Block(0, [4], want=1)])[0, 0] == spell((1, 1, 3, 4))[0]


def test_fingerprint_is_the_content() -> None:
    model = toy()
    model.score([Block(0, [0, 1], want=0)])
    before = model.fingerprint(0)
    model.score([Block(0, [2], want=0)])
    assert model.fingerprint(0) != before
    model.set_length(0, 2)
    assert model.fingerprint(0) == before


def test_a_block_that_does_not_fit_changes_nothing() -> None:
    model = toy(capacity=3)
    model.score([Block(0, [0, 1], want=0)])
    with pytest.raises(RequestError):
        model.score([Block(1, [0], want=1), Block(0, [0, 1], want=1)])
    assert (model.length(0), model.length(1)) == (2, 0)


def test_encode_takes_the_longest() -> None:
    model = toy()
    assert model.encode("abba\u00e9") == [2, 1, 0, 3, 4] == model.vocabulary.encode("abba\u00e9")
    assert model.vocabulary.bytes_of(model.encode("ab\u00e9")).decode() == "ab\u00e9"
    with pytest.raises(RequestError):
        model.encode("abc")


def test_table_looks_up_the_longest_suffix() -> None:
    a, b, c = (torch.full((6,), float(i)) for i in range(3))
    look = table({(1,): a, (0, 1): b}, default=c)
    assert [look(p) for p in ((1,), (2, 1), (2, 0, 1), (0,), ())] == [a, a, b, c, c]
    assert look(()) is c and table({(): a}, default=c)((3, 3)) is a


def test_options() -> None:
    for options in ({"slots": 0}, {"capacity": 0}, {"eos_ids": (0,)}, {"eos_ids": (9,)}):
        with pytest.raises(ConfigError):
            ToyModel(TOKENS, spell, **options)
