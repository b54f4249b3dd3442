"""The bench compares like with like."""

from __future__ import annotations

import pytest
import torch

from constrained_spec.api import Engine
from constrained_spec.backends import attention
from constrained_spec.backends.load import load_model
from constrained_spec.cli.baseline import PrefixMask, stock_attention
from constrained_spec.cli.suite import extraction_suite
from constrained_spec.grammars.compile import Choice, compile_constraint

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("smollm2-135m", capacity=1024)


def test_the_mask_is_a_function_of_the_prefix(engine: Engine) -> None:
    vocabulary = engine.model.vocabulary
    grammar = compile_constraint(Choice(("red", "green", "grey")), vocabulary)
    mask = PrefixMask(grammar, 1, vocabulary.mask_words)
    scores = torch.zeros(1, vocabulary.size)

    def legal(text: str) -> set[str]:
        out = mask(torch.tensor([[0, *vocabulary.encode(text)]]), scores)[0]
        ids = torch.isfinite(out).nonzero().flatten().tolist()
        return {vocabulary.bytes_of([i]).decode() for i in ids}

    first = legal("")
    assert {"r", "g"} <= first
    after = legal("gre")
    assert {"en", "y"} <= after
    # Back, again, and elsewhere: the order of the calls does not matter, and the scores are left as they were.
    assert legal("") == first
    assert legal("gre") == after
    assert "ed" in legal("r")
    assert not scores.any()


def test_transformers_runs_with_its_own_attention() -> None:
    model = load_model("smollm2-135m", capacity=1, specialise=False).model
    assert model is not None
    config = model.config
    assert config._attn_implementation == attention.NAME
    with stock_attention(model):
        assert config._attn_implementation == "sdpa"
    assert config._attn_implementation == attention.NAME


def test_the_suite_is_whole() -> None:
    jobs = extraction_suite()
    assert len({job.id for job in jobs}) == 12
    assert all(job.instruction and job.text and job.schema["type"] == "object" for job in jobs)
