"""Transformers' logits processors as ours, where they are functions of (input_ids, scores)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from constrained_spec.errors import ConfigError
from constrained_spec.processors.base import Position, Processor
from constrained_spec.processors.custom import name_of

_OWN_GRAMMAR = "pass the constraint as output_type: it is enforced at every drafted position"
# Packages whose processors advance a matcher once per call, so a rejected draft leaves it astray.
_CALL_COUNTING = (
    "formatron",
    "guidance",
    "llguidance",
    "lmformatenforcer",
    "outlines",
    "transformers_cfg",
    "xgrammar",
)
# Class names of transformers 5.24 (read in its source) -> why its result is not a function of (input_ids, scores).
_IMPURE = {
    "ClassifierFreeGuidanceLogitsProcessor": "it needs a second, unconditional row beside each row",
    "DiaClassifierFreeGuidanceLogitsProcessor": "it needs a second, unconditional row beside each row",
    "DiaEOSChannelFilterLogitsProcessor": "it reads several audio channels at once",
    "DiaEOSDelayPatternLogitsProcessor": "it counts its calls",
    "InfNanRemoveLogitsProcessor": "it makes impossible ids possible and hides a broken model",
    "SynthIDTextWatermarkLogitsProcessor": "it counts its calls",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "it runs a model with a cache of its own at every call",
    "WhisperNoSpeechDetection": "it keeps the inputs and results of the last call",
    "WhisperTimeStampLogitsProcessor": "transformers' generate sets its begin index from outside",
}


class TransformersProcessor(Protocol):
    """The call of ``transformers.LogitsProcessor``: ids [1, n] int64 and scores [1, V] float32 -> scores [1, V]."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class _Wrapped:
    processor: TransformersProcessor

    @property
    def __name__(self) -> str:
        return name_of(self.processor)

    def __call__(self, logits: Tensor, positions: Sequence[Position]) -> Tensor:
        rows = [
            self.processor(
                cast(torch.LongTensor, torch.tensor([p.prefix], dtype=torch.long, device=logits.device)),
                cast(torch.FloatTensor, logits[i : i + 1].clone()),
            )
            for i, p in enumerate(positions)
        ]
        return torch.cat(rows)


def wrap_transformers(processor: TransformersProcessor) -> Processor:
    """Call ``processor`` once per position, with that position's own prefix (prompt, output and drafts before it).

    It must be a function of its arguments. Those known to keep state between calls, a list that holds one included,
    raise ``ConfigError`` by name.
    """
    for member in processor if isinstance(processor, list) else [processor]:
        _require_pure(member)
    return _Wrapped(processor)


def _require_pure(processor: object) -> None:
    if not callable(processor):
        raise ConfigError(f"{name_of(processor)} cannot be called", param="processors")
    for kind in type(processor).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _CALL_COUNTING:
            raise ConfigError(
                f"{name_of(processor)} of {package} advances once per call, which speculation breaks",
                param="processors",
                hint=_OWN_GRAMMAR,
            )
        if package == "transformers" and kind.__name__ in _IMPURE:
            raise ConfigError(
                f"{name_of(processor)} cannot be used under speculation: {_IMPURE[kind.__name__]}",
                param="processors",
                hint="write it as a function of the prefix, or leave it out",
            )
