"""Requests that leave few outputs, so that every probability can be computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from constrained_spec.grammars.compile import Choice, Constraint, Regex

PROMPT = "One word:"


@dataclass(frozen=True, slots=True)
class SmallSpace:
    """A request that leaves few outputs. The options are those of ``Sampling``."""

    name: str
    constraint: Constraint
    options: dict[str, Any]


SPACES = (
    SmallSpace("choice", Choice(("yes", "no", "nay")), {"temperature": 2.0, "max_tokens": 8}),
    SmallSpace(
        "penalised",
        Regex("[01]{3}"),
        {"temperature": 1.3, "max_tokens": 8, "presence_penalty": 2.0, "frequency_penalty": 1.0,
         "repetition_penalty": 1.3},
    ),
    SmallSpace(
        "truncated",
        Choice(("red", "rod", "green")),
        {"temperature": 1.4, "max_tokens": 8, "top_k": 6, "top_p": 0.95, "min_p": 0.02, "stop": ("ee",)},
    ),
)  # fmt: skip
SPACE_OF_PLANT = {"full-p-repair": SPACES[0], "mask-missing-on-draft": SPACES[0], "skipped-penalty": SPACES[1]}
