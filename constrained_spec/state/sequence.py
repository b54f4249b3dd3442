"""The authoritative state of one request: every participant, and what has been committed so far."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.grammars.base import Matcher
from constrained_spec.processors.base import Processor
from constrained_spec.state.participant import HistoryState, KvState, Participant, Slots
from constrained_spec.state.stop import StopState
from constrained_spec.state.text import TextState
from constrained_spec.state.tree import TreeKv, kv_state
from constrained_spec.types import FinishReason, History, Vocabulary


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probabilities at one committed token: its own, and the most probable ids with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Counts:
    """Committed and proposed tokens of one sequence. ``forced`` are the accepted drafts that the grammar forced."""

    rounds: int = 0  # each is one target forward
    proposed: int = 0
    accepted: int = 0
    forced: int = 0
    recovered: int = 0
    bonus: int = 0
    by_source: dict[str, list[int]] = field(default_factory=dict)  # source -> [proposed, accepted]
    judged: dict[str, int] = field(
        default_factory=dict
    )  # source -> places that it offered drafts for, and that were reached
    by_position: list[list[int]] = field(default_factory=list)  # place in a block -> [judged, accepted] rounds

    def standing(self, source: str, prior: float, weight: int) -> float:
        """Share of a source's judged places at which it stood; ``prior`` counts for ``weight`` judgements."""
        _, accepted = self.by_source.get(source, (0, 0))
        return (accepted + prior * weight) / (self.judged.get(source, 0) + weight)


class Sequence:
    """One request in one slot.

    ``leading`` participants follow drafts while a round is open, because masks and penalties depend on them;
    ``lagging`` ones see committed tokens only. Caches (target and draft KV) are cut to the committed length.
    """

    def __init__(
        self,
        *,
        prompt: Seq[int],
        sampling: Sampling,
        coins: Coins,
        vocabulary: Vocabulary,
        target: Slots,
        slot: int,
        capacity: int,
        matcher: Matcher | None = None,
        processors: Seq[Processor] = (),
    ) -> None:
        self.sampling = sampling
        self.coins = coins
        self.vocabulary = vocabulary
        self.capacity = capacity
        self.matcher = matcher
        self.processors = tuple(processors)
        self.history = History(prompt)
        self.text = TextState(vocabulary)
        self.stop = StopState(sampling.stop, self.text, min_tokens=sampling.min_tokens)
        self.counts = Counts()
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.mask_seconds = self.draft_seconds = 0.0  # in grammar masks and in draft models: measurements, no state
        self.disabled: dict[str, str] = {}  # drafter -> why it was switched off
        self.suspects: set[str] = set()  # drafters that failed in a group: from then on they draft for this one alone
        self.kv = kv_state(target, slot)
        self.caches: list[KvState] = [self.kv]
        self._history_state = HistoryState(self.history)
        self._followers: list[Participant[Any]] = []
        self.eos_ids = frozenset(() if sampling.ignore_eos else vocabulary.eos_ids)

    @property
    def leading(self) -> list[Participant[Any]]:
        return [self._history_state]

    @property
    def lagging(self) -> list[Participant[Any]]:
        # The stop matcher reads the characters that the text has just taken, so it comes second.
        return [self.text, self.stop, *self._followers]

    @property
    def slot(self) -> int:
        return self.kv.slot

    @property
    def takes_trees(self) -> bool:
        """Can the target score a tree of drafts?"""
        return isinstance(self.kv, TreeKv)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def output(self) -> list[int]:
        return self.history.tokens[self.history.prompt_length :]

    @property
    def pending(self) -> list[int]:
        """Committed tokens that are not yet in the target's slot."""
        return self.history.tokens[self.kv.length :]

    @property
    def room(self) -> int:
        """How many more tokens the request may commit: its own limit and the context's."""
        return min(
            self.sampling.max_tokens - self.history.output_length,
            self.capacity - len(self.history),
        )

    @property
    def stop_hit(self) -> bool:
        """Has a stop string been completed?"""
        return self.stop.hit is not None

    def visible_text(self, start: int = 0) -> str:
        """The text that is certain to stay, from character ``start`` on, at the cost of that part alone.

        That is what may be streamed now, and after the finish the whole answer. ``start`` counts visible characters.
        """
        hit = self.stop.hit
        if hit is not None:
            end = hit[1] if self.sampling.include_stop else hit[0]
        elif self.finished:
            return self.text.finish()[start:]
        else:
            end = self.stop.safe_length
        return self.text.since(start)[: end - start]

    def follow(self, participant: Participant[Any]) -> None:
        """Add a participant that follows committed tokens (a drafter's index)."""
        self._followers.append(participant)

    def forget_followers(self) -> None:
        """Drop the participants that ``follow`` added: the sequence leaves its slot, and its drafter is closed."""
        self._followers.clear()

    def move(self, target: Slots, slot: int) -> None:
        """Go on in another slot, whose length says how much of the history it holds."""
        self.kv = self.caches[0] = kv_state(target, slot)

    def fingerprints(self) -> dict[str, bytes]:
        """Digest of each participant: equal digests mean equal next distributions, masks, stops and texts."""
        prints = {type(p).__name__: p.fingerprint() for p in (*self.leading, *self.lagging)}
        prints |= {f"kv{i}": c.fingerprint() for i, c in enumerate(self.caches)}
        prints["grammar"] = self.matcher.fingerprint() if self.matcher else b""
        prints["finish"] = repr(self.finish_reason).encode()
        prints["logprobs"] = repr(self.logprobs).encode()
        return prints

    def fingerprint(self) -> bytes:
        """One digest over ``fingerprints`` and the round number, which keys the coins."""
        state = (sorted(self.fingerprints().items()), self.counts.rounds)
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()
