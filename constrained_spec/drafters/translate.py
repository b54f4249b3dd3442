"""A draft model with another tokeniser (Timor et al. 2025, "Accelerating LLM inference with lossless speculative
decoding algorithms for heterogeneous vocabularies").

Both ways meet the target on the level of text. Whatever a tokeniser changes, cleans or adds on that way makes the draft
model's context differ from the target's, so it costs acceptance; the proposals stay drafts like any others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.coins import Role
from constrained_spec.drafters.base import DrafterFault, Proposal, draft_forward
from constrained_spec.drafters.draft_context import DraftContext, common_special
from constrained_spec.drafters.draws import draw
from constrained_spec.drafters.respell import Speller, without_partial
from constrained_spec.errors import ConfigError, VocabularyMismatchError
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import Vocabulary
from constrained_spec.verify import inverse_cdf

Mode = Literal["tokens", "text"]

_TEXT_COINS = 1 << 32  # beyond every place in an output: a text's coins are no other draft's coins


class TranslateDrafter:
    """Drafts with a model whose ids mean other texts than the target's. One object per draft model: it owns its slots.

    ``mode="tokens"`` (token-level intersection): the draft model's distribution, restricted to the tokens whose bytes
    are one token of the target too, goes through the target's own pipeline, is renormalised by it and sampled with the
    draft coin: an exact q over the target's ids. ``mode="text"`` (text re-encoding): the draft model writes text in its
    own tokens, which is proposed as point masses in the target's spelling. It writes greedily, or with ``sample`` at
    the request's temperature; neither sees the request's mask or penalties, and what they forbid is cut.

    ``prefix`` are the draft model's ids in front of every text (BOS); for a ``TransformersModel``, ``encode("")``.

    Raises ``VocabularyMismatchError`` for "tokens" where no token is common to both vocabularies.
    """

    name = "translate"

    def __init__(
        self, model: LanguageModel, pipeline: Pipeline, target: Vocabulary, *, mode: Mode = "tokens",
        prefix: Seq[int] = (), sample: bool = False,
    ) -> None:  # fmt: skip
        if mode not in ("tokens", "text"):
            raise ConfigError(f"unknown mode {mode!r}", param="mode", hint="tokens or text")
        if any(not 0 <= i < model.vocabulary.size for i in prefix):
            raise ConfigError("the prefix holds an id outside the draft model's vocabulary", param="prefix")
        self._model = model
        self._pipeline = pipeline
        self._target = target
        self._mode = mode
        self._prefix = tuple(prefix)
        self._sample = sample
        self._draft_speller, self._target_speller = Speller(model.vocabulary), Speller(target)
        self._to_draft = common_tokens(target, model.vocabulary)
        if mode == "tokens" and not any(target.tokens[i] for i in self._to_draft):
            raise VocabularyMismatchError(
                "the draft model has no token with the text of a token of the target",
                param="draft_model",
                hint="use mode='text'",
            )
        self._ends = {d: [t] for t, d in self._to_draft.items() if t in target.eos_ids}
        pairs = sorted(self._to_draft.items())
        self._target_ids = torch.tensor([t for t, _ in pairs], dtype=torch.long, device=model.device)
        self._draft_ids = torch.tensor([d for _, d in pairs], dtype=torch.long, device=model.device)
        self._lanes: dict[int, _Lane] = {}
        self._free = list(range(model.slots))

    def open(self, sequence: Sequence) -> None:
        """Raises ``ConfigError`` if every slot of the draft model is taken, ``VocabularyMismatchError`` for a sequence
        of another target."""
        if sequence.vocabulary.digest != self._target.digest:
            raise VocabularyMismatchError("the drafter was made for another target's vocabulary", param="drafter")
        if not self._free:
            raise ConfigError("the draft model has no free slot", param="slots", hint="load it with more slots")
        slot = self._free.pop()
        self._model.set_length(slot, 0)
        context = DraftContext(self._target, self._draft_speller, self._prefix)
        for token in sequence.history.tokens:
            context.advance(token)
        self._lanes[id(sequence)] = _Lane(slot, context)
        sequence.follow(context)

    def close(self, sequence: Sequence) -> None:
        lane = self._lanes.pop(id(sequence), None)
        if lane is not None:
            self._free.append(lane.slot)

    def propose(self, proposals: Seq[Proposal]) -> None:
        if self._mode == "tokens":
            self._propose_tokens(proposals)
        else:
            self._propose_text(proposals)

    # ---- token-level intersection ---------------------------------------------------------------------------------

    def _propose_tokens(self, proposals: Seq[Proposal]) -> None:
        """One draft forward per place, for all rows together. Whether a place is drafted is known before its draw."""
        live = self._drafts(proposals)
        while live := [d for d in live if d.proposal.room > 0 and self._fits(d)]:
            logits = self._finite(self._score(live), self._draft_ids)
            rows = logits.new_full((len(live), self._target.size), float("-inf"))
            rows[:, self._target_ids] = logits[:, self._draft_ids]
            processed = self._pipeline.process(
                rows, [d.proposal.tx.position for d in live], [d.proposal.sequence.processors for d in live]
            )
            tokens, q = _draw(processed, [d.proposal for d in live])
            # One sync: the grammar needs each token on the host before the next position's mask exists.
            drawn, dead = torch.stack((tokens, processed.dead.to(tokens.dtype))).tolist()
            for row, d in enumerate(live):
                if dead[row]:
                    # No common token may stand here. That is known without a draw, so stopping biases nothing.
                    d.done = True
                    continue
                token, p = drawn[row], d.proposal
                if p.sequence.sampling.greedy or p.verifier == "invariant":
                    if not p.point(token, self.name):
                        raise DrafterFault(f"drafter 'translate' chose id {token}, which the grammar forbids")
                else:
                    p.sampled(token, q[row], self.name)
                d.wanted.append(self._to_draft[token])
            live = [d for d in live if not d.done]

    # ---- text re-encoding -----------------------------------------------------------------------------------------

    def _propose_text(self, proposals: Seq[Proposal]) -> None:
        drafts = live = self._drafts(proposals)
        while live := [d for d in live if not d.done and self._fits(d)]:
            logits = self._finite(self._score(live), None)
            for d, token in zip(live, self._write(logits, live), strict=True):
                self._append(d, token)
        for d in drafts:
            for token in d.spelled[: d.room]:
                if d.proposal.room <= 0 or not d.proposal.point(token, self.name):
                    break

    def _write(self, logits: Tensor, live: Seq[_Draft]) -> list[int]:  # logits [N, V of the draft] -> [N] draft ids
        choices = logits.argmax(-1)
        sampled = [i for i, d in enumerate(live) if self._sample and not d.proposal.sequence.sampling.greedy]
        if sampled:
            coins, heat = [], []
            for i in sampled:
                p = live[i].proposal
                # Never the coin of a sampled draft in the same block: that one must be independent of its prefix.
                coins.append(p.sequence.coins.uniform(Role.DRAFT, p.round, _TEXT_COINS + live[i].written))
                heat.append(p.sequence.sampling.temperature)
            scale = torch.tensor(heat, device=logits.device).unsqueeze(1)
            law = (logits[sampled] / scale).softmax(-1)
            choices[sampled] = inverse_cdf(law, torch.tensor(coins, dtype=torch.float64, device=logits.device))
        found: list[int] = choices.tolist()
        return found

    def _append(self, d: _Draft, token: int) -> None:
        """One more draft token: the text so far in the target's spelling, and whether it is enough."""
        vocabulary = self._model.vocabulary
        piece = vocabulary.tokens[token]
        d.wanted.append(token)
        d.written += 1
        if not piece:
            # The draft model ends here, or says what has no text.
            d.done = True
            d.spelled = self._target_speller.exact(d.text) + self._ends.get(token, [])
            return
        d.text += piece
        # The last token of a text that goes on may be the beginning of a longer one.
        d.spelled = self._target_speller.exact(without_partial(d.text))[:-1]
        d.done = len(d.spelled) >= d.room or d.written >= 2 * d.room + 4

    # ---- the draft model's slots ----------------------------------------------------------------------------------

    def _drafts(self, proposals: Seq[Proposal]) -> list[_Draft]:
        drafts = []
        for p in proposals:
            if p.room > 0:
                lane, history = self._lanes[id(p.sequence)], p.sequence.history
                # Behind the committed text the drafts before this place: of a tree only its path.
                path = history.tokens[history.prompt_length + p.first :]
                drafts.append(_Draft(p, lane, lane.context.tokens(path), p.room))
        return drafts

    def _fits(self, d: _Draft) -> bool:
        """A context of no token has no next one, and a slot holds only so many."""
        return 0 < len(d.wanted) <= self._model.capacity

    def _score(self, live: Seq[_Draft]) -> Tensor:  # -> [N, V of the draft]
        """Logits behind ``wanted``, every slot cut to what it shares with it."""
        blocks = []
        for d in live:
            lane = d.lane
            # At least one token is fed: its row is what is asked for.
            kept = min(_common(lane.held, d.wanted), len(d.wanted) - 1, self._model.length(lane.slot))
            self._model.set_length(lane.slot, kept)
            del lane.held[kept:]
            blocks.append(Block(lane.slot, d.wanted[kept:], want=1))
        with draft_forward([d.proposal for d in live]):
            logits = self._model.score(blocks)
        for d in live:
            d.lane.held[:] = d.wanted
        return logits

    @staticmethod
    def _finite(logits: Tensor, ids: Tensor | None) -> Tensor:  # [N, V of the draft], [M]
        """``logits``, none of them (or of ``ids``) NaN or +inf. Raises ``DrafterFault``."""
        read = logits if ids is None else logits[:, ids]
        if not bool((read < float("inf")).all()):
            raise DrafterFault("the draft model's logits are not finite")
        return logits


@dataclass(slots=True, eq=False)
class _Lane:
    """One slot of the draft model and what it holds: a cache, compared with the text before every use."""

    slot: int
    context: DraftContext
    held: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Draft:
    """What is under way for one proposal in one call."""

    proposal: Proposal
    lane: _Lane
    wanted: list[int]  # draft ids of everything before the next place
    room: int  # target tokens that had room at the start
    done: bool = False
    # Text mode only.
    written: int = 0  # draft tokens
    text: bytes = b""
    spelled: list[int] = field(default_factory=list)


def common_tokens(target: Vocabulary, draft: Vocabulary) -> dict[int, int]:
    """Target id -> draft id of the tokens that append the same bytes, and of specials that mean the same.

    Injective: of several ids with the same bytes the first one stands for all, on either side.
    """
    first: dict[bytes, int] = {}
    for i, token in enumerate(draft.tokens):
        if token:
            first.setdefault(token, i)
    found: dict[int, int] = {}
    for i, token in enumerate(target.tokens):
        if token and token in first:
            found[i] = first.pop(token)
    taken = set(found.values())
    for i, j in common_special(target, draft).items():
        if j not in taken:
            taken.add(j)
            found[i] = j
    return found


def _draw(processed: Processed, live: Seq[Proposal]) -> tuple[Tensor, Tensor]:
    """Next draft of each row [N], and the rows [N, V] they were drawn from. Invariant rows share the target's noise."""
    if all(p.sequence.sampling.greedy for p in live):
        return processed.choices(), processed.logits  # all are point masses: nothing was drawn from any row
    return draw(processed, live), processed.probabilities()


def _common(a: Seq[int], b: Seq[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    return n if a[:n] == b[:n] else next(i for i in range(n) if a[i] != b[i])
