"""Sampled regression on the real engine: outputs of many seeds against their exact probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from constrained_spec.api import Engine
from constrained_spec.audit.drafters import GuessModel, ScriptDrafter
from constrained_spec.audit.exact_law import Path, enumerate_law
from constrained_spec.audit.plants import PLANTS, Plant
from constrained_spec.audit.spaces import PROMPT, SPACE_OF_PLANT, SPACES, SmallSpace
from constrained_spec.audit.statistics import Fit, detectable_tv, goodness_of_fit, holm
from constrained_spec.audit.subject import Subject, generate, in_parallel
from constrained_spec.audit.thresholds import DETECTED, FAMILY_ALPHA, POWER
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.errors import ConstrainedSpecError
from constrained_spec.grammars.compile import compile_constraint

CHUNK = 50
SAMPLED_GAMMA = 3
_REASONS = 3  # of a switched-off drafter that are reported, at most
_SEEDS = 1 << 20  # seeds of one case do not meet those of another


@dataclass(frozen=True, slots=True)
class Sampled:
    """Outputs of one case, and why a drafter was switched off, if one was."""

    counts: Counter[Path]
    disabled: tuple[str, ...]
    proposed: int
    accepted: int


def exact_laws(subject: Subject) -> dict[str, dict[Path, float]]:
    """The law of every small space, from the target alone."""
    subject.clear()
    ids = subject.model.encode(PROMPT)
    laws = {}
    for space in SPACES:
        grammar = compile_constraint(space.constraint, subject.model.vocabulary)
        laws[space.name] = enumerate_law(subject.model, subject.pipeline, ids, grammar, Sampling(**space.options))
    return laws


def guesser(subject: Subject) -> ModelDrafter:
    """A draft model that is wrong on purpose."""
    model = subject.model
    guess = GuessModel(model.vocabulary, slots=model.slots, capacity=model.capacity, device=model.device)
    return ModelDrafter(guess, subject.pipeline, model.vocabulary)


def repeating(law: dict[Path, float]) -> ScriptDrafter:
    """Drafts the output that says one token twice, of the likeliest such token."""
    first: dict[int, float] = {}
    for path, chance in law.items():
        first[path[0]] = first.get(path[0], 0.0) + chance
    script = max((path for path in law if path[:1] == path[1:2]), key=lambda path: (first[path[0]], law[path]))
    return ScriptDrafter(script, SAMPLED_GAMMA, SAMPLED_GAMMA)


def sample(
    engine: Engine, space: SmallSpace, seeds: Sequence[int], drafter: str | Drafter, verifier: str, gamma: int
) -> Sampled:
    """One output per seed."""
    options = {**space.options, "drafter": drafter, "verifier": verifier, "gamma": gamma, "speculation": "fixed"}

    def one(seed: int) -> Any:
        return generate(engine, PROMPT, space.constraint, seed=seed, **options)

    results = in_parallel(one, seeds, engine.model.slots)
    disabled = [r.speculation.disabled_reason for r in results if r.speculation.disabled_reason]
    return Sampled(
        Counter(r.tokens for r in results),
        tuple(sorted(set(disabled))[:_REASONS]),
        sum(r.speculation.proposed for r in results),
        sum(r.speculation.accepted for r in results),
    )


def regression(subject: Subject, laws: dict[str, dict[Path, float]]) -> dict[str, Any]:
    """Every small space with the audited drafter and with one that is wrong on purpose, tested as one family."""
    cases: list[dict[str, Any]] = []
    fits: list[Fit] = []
    with subject.engine() as engine:
        drafters: dict[str, str | Drafter] = {subject.drafter: _usable(subject), "wrong on purpose": guesser(subject)}
        pairs = [(space, kind) for space in SPACES for kind in drafters]
        for number, (space, kind) in enumerate(pairs):
            seeds = range(number * _SEEDS, number * _SEEDS + subject.effort.samples)
            gamma = subject.gamma if kind == subject.drafter else SAMPLED_GAMMA
            seen = sample(engine, space, seeds, drafters[kind], subject.verifier, gamma)
            law = laws[space.name]
            fits.append(goodness_of_fit(seen.counts, law))
            cases.append(_case(space, kind, seen, law, fits[-1], len(pairs), subject))
    for case, adjusted in zip(cases, holm([fit.p_value for fit in fits]), strict=True):
        case["p_adjusted"] = adjusted
    return {
        "family_alpha": FAMILY_ALPHA, "power": POWER, "prompt": PROMPT, "cases": cases,
        "worst_p_adjusted": min(case["p_adjusted"] for case in cases),
        "detectable_tv": max(case["detectable_tv"] for case in cases),
        "disabled": sorted({reason for case in cases for reason in case["disabled"]})[:_REASONS],
    }  # fmt: skip


def _usable(subject: Subject) -> str:
    """The audited drafter; these requests have no prediction, so one that needs it is replaced by a mixture."""
    return "mixture" if subject.drafter == "prediction" else subject.drafter


def _case(
    space: SmallSpace, kind: str, seen: Sampled, law: dict[Path, float], fit: Fit, family: int, subject: Subject
) -> dict[str, Any]:
    vocabulary = subject.model.vocabulary
    return {
        "space": space.name, "drafter": kind, "verifier": subject.verifier, "options": _plain(space.options),
        "constraint": repr(space.constraint), "outputs": len(law), "samples": fit.samples, "cells": fit.cells,
        "g": fit.statistic if fit.impossible == 0 else None, "p": fit.p_value, "impossible": fit.impossible,
        "tv": fit.tv, "tv_interval": [fit.tv_low, fit.tv_high],
        "detectable_tv": detectable_tv(fit.samples, fit.cells, FAMILY_ALPHA / family),
        "proposed": seen.proposed, "accepted": seen.accepted, "disabled": list(seen.disabled),
        "frequencies": [
            {"text": vocabulary.bytes_of(path).decode(errors="replace"), "tokens": list(path), "law": p,
             "seen": seen.counts.get(path, 0)}
            for path, p in sorted(law.items(), key=lambda item: -item[1])
        ],
    }  # fmt: skip


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}


def control(subject: Subject, plant: Plant, laws: dict[str, dict[Path, float]]) -> dict[str, Any]:
    """Plant a fault beside the audited system and look whether the regression sees it.

    The rule is ``coupling`` whatever was audited: a verifier without a residual has none to draw wrongly from.
    """
    space = SPACE_OF_PLANT[plant.name]
    counts: Counter[Path] = Counter()
    disabled: set[str] = set()
    error = None
    drafter: Drafter = guesser(subject)
    if plant is PLANTS["skipped-penalty"]:
        # It shows only behind a draft that stands, which those that are wrong on purpose seldom do.
        drafter = repeating(laws[space.name])
    with subject.engine() as engine, plant.active():
        for start in range(0, subject.effort.control_samples, CHUNK):
            try:
                seen = sample(engine, space, range(start, start + CHUNK), drafter, "coupling", SAMPLED_GAMMA)
            except ConstrainedSpecError as failure:
                error = f"{type(failure).__name__}: {failure}"
                break
            counts += seen.counts
            disabled |= set(seen.disabled)
            if disabled or goodness_of_fit(counts, laws[space.name]).p_value < DETECTED:
                break
    fit = goodness_of_fit(counts, laws[space.name]) if counts else None
    found = bool(disabled) or error is not None or (fit is not None and fit.p_value < DETECTED)
    return {
        "plant": plant.name, "what": plant.what, "detected": found, "samples": sum(counts.values()),
        "p": None if fit is None else fit.p_value, "tv": None if fit is None else fit.tv,
        "disabled": sorted(disabled), "error": error,
    }  # fmt: skip


def controls(subject: Subject, laws: dict[str, dict[Path, float]]) -> list[dict[str, Any]]:
    """Every fault that the probability ledger must see."""
    return [control(subject, plant, laws) for plant in PLANTS.values() if plant.ledger == "probability"]
