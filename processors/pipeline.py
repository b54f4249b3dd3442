"""The declared pipeline: logits and positions in, the law of the next token out. DESIGN section 6."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from constrained_spec.config import Sampling
from constrained_spec.errors import ConfigError
from constrained_spec.processors.base import Position, Processor
from constrained_spec.processors.bias import logit_bias, suppress
from constrained_spec.processors.custom import run_custom
from constrained_spec.processors.grammar_mask import grammar_mask
from constrained_spec.processors.min_tokens import MinTokens
from constrained_spec.processors.penalties import presence_frequency_penalty, repetition_penalty
from constrained_spec.processors.rows import to_device
from constrained_spec.processors.truncation import min_p, temperature, top_k, top_p
from constrained_spec.types import Vocabulary

_LARGEST = 1e30  # of a penalty or bias: float32 sums of such values stay finite


class Processed:
    """The next token's law at N places; what is derived from the logits is computed when first asked for.

    ``logits`` [N, V] float32 is the pipeline's result: for a sampled row scaled and truncated, for a greedy one
    (temperature 0) penalised, biased and masked only. ``greedy`` tells the two apart. -inf is impossible, exactly.
    """

    __slots__ = ("_choices", "_dead", "_probabilities", "greedy", "logits")

    def __init__(self, logits: Tensor, greedy: tuple[bool, ...]) -> None:
        self.logits = logits
        self.greedy = greedy
        self._choices: Tensor | None = None
        self._dead: Tensor | None = None
        self._probabilities: Tensor | None = None

    def choices(self) -> Tensor:
        """The most probable id of each row, the lowest of equals: [N] int64. Meaningless where ``dead``."""
        if self._choices is None:
            self._choices = _argmax(self.logits)
        return self._choices

    @property
    def dead(self) -> Tensor:
        """Rows without a law, [N] bool: no id left, or a NaN or +inf anywhere."""
        if self._dead is None:
            # argmax prefers a NaN to any number, so the best value tells about the whole row.
            best = self.logits.gather(1, self.choices().unsqueeze(1)).squeeze(1)
            self._dead = ~best.isfinite()
        return self._dead

    def probabilities(self) -> Tensor:
        """[N, V] float32: a softmax, a point mass on the choice for greedy rows, and zeros where ``dead``."""
        if self._probabilities is None:
            self._probabilities = self._law()
        return self._probabilities

    @property
    def logprobs_base(self) -> Tensor:
        """[N, V] log-probabilities for reporting; those of greedy rows are at temperature 1. Not cached."""
        return self.logits.log_softmax(-1)

    def _law(self) -> Tensor:
        with torch.inference_mode():
            if all(self.greedy):
                p = self._point_masses()
            else:
                p = self.logits.softmax(-1)
                if any(self.greedy):
                    greedy = to_device(np.array(self.greedy), p.device).unsqueeze(1)
                    p = torch.where(greedy, self._point_masses(), p)
            if p.device.type != "cpu" or bool(self.dead.any()):
                p.masked_fill_(self.dead.unsqueeze(1), 0.0)
            return p

    def _point_masses(self) -> Tensor:
        return torch.zeros_like(self.logits).scatter_(1, self.choices().unsqueeze(1), 1.0)


class Pipeline:
    """Applies every step in the declared order, each to the rows that use it.

    repetition penalty (prompt + output) -> presence, frequency (output) -> logit_bias, suppressed ids -> custom
    processors -> min_tokens -> grammar mask -> temperature -> top-k -> top-p -> min-p -> softmax. Pure: the result
    depends on the arguments alone, row by row, and the same serves target and draft. A custom processor cannot bring a
    suppressed id back: the ban is repeated behind it.
    """

    __slots__ = ("_min_tokens", "_width")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._width = vocabulary.size
        self._min_tokens = MinTokens(vocabulary)

    def process(
        self, logits: Tensor, positions: Sequence[Position], custom: Sequence[Sequence[Processor]] = ()
    ) -> Processed:
        """``logits`` [N, V] belong to the pipeline from here on: a float32 buffer is edited in place.

        ``positions[i]`` and ``custom[i]`` (empty ``custom``: no row has any) belong to row i. Waits for no device.
        Raises ``RequestError`` for a custom processor that fails.
        """
        assert logits.shape == (len(positions), self._width)
        assert not custom or len(custom) == len(positions)
        with torch.inference_mode():
            logits = logits.detach().float()
            repetition_penalty(logits, positions)
            presence_frequency_penalty(logits, positions)
            logit_bias(logits, positions)
            suppress(logits, positions)
            if any(custom):
                run_custom(logits, positions, custom)
                suppress(logits, positions)
            self._min_tokens(logits, positions)
            grammar_mask(logits, positions)
            greedy = tuple(p.sampling.greedy for p in positions)
            if not all(greedy):
                temperature(logits, positions)
                top_k(logits, positions)
                top_p(logits, positions)
                min_p(logits, positions)
            return Processed(logits, greedy)


def validate_sampling(sampling: Sampling, vocabulary: Vocabulary) -> None:
    """Check what only the vocabulary, or float32, can tell. Raises ``ConfigError`` naming the option and the id."""
    for name, ids in (("logit_bias", tuple(sampling.logit_bias)), ("suppress_tokens", sampling.suppress_tokens)):
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary.size:
                raise ConfigError(
                    f"{name} names id {token!r}", param=name, hint=f"ids are integers from 0 to {vocabulary.size - 1}"
                )
    values = {f"logit_bias[{token}]": bias for token, bias in sampling.logit_bias.items()}
    for name in ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        values[name] = getattr(sampling, name)
    for name, value in values.items():
        if abs(value) > _LARGEST or (name == "repetition_penalty" and value < 1 / _LARGEST):
            raise ConfigError(f"{name} is out of range: {value}", param=name.partition("[")[0])


def _argmax(logits: Tensor) -> Tensor:
    if logits.device.type == "cpu":
        # numpy's is vectorised, ten times faster than torch's on CPU; both take the first NaN, else the first maximum.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)
