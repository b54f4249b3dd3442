"""One round: propose, ONE target forward, pipeline, verify, commit. DESIGN section 4.

The forward is ragged: blocks of different lengths, trees, and chunks of prompts that belong to no row yet. A sequence
whose first proposal is a tree has its prompt written by a forward of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import propose_guarded
from constrained_spec.engine.inspection import Inspection, inspect
from constrained_spec.engine.judge import Decision, judge
from constrained_spec.errors import DeadEndError
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Sequence, TokenLogprob
from constrained_spec.state.transaction import Commit, Transaction
from constrained_spec.state.tree import tree_block

LONG = 32  # committed tokens that a tree block may carry in front of its tree


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part in a round. ``drafter`` None means target-only; ``gamma`` bounds the drafts."""

    sequence: Sequence
    drafter: Drafter | None
    gamma: int
    verifier: str  # one of config.VERIFIERS
    inspect: bool = False  # report what was judged, at the cost of a further device sync
    adapts: bool = True  # what it drafts may depend on whether others share the step


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of wall clock spent in one round; ``verify`` is pipeline and verdict.

    ``propose`` holds the ``masks`` and ``draft``, the forwards of draft models and trained heads.
    """

    propose: float
    draft: float
    forward: float
    masks: float
    verify: float
    total: float

    @property
    def overhead(self) -> float:
        """Everything but the forwards of the models and the grammar masks."""
        return self.total - self.forward - self.draft - self.masks


Outcome = Commit | Exception


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did: per row its commit, or the error that left the row untouched.

    ``inspections`` has an entry per row, None unless the row asked for it and committed.
    """

    outcomes: tuple[Outcome, ...]
    times: RoundTimes
    inspections: tuple[Inspection | None, ...]


def run_round(model: LanguageModel, pipeline: Pipeline, rows: Seq[Row], ahead: Seq[Block] = ()) -> Round:
    """Advance every row by at least one committed token. A row that fails is rolled back alone.

    ``ahead`` are blocks of other slots, with ``want`` 0, that the same forward writes: parts of prompts. If this
    raises, every row is as it was before, and the lengths of those other slots are the caller's to set back.
    """
    start = time.perf_counter()
    masks = -sum(r.sequence.mask_seconds for r in rows)
    draft = -sum(r.sequence.draft_seconds for r in rows)
    with ExitStack() as stack:
        alone = len(rows) == 1 and not ahead
        proposals = [
            Proposal(stack.enter_context(Transaction(r.sequence)), r.gamma, r.verifier, alone=alone and r.adapts)
            for r in rows
        ]
        _propose(rows, proposals)
        proposed = time.perf_counter()
        _write_ahead(model, proposals)
        logits = model.score([*map(_block, proposals), *ahead])
        scored = time.perf_counter()
        judged = _verify(pipeline, rows, proposals, logits) if rows else None
        verified = time.perf_counter()
        ends = [] if judged is None else _commit_all(rows, proposals, judged)
    masks += sum(r.sequence.mask_seconds for r in rows)
    draft += sum(r.sequence.draft_seconds for r in rows)
    end = time.perf_counter()
    times = RoundTimes(proposed - start, draft, scored - proposed, masks, verified - scored, end - start)
    return Round(tuple(outcome for outcome, _ in ends), times, tuple(seen for _, seen in ends))


def _propose(rows: Seq[Row], proposals: Seq[Proposal]) -> None:
    by_drafter: dict[int, tuple[Drafter, list[Proposal]]] = {}
    for row, proposal in zip(rows, proposals, strict=True):
        if row.drafter is not None and proposal.room > 0 and row.drafter.name not in row.sequence.disabled:
            by_drafter.setdefault(id(row.drafter), (row.drafter, []))[1].append(proposal)
    for drafter, group in by_drafter.values():
        propose_guarded(drafter, group)


def _write_ahead(model: LanguageModel, proposals: Seq[Proposal]) -> None:
    """Write a long prompt ahead of a tree: a forward of a tree needs a mask of all its tokens, and takes few."""
    blocks = []
    for p in proposals:
        if not p.tx.is_tree:
            continue
        pending = p.sequence.history.tokens[p.sequence.kv.length : p.tx.base]
        if len(pending) > LONG:
            blocks.append(Block(p.sequence.slot, pending[:-1], want=0))
    if blocks:
        model.score(blocks)


def _block(p: Proposal) -> Block:
    """What is committed and not yet in the slot, then the drafts."""
    s, tx = p.sequence, p.tx
    pending = s.history.tokens[s.kv.length : tx.base]
    if not tx.is_tree:
        return Block(s.slot, [*pending, *tx.drafts], want=len(tx.drafts) + 1)
    tokens, parents = tree_block(pending, tx.drafts, tx.parents)
    return Block(s.slot, tokens, want=len(tx.drafts) + 1, parents=parents)


@dataclass(frozen=True, slots=True)
class _Judged:
    """Verdicts of a round, and the scores that they and reported log-probabilities come from."""

    decisions: Seq[Decision]
    first: Seq[int]  # row of each proposal's root
    processed: Processed
    raw: Tensor  # [N, V]


def _verify(
    pipeline: Pipeline, rows: Seq[Row], proposals: Seq[Proposal], logits: Tensor
) -> _Judged:  # logits [N, V], the rows of each proposal's positions in turn
    positions = [position for p in proposals for position in p.tx.positions]
    custom = [p.sequence.processors for p in proposals for _ in p.tx.positions]
    # The pipeline edits the buffer in place, so raw values are saved before it, if any row reports them.
    wants_raw = any(
        r.sequence.sampling.logprobs is not None and r.sequence.sampling.logprobs_mode == "raw" for r in rows
    )
    raw = logits.clone() if wants_raw else logits
    processed = pipeline.process(logits, positions, custom)
    first, at = [], 0
    for p in proposals:
        first.append(at)
        at += len(p.tx.positions)
    return _Judged(judge(proposals, processed, first), first, processed, raw)


def _commit_all(rows: Seq[Row], proposals: Seq[Proposal], judged: _Judged) -> list[tuple[Outcome, Inspection | None]]:
    ends: list[tuple[Outcome, Inspection | None]] = []
    for row, p, start, decision in zip(rows, proposals, judged.first, judged.decisions, strict=True):
        if decision.dead:
            ends.append((_dead_end(p), None))
            continue
        try:
            seen = inspect(p, judged.processed, start, decision) if row.inspect else None
            ends.append((_commit(p, start, decision, judged.raw, judged.processed), seen))
        except Exception as error:  # the other rows have their verdicts, and some are committed already
            ends.append((error, None))
    return ends


def _commit(p: Proposal, start: int, decision: Decision, raw: Tensor, processed: Processed) -> Commit:
    path, token, _ = decision
    logprobs: list[TokenLogprob] = []
    sampling = p.sequence.sampling
    if sampling.logprobs is not None:
        places = [start, *(start + 1 + node for node in path)]
        scores = raw if sampling.logprobs_mode == "raw" else processed.logits
        logprobs = _logprobs(sampling.logprobs, [*(p.tokens[node] for node in path), token], scores[places])
    return p.tx.commit_path(path, token, logprobs) if p.tx.is_tree else p.tx.commit(len(path), token, logprobs)


def _logprobs(k: int, run: list[int], scores: Tensor) -> list[TokenLogprob]:  # scores [len(run), V]
    """Log-probabilities of the run. At temperature 0 the processed scores are unscaled: values at temperature 1."""
    table = scores.log_softmax(-1)
    own = table.gather(1, torch.tensor(run, device=table.device).unsqueeze(1)).squeeze(1).tolist()
    top = table.topk(k, dim=-1)
    tops = [list(zip(i, v, strict=True)) for i, v in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
    return [TokenLogprob(t, lp, tuple(best)) for t, lp, best in zip(run, own, tops, strict=True)]


def _dead_end(p: Proposal) -> DeadEndError:
    s = p.sequence
    return DeadEndError(
        f"no token is possible after {p.first} output tokens: the constraint, the suppressed ids and the model's "
        "logits leave none with positive probability",
        param="output_type" if s.matcher is not None else "logits",
        hint=f"text so far: {s.text.text[-80:]!r}",
    )
