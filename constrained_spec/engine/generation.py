"""One request from prompt to finish, round by round, with the text that may be shown after each."""

from __future__ import annotations

from dataclasses import dataclass, field

from constrained_spec.backends.base import LanguageModel
from constrained_spec.drafters.base import Drafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import DeadEndError
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit


@dataclass(slots=True)
class Times:
    """Seconds of wall clock of one request, by what they were spent on."""

    first_round: float = 0.0
    total: float = 0.0
    forward: float = 0.0  # target forwards, all rounds
    propose: float = 0.0  # drafting, draft forwards included
    overheads: list[float] = field(default_factory=list)  # per round: neither target forward nor masks


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """What one round committed, and the text it released (never retracted, never a partial character)."""

    commit: Commit
    text: str
    finished: bool


class Generation:
    """Drives one sequence, round by round."""

    def __init__(
        self,
        model: LanguageModel,
        pipeline: Pipeline,
        sequence: Sequence,
        drafter: Drafter | None,
        *,
        gamma: int,
        verifier: str,
    ) -> None:
        self.sequence = sequence
        self.times = Times()
        self._model = model
        self._pipeline = pipeline
        self._row = Row(sequence, drafter, gamma, verifier)
        self._shown = 0

    def step(self) -> RoundEvent:
        """One round. Raises ``DeadEndError`` if the pipeline leaves no token; the state is then as before the round."""
        outcome = run_round(self._model, self._pipeline, [self._row])
        times = outcome.times
        if not self.times.overheads:
            self.times.first_round = times.total
        self.times.total += times.total
        self.times.forward += times.forward
        self.times.propose += times.propose
        self.times.overheads.append(times.overhead)
        [result] = outcome.outcomes
        if isinstance(result, DeadEndError):
            raise result
        return RoundEvent(result, self._release(), self.sequence.finished)

    def _release(self) -> str:
        piece = self.sequence.visible_text(self._shown)
        self._shown += len(piece)
        return piece
