"""What speculation is worth: expected tokens a round against what a round costs.

A model, not a measurement: drafts are accepted independently with one chance, and times do not vary. All times are in
milliseconds. The page computes the same numbers, and its tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from constrained_spec.errors import ConfigError
from constrained_spec.verify import estimated_speedup

MAX_GAMMA = 16  # longest draft that is tried


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of the parts of decoding."""

    baseline: float  # B, a target-only step: one token
    draft: float  # D, one drafted token
    verify: float  # V, the target's forward over a round's block, the part that does not grow with the block
    overhead: float = 0.0  # H, the rest of a round: masks, verdict, commit
    slope: float = 0.0  # what each draft of the block adds to V

    def verify_at(self, gamma: int) -> float:
        return self.verify + self.slope * gamma

    def round(self, gamma: int) -> float:
        """A round with ``gamma`` drafts."""
        return gamma * self.draft + self.verify_at(gamma) + self.overhead


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload: ``prefill`` milliseconds before the first token, then ``length`` tokens."""

    name: str
    alpha: float
    gamma: int
    costs: Costs
    prefill: float
    length: int


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """One answer, prefill included, in milliseconds."""

    baseline: float
    speculative: float

    @property
    def speedup(self) -> float:
        return self.baseline / self.speculative


PRESETS = (
    Preset("code assistant", 0.78, 4, Costs(20, 1, 21, 1.5), prefill=420, length=160),
    # A full batch leaves no idle arithmetic: every further place of the block costs. The prompt is cached.
    Preset("saturated service", 0.55, 4, Costs(4.5, 0.9, 4.7, 1.0, slope=1.2), prefill=20, length=1000),
)


def speedup(alpha: float, gamma: int, costs: Costs) -> float:
    """E[N] * B / (gamma * D + V(gamma) + H), of decoding alone. Without drafts there is no round: 1.

    Raises ``ConfigError`` for what `expected_committed` and `estimated_speedup` refuse, or a negative slope.
    """
    if not costs.slope >= 0:
        raise ConfigError(f"slope must not be negative, got {costs.slope!r}", param="slope")
    if gamma == 0:
        return 1.0
    return estimated_speedup(
        alpha,
        gamma,
        baseline=costs.baseline,
        draft=costs.draft,
        verify=costs.verify_at(gamma),
        overhead=costs.overhead,
    )


def end_to_end(alpha: float, gamma: int, costs: Costs, *, prefill: float, length: int) -> EndToEnd:
    """An answer of ``length`` tokens with and without drafts. The prefill is the same for both.

    Raises ``ConfigError`` as `speedup` does, and for a negative prefill or no tokens.
    """
    if not prefill >= 0:
        raise ConfigError(f"prefill must not be negative, got {prefill!r}", param="prefill")
    if length < 1:
        raise ConfigError(f"length must be at least 1, got {length!r}", param="length")
    decode = length * costs.baseline
    return EndToEnd(prefill + decode, prefill + decode / speedup(alpha, gamma, costs))


def break_even(gamma: int, costs: Costs) -> float | None:
    """The acceptance from which ``gamma`` drafts a round cost no time; None if not even all accepted ones pay."""
    if speedup(1.0, gamma, costs) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):  # E[N] grows with alpha, so halving finds the one crossing
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle, gamma, costs) >= 1 else (middle, high)
    return high


def best_gamma(alpha: float, costs: Costs) -> int:
    """The number of drafts that is quickest, up to ``MAX_GAMMA``; 0 says that speculation is better off."""
    return max(range(MAX_GAMMA + 1), key=lambda gamma: (speedup(alpha, gamma, costs), -gamma))
