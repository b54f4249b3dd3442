"""Faults planted on purpose: each replaces one function of the product while its block runs.

An audit that cannot see a fault it planted itself has no power, so every audit plants each of them once, beside the
system it judges. ``--plant NAME`` puts one into the judged system instead; the verdict must then refuse it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.engine import judge
from constrained_spec.errors import ConfigError
from constrained_spec.processors import penalties
from constrained_spec.processors.pipeline import Processed
from constrained_spec.state.participant import KvState
from constrained_spec.state.transaction import Transaction
from constrained_spec.types import History
from constrained_spec.verify import Coupling, Verdict, inverse_cdf

Ledger = Literal["probability", "state"]


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault: what it does, which ledger must see it, and the block that carries it."""

    name: str
    ledger: Ledger
    what: str
    place: Callable[[], Iterator[None]]

    @contextmanager
    def active(self) -> Iterator[None]:
        """The product carries the fault inside the block, in every thread."""
        yield from self.place()


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _repairs_from_p(sound: Coupling) -> Coupling:
    def wrong(
        p: Tensor, first: Tensor, draft: Tensor, lengths: Tensor, q: Tensor | None, q_row: Tensor,
        accept_u: Tensor, draw_u: Tensor,
    ) -> Verdict:  # fmt: skip
        accepted = sound(p, first, draft, lengths, q, q_row, accept_u, draw_u).accepted
        return Verdict(accepted, inverse_cdf(p[first + accepted], draw_u))

    return wrong


def _full_p_repair() -> Iterator[None]:
    yield from _replaced(
        judge, "CHAIN_JUDGES", lambda judges: {name: _repairs_from_p(sound) for name, sound in judges.items()}
    )


def _mask_missing_on_draft() -> Iterator[None]:
    def make(sound: Callable[..., Processed]) -> Callable[..., Processed]:
        def wrong(self: ModelDrafter, logits: Tensor, live: Sequence[Proposal]) -> Processed:
            positions = [dataclasses.replace(p.tx.position, mask=None) for p in live]
            return self._pipeline.process(logits, positions, [p.sequence.processors for p in live])

        return wrong

    yield from _replaced(ModelDrafter, "_process", make)


def _skipped_penalty() -> Iterator[None]:
    def make(sound: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(history: History, indices: list[int], *, prompt: bool) -> Any:
            return sound(history, [min(indices)] * len(indices), prompt=prompt)

        return wrong

    yield from _replaced(penalties, "_counts", make)


def _grammar_ahead() -> Iterator[None]:
    def make(sound: Callable[..., None]) -> Callable[..., None]:
        def wrong(self: Transaction, kept: int, token: int | None) -> None:
            sound(self, kept, token)
            matcher = self.sequence.matcher
            if matcher is not None and kept < len(self.drafts):
                _advance_once(matcher, self.sequence.vocabulary.mask_words)

        return wrong

    yield from _replaced(Transaction, "_settle_matcher", make)


def _advance_once(matcher: Any, words: int) -> None:
    row = torch.zeros(words, dtype=torch.int32).numpy()
    matcher.mask_into(row)
    for word, bits in enumerate(row.tolist()):
        if bits:
            matcher.advance(32 * word + ((bits & -bits) & 0xFFFFFFFF).bit_length() - 1)
            return


def _penalty_kept() -> Iterator[None]:
    def make(sound: Callable[..., None]) -> Callable[..., None]:
        def wrong(self: History, length: int) -> None:
            del self.tokens[length:]

        return wrong

    yield from _replaced(History, "truncate", make)


def _kv_kept() -> Iterator[None]:
    def make(sound: Callable[..., None]) -> Callable[..., None]:
        def wrong(self: KvState, mark: int) -> None:
            sound(self, mark + 1)

        return wrong

    yield from _replaced(KvState, "rollback", make)


PLANTS = {
    plant.name: plant
    for plant in (
        Plant("full-p-repair", "probability", "the recovered token is drawn from p, not from the residual",
              _full_p_repair),
        Plant("mask-missing-on-draft", "probability", "the draft model is not masked", _mask_missing_on_draft),
        Plant("skipped-penalty", "probability", "drafted places do not penalise the drafts before them",
              _skipped_penalty),
        Plant("grammar-ahead", "state", "after a rejection the matcher stands one token ahead", _grammar_ahead),
        Plant("penalty-kept", "state", "a rejected draft stays in the penalty counts", _penalty_kept),
        Plant("kv-kept", "state", "a rejected draft's keys and values stay in the slot", _kv_kept),
    )
}  # fmt: skip


def plant_named(name: str) -> Plant:
    """Raises ``ConfigError`` for an unknown name."""
    if name not in PLANTS:
        raise ConfigError(f"unknown fault {name!r}", param="plant", hint=f"one of {', '.join(PLANTS)}")
    return PLANTS[name]
