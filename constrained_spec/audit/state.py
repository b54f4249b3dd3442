"""The state ledger on the real engine: rejections are forced, and what they left is compared with target-only runs.

A watching drafter sees every sequence at the start of each round. At temperature 0 both runs commit the same tokens, so
their participants must be equal wherever their outputs are equally long. The bits of keys and values hang on block
shapes; of the slots the length is compared, and the log-probabilities of the next tokens stand for their contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from constrained_spec.api import Engine, Result
from constrained_spec.audit.drafters import Observer, ScriptDrafter, Snapshot
from constrained_spec.audit.plants import PLANTS
from constrained_spec.audit.replay import exact_replay
from constrained_spec.audit.subject import TARGET_ONLY, Subject, generate
from constrained_spec.drafters.base import Drafter
from constrained_spec.errors import ConstrainedSpecError
from constrained_spec.grammars.compile import Constraint, JsonSchema, Regex, compile_constraint

PROMPT = "Monday, Tuesday,"
PENALTIES: dict[str, Any] = {"presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
LOGPROBS = 5
_ATTEMPTS = 3  # at a preemption: whether a request still runs when a more urgent one comes is a matter of time
_SHOWN = 10  # mismatches that are reported, at most


@dataclass(frozen=True, slots=True)
class Probe:
    """A greedy request whose drafts are rejected on purpose."""

    name: str
    constraint: Constraint | None
    options: dict[str, Any]


PROBES = (
    Probe("regex", Regex("[a-z]{4,9} [0-9]{2,4}[a-z]{3,6}"), {"max_tokens": 24, **PENALTIES}),
    Probe(
        "schema",
        JsonSchema({
            "type": "object",
            "properties": {"day": {"type": "string", "maxLength": 12}, "open": {"type": "boolean"}},
            "required": ["day", "open"],
            "additionalProperties": False,
        }),
        {"max_tokens": 32, **PENALTIES},
    ),
    Probe("free text", None, {"max_tokens": 16, "stop": ("###",), **PENALTIES}),
)  # fmt: skip


@dataclass(slots=True)
class Comparison:
    """What a run and its target-only twin differed in."""

    compared: int = 0
    recovered: int = 0
    max_logprob_difference: float = 0.0
    near_ties: int = 0  # texts that part where the target's two best tokens are as close as its kernels are apart
    mismatches: list[str] = field(default_factory=list)

    def add(self, other: Comparison) -> None:
        self.compared += other.compared
        self.recovered += other.recovered
        self.max_logprob_difference = max(self.max_logprob_difference, other.max_logprob_difference)
        self.near_ties += other.near_ties
        self.mismatches += other.mismatches

    def evidence(self) -> dict[str, Any]:
        return {
            "compared": self.compared, "rejections": self.recovered, "failed": len(self.mismatches),
            "mismatches": self.mismatches[:_SHOWN], "max_logprob_difference": self.max_logprob_difference,
            "near_ties": self.near_ties,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baseline:
    """The target-only twin: its result, and its state by output length."""

    result: Result[Any]
    states: dict[tuple[int, ...], Snapshot]  # by output
    tie: float  # log-probabilities closer than this may change places between block shapes


def observed(engine: Engine, probe: Probe, observer: Observer, gamma: int) -> Result[Any]:
    """One run of ``probe`` by the observer's drafter."""
    return generate(
        engine, PROMPT, probe.constraint, drafter=observer, gamma=gamma, speculation="fixed", logprobs=LOGPROBS,
        **probe.options,
    )  # fmt: skip


def tolerance(dtype: torch.dtype) -> float:
    """How far log-probabilities of one token may be apart between block shapes, by the dtype of the weights."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 0.15


def baseline(engine: Engine, probe: Probe, inner: Drafter) -> Baseline:
    """The twin, with ``inner`` attached and silent, so that its own state is there to compare."""
    observer = Observer(inner, silent=True)
    result = observed(engine, probe, observer, 1)
    return Baseline(result, {s.output: s for s in observer.snapshots}, tolerance(engine.model.dtype))


def compare(twin: Baseline, result: Result[Any], snapshots: Sequence[Snapshot], where: str) -> Comparison:
    """Tokens, end, states behind equal outputs, and the log-probability of every token up to the first difference."""
    found = Comparison(recovered=result.speculation.recovered)
    same = common_length(result.tokens, twin.result.tokens)
    if result.tokens != twin.result.tokens or result.finish_reason != twin.result.finish_reason:
        if is_tie(twin, same):
            found.near_ties += 1
        else:
            found.mismatches.append(f"{where}: another text or end than target-only")
    for mine in snapshots:
        theirs = twin.states.get(mine.output)
        if theirs is None or not mine.output:
            continue
        found.compared += 1
        names = [name for name in theirs.prints if mine.prints.get(name) != theirs.prints[name]]
        if mine.ahead != theirs.ahead:
            names.append("the target's slot")
        if mine.stale_caches:
            names.append("a draft slot")
        found.mismatches += [f"{where}: {name} after {len(mine.output)} tokens" for name in names]
    for mine_p, theirs_p in list(zip(result.logprobs, twin.result.logprobs, strict=False))[:same]:
        difference = abs(mine_p.logprob - theirs_p.logprob)
        found.max_logprob_difference = max(found.max_logprob_difference, difference)
    return found


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def is_tie(twin: Baseline, place: int) -> bool:
    """Whether the target's two best tokens at ``place`` are within the drift of its kernels."""
    if place >= len(twin.result.logprobs):
        return False
    best = [p for _, p in twin.result.logprobs[place].top[:2]]
    return len(best) == 2 and best[0] - best[1] <= 2 * twin.tie


def forced_rejections(engine: Engine, probe: Probe, twin: Baseline, cuts: Sequence[int], gamma: int) -> Comparison:
    """One run per cut: in every block exactly the first ``cut`` drafts stand."""
    found = Comparison()
    for cut in cuts:
        observer = Observer(ScriptDrafter(twin.result.tokens, gamma, cut))
        where = f"{probe.name}, cut {cut}"
        try:
            result = observed(engine, probe, observer, gamma)
        except (ConstrainedSpecError, AssertionError) as error:
            found.mismatches.append(f"{where}: {type(error).__name__}: {error}")
            continue
        found.add(compare(twin, result, observer.snapshots, where))
    return found


def every_cut(subject: Subject) -> dict[str, Any]:
    """Rejections at every place of a block, on every probe."""
    gamma = subject.effort.cut_gamma
    cuts = Comparison()
    with subject.engine() as engine:
        for probe in PROBES:
            twin = baseline(engine, probe, ScriptDrafter((), 0, 0))
            cuts.add(forced_rejections(engine, probe, twin, range(gamma + 1), gamma))
    return cuts.evidence()


def audited_drafter(subject: Subject) -> dict[str, Any]:
    """The audited drafter itself, watched, its own state included."""
    total = Comparison()
    with subject.engine() as engine:
        for probe in PROBES:
            grammar = probe.constraint and compile_constraint(probe.constraint, subject.model.vocabulary)
            drafter = subject.named_drafter(grammar.key if grammar else None)
            if drafter is None:
                return {"missing": "there is no drafter to watch"}
            try:
                twin = baseline(engine, probe, drafter)
                observer = Observer(drafter)
                result = observed(engine, probe, observer, subject.gamma)
            except (ConstrainedSpecError, AssertionError) as error:
                total.mismatches.append(f"{probe.name}: {type(error).__name__}: {error}")
                continue
            total.add(compare(twin, result, observer.snapshots, probe.name))
    return total.evidence()


def rejected_suffix(subject: Subject) -> dict[str, Any]:
    """An EOS and a stop string among drafts that are rejected must have no effect."""
    with subject.engine() as engine:
        return _rejected_suffix(subject, engine)


def _rejected_suffix(subject: Subject, engine: Engine) -> dict[str, Any]:
    probe, vocabulary = PROBES[-1], subject.model.vocabulary
    twin = baseline(engine, probe, ScriptDrafter((), 0, 0))
    wrong = {"eos": list(vocabulary.eos_ids[:1]), "stop": vocabulary.encode("###")}
    rows: dict[str, Any] = {}
    for name, tokens in wrong.items():
        if not tokens:
            continue
        found = Comparison()
        for cut in (0, 1, 2):
            observer = Observer(ScriptDrafter(twin.result.tokens, 4, cut, wrong=tokens))
            try:
                result = observed(engine, probe, observer, 4 + len(tokens))
                found.add(compare(twin, result, observer.snapshots, f"{name} at {cut}"))
            except (ConstrainedSpecError, AssertionError) as error:
                found.mismatches.append(f"{name} at {cut}: {type(error).__name__}: {error}")
        rows[name] = found.evidence()
    return rows


def preemption(subject: Subject) -> dict[str, Any]:
    """More urgent requests take the slots of running ones, which must go on as if nothing had happened."""
    slots = subject.model.slots
    options = {"max_tokens": 48, "ignore_eos": True, **subject.speculation}
    if subject.drafter == "prediction":
        options["drafter"] = "mixture"
    prompts = [f"{PROMPT} {i}" for i in range(2 * slots)]
    with subject.engine() as engine:
        alone = [generate(engine, p, **(options | TARGET_ONLY)).tokens for p in prompts]
        for _ in range(_ATTEMPTS):
            before = engine.snapshot().preemptions
            patient = [engine.submit(p, priority=0, **cast(Any, options)) for p in prompts[:slots]]
            next(iter(patient[-1]))  # they have their slots
            urgent = [engine.submit(p, priority=1, **cast(Any, options)) for p in prompts[slots:]]
            together = [ticket.result().tokens for ticket in (*patient, *urgent)]
            count = engine.snapshot().preemptions - before
            if count:
                wrong = sum(a != b for a, b in zip(alone, together, strict=True))
                return {"requests": len(prompts), "preemptions": count, "different": wrong}
    return {"missing": f"no request was preempted in {_ATTEMPTS} attempts"}


def leaks(subject: Subject) -> list[dict[str, Any]]:
    """Every fault that the state ledger must see, planted into the real engine beside the audited system."""
    probe = PROBES[0]
    with subject.engine() as engine:
        twin = baseline(engine, probe, ScriptDrafter((), 0, 0))
    rows = []
    for plant in PLANTS.values():
        if plant.ledger != "state":
            continue
        with subject.engine() as engine, plant.active():
            found = forced_rejections(engine, probe, twin, (0, 1), subject.effort.cut_gamma)
        with plant.active():
            exact = exact_replay()
        rows.append({
            "plant": plant.name, "what": plant.what, "detected": bool(found.mismatches) and exact["failed"] > 0,
            "on_the_engine": found.mismatches[:3], "in_the_replay": exact["mismatches"][:3],
        })  # fmt: skip
    return rows
