"""Wrapped transformers processors see each position's own prefix; those that keep state are refused by name."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process

from constrained_spec.config import Sampling
from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.processors import wrap
from constrained_spec.processors.base import Position
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.processors.wrap import TransformersProcessor, wrap_transformers
from constrained_spec.types import History, Vocabulary

V = 20
PIPELINE = Pipeline(Vocabulary((b"t",) * V, (0,), {}, encode=lambda text: []))


def run(processor: TransformersProcessor, tokens: list[int], prompt: int) -> tuple[Tensor, Tensor]:
    """Logits before and after, at every place from the end of the prompt on, from one call."""
    h = History(tokens[:prompt])
    for token in tokens[prompt:]:
        h.append(token)
    places = [Position(h, i, Sampling()) for i in range(prompt, len(tokens) + 1)]
    logits = torch.randn(len(places), V, generator=torch.Generator().manual_seed(2))
    return logits, PIPELINE.process(logits.clone(), places, [[wrap_transformers(processor)]] * len(places)).logits


@pytest.mark.parametrize(
    "processor",
    [
        logits_process.NoRepeatNGramLogitsProcessor(2),
        logits_process.RepetitionPenaltyLogitsProcessor(1.5),
        logits_process.SequenceBiasLogitsProcessor([[[3], -5.0], [[4, 5], 3.0]]),
        logits_process.NoBadWordsLogitsProcessor([[6], [4, 7]], eos_token_id=0),
        logits_process.PrefixConstrainedLogitsProcessor(lambda row, ids: [len(ids), int(ids[-1])], num_beams=1),
        logits_process.MinNewTokensLengthLogitsProcessor(3, 2, 0, device="cpu"),
        logits_process.LogitsProcessorList(
            [logits_process.NoRepeatNGramLogitsProcessor(2), logits_process.TemperatureLogitsWarper(0.5)]
        ),
    ],
    ids=lambda p: type(p).__name__,
)
def test_one_call_equals_transformers_step_by_step(processor: TransformersProcessor) -> None:
    tokens = [4, 5, 4, 5, 4, 7]
    before, after = run(processor, tokens, 3)
    for j in range(len(after)):
        ids = cast(torch.LongTensor, torch.tensor([tokens[: 3 + j]]))
        expected = processor(ids, cast(torch.FloatTensor, before[j : j + 1].clone()))
        assert torch.equal(after[j], expected[0])


def test_every_refused_name_exists_in_transformers() -> None:
    assert all(hasattr(logits_process, name) for name in wrap._IMPURE)


@pytest.mark.parametrize("name", sorted(wrap._IMPURE))
def test_stateful_ones_are_refused_by_name(name: str) -> None:
    kind = getattr(logits_process, name)
    with pytest.raises(ConfigError, match=name) as caught:
        wrap_transformers(kind.__new__(kind))
    assert caught.value.param == "processors"


@pytest.mark.parametrize("module", ["outlines.backends.llguidance", "xgrammar.contrib.hf", "lmformatenforcer.x"])
def test_call_counting_packages_are_refused_with_our_grammar_as_hint(module: str) -> None:
    base = type("LogitsProcessor", (), {"__module__": module, "__call__": lambda self, ids, scores: scores})
    derived = type("Mine", (base,), {"__module__": "__main__"})
    for processor in (base(), derived()):
        with pytest.raises(ConfigError, match=module.partition(".")[0]) as caught:
            wrap_transformers(processor)
        assert "output_type" in (caught.value.hint or "")


def test_outlines_own_class_is_refused() -> None:
    from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor

    processor = OutlinesCoreLogitsProcessor.__new__(OutlinesCoreLogitsProcessor)
    with pytest.raises(ConfigError, match="OutlinesCoreLogitsProcessor"):
        wrap_transformers(processor)


def test_a_list_holding_a_refused_one_is_refused() -> None:
    inner = logits_process.InfNanRemoveLogitsProcessor()
    with pytest.raises(ConfigError, match="InfNanRemove"):
        wrap_transformers(logits_process.LogitsProcessorList([logits_process.TopKLogitsWarper(3), inner]))


def test_a_failing_wrapped_processor_is_named() -> None:
    class Broken:
        def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
            raise KeyError("gone")

    with pytest.raises(RequestError, match=r"Broken raised KeyError"):
        run(Broken(), [1, 2], 1)


def test_not_callable() -> None:
    with pytest.raises(ConfigError, match="int"):
        wrap_transformers(cast(TransformersProcessor, 3))
