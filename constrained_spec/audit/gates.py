"""Gates: each names the evidence it reads and the threshold it holds it to. What they say together is the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from constrained_spec.audit.plants import PLANTS
from constrained_spec.audit.thresholds import EXACT, FAMILY_ALPHA, FASTER, NEVER_SLOWER, SEEN
from constrained_spec.config import APPROXIMATE

State = Literal["closed", "failed", "missing"]
Verdict = Literal["release", "experiment", "approximate", "blocked"]
Ledgers = Mapping[str, Mapping[str, Any]]  # ledger -> section -> evidence


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate: ``found`` says what the evidence shows, ``missing`` which evidence is not there."""

    name: str
    ledger: str
    evidence: str
    threshold: str
    state: State
    found: str
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """How a gate reads its evidence: a bool and what was found. ``section`` must be there without an error."""

    name: str
    ledger: str
    section: str
    threshold: str
    read: Callable[[Any], tuple[bool, str]]


def _small_worlds(e: Any) -> tuple[bool, str]:
    errors = [e["max_rule_error"], *([] if e["max_code_error"] is None else [e["max_code_error"]])]
    impossible = 0 if e["extremes"] is None else e["extremes"]["kept_impossible"] + e["extremes"]["drew_impossible"]
    sound = max(errors) <= EXACT and impossible == 0 and e["wrong_rule_error"] >= SEEN
    wrong = e["wrong_rule_error"]
    return sound, f"largest error {max(errors):.1e}, {impossible} impossible tokens, a wrong rule shows {wrong:.3f}"


def _regression(e: Any) -> tuple[bool, str]:
    impossible = sum(case["impossible"] for case in e["cases"])
    sound = e["worst_p_adjusted"] >= FAMILY_ALPHA and not impossible and not e["disabled"]
    off = f", drafter switched off: {e['disabled'][0]}" if e["disabled"] else ""
    return sound, f"smallest adjusted p {e['worst_p_adjusted']:.3g} over {len(e['cases'])} cases{off}"


def _power(limit: float) -> Callable[[Any], tuple[bool, str]]:
    def read(e: Any) -> tuple[bool, str]:
        return e["detectable_tv"] <= limit, f"every bias of TV {e['detectable_tv']:.3f} is seen with 95 % power"

    return read


def _planted(ledger: str) -> Callable[[Any], tuple[bool, str]]:
    wanted = {plant.name for plant in PLANTS.values() if plant.ledger == ledger}

    def read(e: Any) -> tuple[bool, str]:
        seen = {row["plant"] for row in e if row["detected"]}
        unseen = sorted(wanted - seen)
        return not unseen, f"not seen: {', '.join(unseen)}" if unseen else f"seen: {', '.join(sorted(wanted))}"

    return read


def _identity(e: Any) -> tuple[bool, str]:
    sound = e["compared"] > 0 and e["different"] == 0 and not e["disabled"]
    off = f", drafter switched off: {e['disabled'][0]}" if e["disabled"] else ""
    return sound, f"{e['different']} of {e['compared']} texts differ ({e['tokens']} tokens){off}"


def drift_limit(numerics: str, scale: float) -> float:
    """Largest difference of a logit between block shapes that the numerics explain; a quantised block must be exact."""
    if numerics in ("float32", "float64"):
        return 1e-3 * max(1.0, scale)
    return 5e-2 * max(1.0, scale) if numerics in ("float16", "bfloat16") else 0.0


def _drift(numerics: str) -> Callable[[Any], tuple[bool, str]]:
    def read(e: Any) -> tuple[bool, str]:
        limit = drift_limit(numerics, e["scale"])
        return e["max"] <= limit, f"at most {e['max']:.2e} (limit {limit:.2e}), {e['argmax_flips']} argmaxes differ"

    return read


def _replay(e: Any) -> tuple[bool, str]:
    return e["failed"] == 0 and e["repairs"] > 0, _failures(e, e["repairs"])


def _cuts(e: Any) -> tuple[bool, str]:
    return e["failed"] == 0 and e["rejections"] > 0, _failures(e, e["rejections"])


def _failures(e: Any, repairs: int) -> str:
    first = f": {e['mismatches'][0]}" if e["mismatches"] else ""
    return f"{e['failed']} mismatches in {e['compared']} states behind {repairs} rejections{first}"


def _audited(e: Any) -> tuple[bool, str]:
    return e["failed"] == 0, _failures(e, e["rejections"])


def _next_distribution(limit: float) -> Callable[[Any], tuple[bool, str]]:
    def read(e: Any) -> tuple[bool, str]:
        found = e["max_logprob_difference"]
        return found <= limit, f"log-probabilities within {found:.1e} (limit {limit:.0e})"

    return read


def _suffix(e: Any) -> tuple[bool, str]:
    failed = sum(row["failed"] for row in e.values())
    rejected = sum(row["rejections"] for row in e.values())
    return failed == 0 and rejected > 0, f"{failed} effects of {rejected} rejected blocks with {' or '.join(e)}"


def _preemption(e: Any) -> tuple[bool, str]:
    return e["different"] == 0, f"{e['different']} of {e['requests']} texts differ after {e['preemptions']} preemptions"


def _measured(e: Any) -> tuple[bool, str]:
    return bool(e["cells"]) and bool(e["suites"]), f"{len(e['cells'])} cells against target-only"


def _faster(e: Any) -> tuple[bool, str]:
    released = [c for c in e["cells"] if c["decision"] == "release"]
    best = max((c["speedup"] for c in e["cells"]), default=0.0)
    return bool(released), f"{len(released)} of {len(e['cells'])} cells, best {best:.2f}×"


def rules(numerics: str, power: float, logprobs: float) -> tuple[Rule, ...]:
    """All gates. ``power``: TV that must be seen; ``logprobs``: how far log-probabilities may drift."""
    p, s, f = "probability", "state", "performance"
    return (
        Rule("law", p, "small_worlds", f"error <= {EXACT:.0e}, of the rule and of the running code", _small_worlds),
        Rule("sampled regression", p, "regression", f"Holm-adjusted p >= {FAMILY_ALPHA}", _regression),
        Rule("power", p, "regression", f"TV <= {power}", _power(power)),
        Rule("planted biases", p, "controls", "every one is seen", _planted(p)),
        Rule("greedy identity", p, "identity", "no text differs", _identity),
        Rule("kernel drift", p, "drift", "within the numerics", _drift(numerics)),
        Rule("exact replay", s, "exact_replay", "bit-equal at every cut", _replay),
        Rule("forced rejections", s, "cuts", "no mismatch on the engine", _cuts),
        Rule("audited drafter", s, "audited_drafter", "no mismatch on the engine", _audited),
        Rule("next distribution", s, "cuts", "log-probabilities within the drift", _next_distribution(logprobs)),
        Rule("rejected EOS and stop", s, "rejected_suffix", "no effect", _suffix),
        Rule("preemption", s, "preemption", "the same texts, after at least one preemption", _preemption),
        Rule("planted leaks", s, "leaks", "every one is seen", _planted(s)),
        Rule("matched baseline", f, "performance", "measured for every cell", _measured),
        Rule(
            "faster",
            f,
            "performance",
            f"median >= {FASTER}× and no repetition below {NEVER_SLOWER}×, in some cell",
            _faster,
        ),
    )


def judge_gates(ledgers: Ledgers, all_rules: Sequence[Rule]) -> list[Gate]:
    """Every gate. A section that is absent, failed, or says itself that something is missing leaves its gate open."""
    gates = []
    for rule in all_rules:
        evidence = ledgers.get(rule.ledger, {}).get(rule.section)
        head = (rule.name, rule.ledger, f"{rule.ledger}.{rule.section}", rule.threshold)
        if evidence is None or (isinstance(evidence, dict) and "missing" in evidence):
            reason = rule.section if evidence is None else f"{rule.section}: {evidence['missing']}"
            gates.append(Gate(*head, "missing", "nothing", reason))
        elif isinstance(evidence, dict) and "error" in evidence:
            gates.append(Gate(*head, "failed", str(evidence["error"])))
        else:
            sound, found = rule.read(evidence)
            gates.append(Gate(*head, "closed" if sound else "failed", found))
    return gates


def verdict(gates: Sequence[Gate], verifier: str) -> tuple[Verdict, list[str]]:
    """What may be done with the system, and the reasons.

    A broken or unproven state blocks. A failed or unproven law is approximate, and so is a rule that says so itself.
    What is correct and not faster is an experiment.
    """
    state = [g for g in gates if g.ledger == "state" and g.state != "closed"]
    law = [g for g in gates if g.ledger == "probability" and g.state != "closed"]
    speed = [g for g in gates if g.ledger == "performance" and g.state != "closed"]
    if state:
        return "blocked", _reasons(state)
    if law or verifier in APPROXIMATE:
        declared = [f"the verifier {verifier!r} is approximate by name"] if verifier in APPROXIMATE else []
        return "approximate", [*declared, *_reasons(law)]
    if speed:
        return "experiment", _reasons(speed)
    return "release", ["all three ledgers close"]


def _reasons(gates: Sequence[Gate]) -> list[str]:
    return [
        f"{g.name}: missing evidence: {g.missing}" if g.state == "missing" else f"{g.name}: {g.found}" for g in gates
    ]
