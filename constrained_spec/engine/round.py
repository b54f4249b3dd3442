"""One round: propose, ONE target forward, pipeline, verify, commit. DESIGN section 4."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.coins import Role
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import propose_guarded
from constrained_spec.errors import DeadEndError
from constrained_spec.processors.pipeline import Pipeline, Processed
from constrained_spec.state.sequence import Sequence, TokenLogprob
from constrained_spec.state.transaction import Commit, Transaction
from constrained_spec.verify import Coupling, Verdict, block, coupling, gumbel_choices, match, typical


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part in a round. ``drafter`` None means target-only; ``gamma`` bounds the drafts."""

    sequence: Sequence
    drafter: Drafter | None
    gamma: int
    verifier: str  # one of config.VERIFIERS


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of wall clock spent in one round."""

    propose: float
    forward: float
    masks: float
    total: float

    @property
    def overhead(self) -> float:
        """Everything but the target's forward and the grammar masks."""
        return self.total - self.forward - self.masks


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did: per row its commit, or the error that left the row untouched."""

    outcomes: tuple[Commit | DeadEndError, ...]
    times: RoundTimes


def run_round(model: LanguageModel, pipeline: Pipeline, rows: Seq[Row]) -> Round:
    """Advance every row by at least one committed token. A row that fails is rolled back alone."""
    start = time.perf_counter()
    masks = -sum(r.sequence.mask_seconds for r in rows)
    with ExitStack() as stack:
        proposals = [Proposal(stack.enter_context(Transaction(r.sequence)), r.gamma, r.verifier) for r in rows]
        _propose(rows, proposals)
        proposed = time.perf_counter()
        blocks = [
            Block(p.sequence.slot, p.sequence.history.tokens[p.sequence.kv.length :], want=len(p.tokens) + 1)
            for p in proposals
        ]
        logits = model.score(blocks)
        scored = time.perf_counter()
        outcomes = _verify_and_commit(pipeline, rows, proposals, logits)
    masks += sum(r.sequence.mask_seconds for r in rows)
    end = time.perf_counter()
    return Round(outcomes, RoundTimes(proposed - start, scored - proposed, masks, end - start))


def _propose(rows: Seq[Row], proposals: Seq[Proposal]) -> None:
    by_drafter: dict[int, tuple[Drafter, list[Proposal]]] = {}
    for row, proposal in zip(rows, proposals, strict=True):
        if row.drafter is not None and proposal.room > 0 and row.drafter.name not in row.sequence.disabled:
            by_drafter.setdefault(id(row.drafter), (row.drafter, []))[1].append(proposal)
    for drafter, group in by_drafter.values():
        propose_guarded(drafter, group)


def _verify_and_commit(
    pipeline: Pipeline, rows: Seq[Row], proposals: Seq[Proposal], logits: Tensor
) -> tuple[Commit | DeadEndError, ...]:  # logits [N, V], the rows of each proposal's positions in turn
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
    start = torch.tensor(first, device=logits.device)
    verdict = _verify(rows, proposals, processed, start)
    # A row is dead if any place up to its cut has no distribution; places behind the cut do not matter.
    dead = processed.dead.long()
    until = dead.cumsum(0)
    bad = until[start + verdict.accepted] - until[start] + dead[start]
    # The round's one device sync.
    accepted, tokens, broken = torch.stack((verdict.accepted, verdict.token, bad)).tolist()

    outcomes: list[Commit | DeadEndError] = []
    for i, p in enumerate(proposals):
        if broken[i]:
            outcomes.append(_dead_end(p))
            continue
        run = [*p.tokens[: accepted[i]], tokens[i]]
        mode = p.sequence.sampling.logprobs_mode
        scores = raw if mode == "raw" else processed.logits
        outcomes.append(p.tx.commit(accepted[i], tokens[i], _logprobs(p.sequence, run, scores[first[i] :])))
    return tuple(outcomes)


def _verify(rows: Seq[Row], proposals: Seq[Proposal], processed: Processed, start: Tensor) -> Verdict:
    device = processed.logits.device
    gamma = max(len(p.tokens) for p in proposals)
    draft = torch.tensor([p.tokens + [0] * (gamma - len(p.tokens)) for p in proposals], dtype=torch.long, device=device)
    lengths = torch.tensor([len(p.tokens) for p in proposals], device=device)
    draft = draft.view(len(proposals), gamma)

    if all(r.sequence.sampling.greedy for r in rows):
        return match(processed.choices(), start, draft, lengths)
    probabilities = processed.probabilities()
    verdict: Verdict | None = None
    for kind in sorted({r.verifier for r in rows}):
        if kind == "invariant":
            own = match(_invariant_choices(proposals, probabilities), start, draft, lengths)
        elif kind == "typical":
            own = typical(probabilities, start, draft, lengths, _draw_coins(proposals, device))
        else:
            judge = {"coupling": coupling, "block": block}[kind]
            own = _couple(judge, proposals, probabilities, start, draft, lengths)
        if verdict is None:
            verdict = own
            continue
        pick = torch.tensor([r.verifier == kind for r in rows], device=device)
        verdict = Verdict(
            torch.where(pick, own.accepted, verdict.accepted), torch.where(pick, own.token, verdict.token)
        )
    assert verdict is not None
    return verdict


def _draw_coins(proposals: Seq[Proposal], device: torch.device) -> Tensor:
    """One draw per round: the recovered or the bonus token, never both. [B] float64."""
    coins = [p.sequence.coins.uniform(Role.RECOVER, p.round, p.first) for p in proposals]
    return torch.tensor(coins, dtype=torch.float64, device=device)


def _couple(
    judge: Coupling, proposals: Seq[Proposal], p: Tensor, start: Tensor, draft: Tensor, lengths: Tensor
) -> Verdict:
    gamma = draft.shape[1]
    q_rows: list[Tensor] = []
    q_index, accept = [], []
    for proposal in proposals:
        s, n = proposal.sequence, len(proposal.tokens)
        index = []
        for row in proposal.q:
            index.append(-1 if row is None else len(q_rows))
            if row is not None:
                q_rows.append(row)
        q_index.append(index + [-1] * (gamma - n))
        coins = s.coins.uniforms(Role.ACCEPT, proposal.round, proposal.first, n).tolist() if n else []
        accept.append(coins + [0.0] * (gamma - n))
    device = p.device
    return judge(
        p,
        start,
        draft,
        lengths,
        torch.stack(q_rows) if q_rows else None,
        torch.tensor(q_index, dtype=torch.long, device=device).view(draft.shape),
        torch.tensor(accept, dtype=torch.float64, device=device).view(draft.shape),
        _draw_coins(proposals, device),
    )


def _invariant_choices(proposals: Seq[Proposal], probabilities: Tensor) -> Tensor:  # [N, V] -> [N]
    noise = []
    for proposal in proposals:
        coins = proposal.sequence.coins
        places = range(proposal.first, proposal.first + len(proposal.tokens) + 1)
        noise += [torch.from_numpy(coins.gumbel(place, probabilities.shape[1])) for place in places]
    return gumbel_choices(probabilities, torch.stack(noise).to(probabilities.device))


def _logprobs(s: Sequence, run: list[int], scores: Tensor) -> list[TokenLogprob]:  # scores [>= len(run), V]
    """Log-probabilities of the run. At temperature 0 the processed scores are unscaled: values at temperature 1."""
    k = s.sampling.logprobs
    if k is None:
        return []
    table = scores[: len(run)].log_softmax(-1)
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
