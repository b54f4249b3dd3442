"""Small worlds in which a controller works: what a round costs, what is accepted, what a perfect choice would earn."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import product

from constrained_spec.config import MAX_GAMMA
from constrained_spec.engine.controller import Choice, Controller, RowOutcome, RowState
from constrained_spec.engine.round import RoundTimes
from constrained_spec.state.sequence import Counts

GAMMAS = (0, 1, 2, 4, 8, 16, 24, 32, 48, 64)
Step = Callable[[int, int], float]  # (rows, drafts) -> seconds


@dataclass
class Speaker:
    """One request: each of its drafts stands with chance ``accept`` if all before it did.

    It drafts in a share ``speaks`` of the rounds, then up to ``length`` tokens.
    """

    accept: float
    length: int = MAX_GAMMA
    speaks: float = 1.0
    asking: float = 0.0  # seconds
    drafting: float = 0.0  # seconds a draft
    name: str = "drafter"

    def accepted(self, gamma: int) -> float:
        """Expected accepted drafts."""
        return self.speaks * sum(self.accept**i for i in range(1, min(gamma, self.length) + 1))


@dataclass
class World:
    """Requests that never end, one a row. ``noise``: a factor on the seconds of each round."""

    step: Step
    speakers: list[Speaker]
    noise: Callable[[random.Random], float] = lambda _: 1.0
    seed: int = 0
    rounds: int = 0
    history: list[list[Choice]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, controller: Controller, rounds: int) -> float:
        """Tokens per second: the drafts are drawn, but a round counts what its gammas earn on average."""
        tokens = seconds = 0.0
        for _ in range(rounds):
            choices = controller.choose(self.states())
            controller.observe(*self.play([choice.gamma for choice in choices]))
            earned, spent = self.expected([choice.gamma for choice in choices])
            tokens, seconds = tokens + earned, seconds + spent
            self.history.append(choices)
        return tokens / seconds

    def states(self) -> list[RowState]:
        return [RowState(key=i, limit=MAX_GAMMA, drafter_name=s.name) for i, s in enumerate(self.speakers)]

    def play(self, gammas: Seq[int]) -> tuple[list[RowOutcome], RoundTimes]:
        outcomes, propose = [], 0.0
        for key, (speaker, gamma) in enumerate(zip(self.speakers, gammas, strict=True)):
            speaks = self.random.random() < speaker.speaks
            proposed = min(gamma, speaker.length) if speaks else 0
            accepted = 0
            while accepted < proposed and self.random.random() < speaker.accept:
                accepted += 1
            if gamma:
                propose += speaker.asking + speaker.drafting * proposed
            outcomes.append(RowOutcome(key, gamma, proposed, accepted, accepted + 1, Counts()))
        forward = self.step(len(gammas), sum(o.proposed for o in outcomes)) * self.noise(self.random)
        return outcomes, RoundTimes(
            propose=propose, draft=0.0, forward=forward, masks=0.0, verify=0.0, total=forward + propose
        )

    def expected(self, gammas: Seq[int]) -> tuple[float, float]:
        """Tokens and seconds of a round, on average."""
        tokens = sum(1 + s.accepted(g) for s, g in zip(self.speakers, gammas, strict=True))
        seconds = sum(
            s.asking + s.drafting * s.speaks * min(g, s.length) for s, g in zip(self.speakers, gammas, strict=True) if g
        )
        random_ones = [i for i, s in enumerate(self.speakers) if 0 < s.speaks < 1]
        for speaking in product((False, True), repeat=len(random_ones)):
            chance, drafts = 1.0, 0
            of = dict(zip(random_ones, speaking, strict=True))
            for i, (s, g) in enumerate(zip(self.speakers, gammas, strict=True)):
                speaks = of.get(i, s.speaks == 1)
                chance *= (s.speaks if speaks else 1 - s.speaks) if i in of else 1.0
                drafts += min(g, s.length) if speaks else 0
            seconds += chance * self.step(len(gammas), drafts)
        return tokens, seconds

    def rate(self, gammas: Seq[int]) -> float:
        tokens, seconds = self.expected(gammas)
        return tokens / seconds

    def oracle(self) -> float:
        """Tokens per second of the best fixed gammas: rows of one kind draft alike or not at all."""
        kinds = sorted({(s.accept, s.length, s.speaks, s.drafting) for s in self.speakers})
        best = 0.0
        for chosen in product(GAMMAS, repeat=len(kinds)):
            of = dict(zip(kinds, chosen, strict=True))
            best = max(best, self.rate([of[s.accept, s.length, s.speaks, s.drafting] for s in self.speakers]))
        return best
