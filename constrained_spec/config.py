"""Request options: the ones that define the law (sampling) and the ones that cannot change it (speculation)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from constrained_spec.errors import ConfigError

VERIFIERS = ("coupling", "block", "tree", "invariant", "typical")
APPROXIMATE = frozenset({"typical"})  # verifiers that change the law
DRAFTERS = (
    "none", "forced", "ngram", "prediction", "suffix", "model", "translate", "early-exit", "quantized", "medusa",
    "eagle", "tree", "mixture", "auto",
)  # fmt: skip
DEFAULT_GAMMA = 24
MAX_GAMMA = 64


def _finite(name: str, value: float) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Everything that, with model, prompt and constraint, defines the law of the output.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean off; so do penalties of 0 and a
    ``repetition_penalty`` of 1. ``seed`` None draws a fresh one. ``logprobs`` k reports the k most probable tokens.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    suppress_tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    logprobs_mode: Literal["processed", "raw"] = "processed"

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            _finite(name, getattr(self, name))
        for name, least in (("max_tokens", 1), ("min_tokens", 0), ("top_k", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}", param=name)
        if self.temperature < 0:
            raise ConfigError(
                f"temperature must not be negative, got {self.temperature}", param="temperature", hint="0 means greedy"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p}", param="top_p", hint="1 turns it off")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p must lie in [0, 1], got {self.min_p}", param="min_p", hint="0 turns it off")
        if self.repetition_penalty <= 0:
            raise ConfigError(
                f"repetition_penalty must be positive, got {self.repetition_penalty}",
                param="repetition_penalty",
                hint="1 turns it off",
            )
        if self.min_tokens > self.max_tokens:
            raise ConfigError("min_tokens exceeds max_tokens", param="min_tokens")
        for token, bias in self.logit_bias.items():
            _finite(f"logit_bias[{token}]", bias)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ConfigError("a stop string must be a non-empty text", param="stop")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError("seed must lie in [0, 2**64)", param="seed")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise ConfigError("logprobs must lie in [0, 100]", param="logprobs")
        if self.logprobs_mode not in ("processed", "raw"):
            raise ConfigError(f"unknown logprobs_mode {self.logprobs_mode!r}", param="logprobs_mode")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to propose and verify. Only a verifier of ``APPROXIMATE`` changes the law of the output, and says so."""

    drafter: str = "auto"
    gamma: int = DEFAULT_GAMMA
    verifier: str = "coupling"

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS:
            raise ConfigError(
                f"unknown drafter {self.drafter!r}", param="drafter", hint=f"one of {', '.join(DRAFTERS)}"
            )
        if self.verifier not in VERIFIERS:
            raise ConfigError(
                f"unknown verifier {self.verifier!r}", param="verifier", hint=f"one of {', '.join(VERIFIERS)}"
            )
        if not isinstance(self.gamma, int) or isinstance(self.gamma, bool) or not 0 <= self.gamma <= MAX_GAMMA:
            raise ConfigError(f"gamma must lie in [0, {MAX_GAMMA}], got {self.gamma!r}", param="gamma")
