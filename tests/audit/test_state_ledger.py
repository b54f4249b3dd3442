"""The state ledger on a real engine: what it forces, what it compares, and what it calls a difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from constrained_spec.audit import state
from constrained_spec.audit.drafters import Observer, ScriptDrafter, Snapshot, snapshot
from constrained_spec.audit.subject import Subject
from constrained_spec.drafters.base import Proposal
from constrained_spec.state.sequence import TokenLogprob

GAMMA = 3


def test_the_script_is_rejected_where_it_is_told(subject: Subject) -> None:
    probe = state.PROBES[2]  # without a grammar some other token is always legal
    with subject.engine() as engine:
        twin = state.baseline(engine, probe, ScriptDrafter((), 0, 0))
        assert twin.result.speculation.proposed == 0
        for cut in range(GAMMA + 1):
            observer = Observer(ScriptDrafter(twin.result.tokens, GAMMA, cut))
            result = state.observed(engine, probe, observer, GAMMA)
            assert result.tokens == twin.result.tokens
            judged = result.speculation.by_position
            if cut < GAMMA:
                assert judged[cut][1] == 0  # nothing stands at the cut
            assert all(tried == kept for tried, kept in judged[:cut])
            assert observer.snapshots[-1].output == result.tokens


def test_every_cut_is_clean(subject: Subject) -> None:
    evidence = state.every_cut(subject)
    assert evidence["failed"] == 0 and evidence["near_ties"] == 0
    assert evidence["rejections"] > 50 and evidence["compared"] > 50
    assert evidence["max_logprob_difference"] < 1e-3


@pytest.mark.parametrize("drafter", ["auto", "ngram", "tree"])
def test_a_real_drafter_is_watched(subject: Subject, drafter: str) -> None:
    evidence = state.audited_drafter(dataclasses.replace(subject, drafter=drafter))
    assert evidence["failed"] == 0 and evidence["compared"] > 10, evidence


def test_target_only_has_nobody_to_watch(subject: Subject) -> None:
    assert "missing" in state.audited_drafter(dataclasses.replace(subject, drafter="none"))


def test_eos_and_stop_among_rejected_drafts_do_nothing(subject: Subject) -> None:
    evidence = state.rejected_suffix(subject)
    assert evidence.keys() == {"eos", "stop"}
    for row in evidence.values():
        assert row["failed"] == 0 and row["rejections"] > 10, row


def test_preempted_requests_go_on_as_if_nothing_had_been(subject: Subject) -> None:
    evidence = state.preemption(subject)
    assert evidence["preemptions"] >= 1 and evidence["different"] == 0, evidence


def test_a_difference_is_named_and_a_near_tie_is_not_one(subject: Subject) -> None:
    probe = state.PROBES[2]
    with subject.engine() as engine:
        observer = Observer(ScriptDrafter((), 0, 0), silent=True)
        twin = state.baseline(engine, probe, ScriptDrafter((), 0, 0))
        result = state.observed(engine, probe, observer, 1)
    assert state.compare(twin, result, observer.snapshots, "x").mismatches == []

    other = observer.snapshots[-1]
    wrong = dataclasses.replace(
        other, prints={**other.prints, "HistoryState": "00"}, ahead=other.ahead + 1, stale_caches=1
    )
    named = state.compare(twin, result, [wrong], "x").mismatches
    assert [m.split(" after")[0] for m in named] == ["x: HistoryState", "x: the target's slot", "x: a draft slot"]

    parted = dataclasses.replace(result, tokens=(*result.tokens[:3], result.tokens[3] + 1, *result.tokens[4:]))
    assert "another text" in state.compare(twin, parted, [], "x").mismatches[0]
    tied = [*twin.result.logprobs]
    tied[3] = TokenLogprob(1, -0.7, ((1, -0.7), (2, -0.7001)))
    near = dataclasses.replace(twin, result=dataclasses.replace(twin.result, logprobs=tuple(tied)))
    found = state.compare(near, parted, [], "x")
    assert found.near_ties == 1 and not found.mismatches


def test_snapshots_leave_the_caches_bits_out(subject: Subject) -> None:
    seen: list[Snapshot] = []

    class Watcher(ScriptDrafter):
        def propose(self, proposals: Sequence[Proposal]) -> None:
            seen.extend(snapshot(p.sequence) for p in proposals)

    with subject.engine() as engine:
        state.observed(engine, state.PROBES[2], Observer(Watcher((), 0, 0)), 1)
    assert all(not name.startswith("kv") and name != "logprobs" for s in seen for name in s.prints)
    assert {"HistoryState", "TextState", "StopState", "grammar", "finish"} <= seen[-1].prints.keys()
    assert all(s.ahead == 1 for s in seen if s.output)
