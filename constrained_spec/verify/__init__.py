"""Verifiers: tensors in, values out.

All of them keep the target's law: the committed sequence is distributed as if drawn token by token from p. They
differ in how often a draft survives and in which coins they use, never in what the output looks like.
"""

from constrained_spec.verify.coupling import coupling
from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.match import greedy_choices, gumbel_choices, match
from constrained_spec.verify.theory import (
    acceptance,
    estimated_speedup,
    expected_committed,
    overlap,
    residual,
    total_variation,
)
from constrained_spec.verify.verdict import Verdict

__all__ = [
    "Verdict",
    "acceptance",
    "coupling",
    "estimated_speedup",
    "expected_committed",
    "greedy_choices",
    "gumbel_choices",
    "inverse_cdf",
    "match",
    "overlap",
    "residual",
    "total_variation",
]
