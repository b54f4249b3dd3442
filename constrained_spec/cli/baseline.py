"""The baseline of the bench: transformers' own generate, on the same weights, under the same masks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from constrained_spec.backends import attention
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.cli.suite import Job
from constrained_spec.config import Sampling
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import JsonSchema, compile_constraint
from constrained_spec.processors.base import Position
from constrained_spec.processors.grammar_mask import grammar_mask
from constrained_spec.types import History


@contextmanager
def stock_attention(model: PreTrainedModel) -> Iterator[None]:
    """The model as transformers runs it: with its own attention function, not with the one for slots."""
    ours = model.config._attn_implementation
    if ours != attention.NAME:
        yield
        return
    soft_capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    model.set_attn_implementation("eager" if soft_capped else "sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(ours)


def transformers_generate(stock: TransformersModel, job: Job, max_tokens: int, tokenization: str) -> tuple[str, float]:
    """Greedy text of ``job`` and its seconds; the grammar is compiled and the prompt encoded beforehand.

    ``stock`` is loaded without the specialised step: that one leaves transformers no weights.
    """
    model, vocabulary = stock.model, stock.vocabulary
    assert model is not None
    grammar = compile_constraint(JsonSchema(job.schema), vocabulary, tokenization=tokenization)
    prompt = torch.tensor([stock.chat_prompt(job.messages)], device=stock.device)
    start_of_output = prompt.shape[1]
    with stock_attention(model):
        start = time.perf_counter()
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            logits_processor=[PrefixMask(grammar, start_of_output, vocabulary.mask_words)],
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(vocabulary.eos_ids),
            pad_token_id=vocabulary.eos_ids[0],
        )
        seconds = time.perf_counter() - start
    ids = output[0, start_of_output:].tolist()
    return vocabulary.bytes_of(ids).decode("utf-8", errors="replace"), seconds


class PrefixMask:
    """A logits processor of transformers whose mask is a function of the ids before the place, and of nothing else.

    It keeps a matcher at the last prefix it saw, to save work; any other prefix starts afresh.
    """

    def __init__(self, grammar: Grammar, prompt_length: int, words: int) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._start = prompt_length
        self._seen: list[int] = []
        self._row = np.empty(words, dtype=np.int32)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # [1, n] int64, [1, V] -> [1, V] float32
        output = input_ids[0, self._start :].tolist()
        if output[: len(self._seen)] != self._seen:
            self._matcher, self._seen = self._grammar.matcher(), []
        for token in output[len(self._seen) :]:
            if not self._matcher.advance(token):
                raise AssertionError(f"generate took id {token}, which the mask forbids")
        self._seen = output
        self._matcher.mask_into(self._row)
        # The engine's own way to apply a mask, so that neither side pays more for it.
        masked = scores.clone()
        grammar_mask(masked, [Position(History([]), 0, Sampling(), self._row)])
        return masked
