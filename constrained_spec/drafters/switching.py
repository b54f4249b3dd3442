"""Before each block, the one of two sources that brought more tokens for its time in this text."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import open_guarded, propose_guarded
from constrained_spec.drafters.quantized import QuantizedDrafter, steps_taken
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.state.sequence import Sequence

_CHAINED, _USUAL = 1.25, 1.3  # target steps that a round costs beside a chain's drafts, and with usual ones
_SURE = 0.7  # chance of what grammar or text suggest, from which on a block begins with it
# Tokens per step that are believed before anything is known, and for how many steps that counts: of chains, and of the
# usual sources in free text, under a grammar, and with a prediction, which holds or does not.
_CHAIN, _FREE, _FORMAL, _PREDICTED = (1.5, 14.0), (1.1, 14.0), (2.0, 14.0), (1.6, 5.0)
_KEEP = 0.95  # of what is known, in each further round
_SPELL = 4  # rounds until the better arm is chosen anew
_AGAIN = 6  # spells of the chain after which the usual sources are tried again, whatever they brought


@dataclass(slots=True)
class _Arm:
    """What one source brought: tokens, and target steps that they took, older rounds counting less."""

    tokens: float
    steps: float

    @classmethod
    def of(cls, rate: float, steps: float) -> _Arm:
        return cls(rate * steps, steps)

    def add(self, tokens: int, steps: float) -> None:
        self.tokens = _KEEP * self.tokens + tokens
        self.steps = _KEEP * self.steps + steps

    @property
    def rate(self) -> float:
        return self.tokens / self.steps


@dataclass(slots=True)
class _Text:
    """The two arms in one sequence."""

    usual: _Arm
    chain: _Arm = field(default_factory=lambda: _Arm.of(*_CHAIN))
    mode: _Arm | None = None
    left: int = 0  # rounds until the mode is chosen again
    chained: int = 0  # spells of the chain in a row
    # Of the newest block, if it is to be judged: the arm, and rounds, output tokens and steps of drafting before it.
    judged: _Arm | None = None
    before: tuple[int, int, float] = (0, 0, 0.0)


class SwitchingDrafter:
    """What is ``usual``, or a ``chain`` of the quantised copy of the target.

    Trees and copies cost little more than a step, and bring as much as the text can be foreseen. A chain costs half a
    step a draft and brings nearly all of them, whatever the text. So chains are for text that the usual sources brought
    little of: for some rounds at a time, the one that brought more tokens per target step in this sequence. While it is
    the chain, a block still begins as usual where grammar or text are sure how it goes on. Where requests share a step
    there is no chain: a step of several costs little more than of one, and each one's drafting as much as alone.

    It looks at rounds that are over and at the tokens before the place alone, and at no clock. ``tree`` is the one
    among the usual sources.
    """

    sizes_itself = True

    def __init__(self, usual: Drafter, chain: QuantizedDrafter, tree: TreeDrafter, *, predicted: bool = False) -> None:
        """``predicted``: the caller told what to expect."""
        self.name = usual.name
        self._usual, self._chain, self._tree = usual, chain, tree
        self._predicted = predicted
        self._texts: dict[int, _Text] = {}  # by id of an open sequence

    def open(self, sequence: Sequence) -> None:
        prior = _PREDICTED if self._predicted else _FREE if sequence.matcher is None else _FORMAL
        self._texts[id(sequence)] = _Text(_Arm.of(*prior))
        self._usual.open(sequence)
        open_guarded(self._chain, sequence)

    def close(self, sequence: Sequence) -> None:
        self._texts.pop(id(sequence), None)
        self._usual.close(sequence)
        self._chain.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        chains = [p for p in proposals if self._chooses_chain(self._texts[id(p.sequence)], p)]
        if chains:
            propose_guarded(self._chain, chains)
        # The chain is silent before the prompt is read, and where it failed.
        usual = [p for p in proposals if not p.tokens]
        if usual:
            self._usual.propose(usual)

    def _chooses_chain(self, text: _Text, p: Proposal) -> bool:
        _judge(text, p)
        if not p.alone or self._chain.name in p.sequence.disabled or self._tree.is_narrow(p):
            return False
        if text.left == 0:
            chains = text.chain.rate > text.usual.rate and text.chained < _AGAIN
            text.mode = text.chain if chains else text.usual
            text.chained = text.chained + 1 if chains else 0
            text.left = _SPELL
        text.left -= 1
        text.judged = text.mode
        text.before = p.sequence.counts.rounds, p.first, steps_taken(p.sequence.counts)
        return text.mode is text.chain and self._tree.foresees(p) < _SURE


def _judge(text: _Text, p: Proposal) -> None:
    """What the block before this one has brought, if it was the last round's."""
    arm, text.judged = text.judged, None
    rounds, length, steps = text.before
    if arm is not None and p.sequence.counts.rounds == rounds + 1:
        drafting = steps_taken(p.sequence.counts) - steps
        arm.add(p.first - length, _CHAINED + drafting if drafting else _USUAL)
