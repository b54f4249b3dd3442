"""The operating envelope of a manifest: what an engine may speculate with, and up to which load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from constrained_spec.api import Engine
from constrained_spec.audit.manifest import read_manifest


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What of a running engine a manifest is about."""

    weights_digest: str
    vocabulary_digest: str
    numerics: str
    draft_digest: str | None = None


def facts_of(engine: Engine) -> EngineFacts:
    """Reads every weight once, to name it."""
    model, draft = engine.model, engine.draft_model
    return EngineFacts(
        model.weights_digest(),
        model.vocabulary.digest,
        model.numerics,
        None if draft is None else draft.weights_digest(),
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """May a request speculate? ``reason`` says why not, or under which cell it may."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured load."""

    suite: str
    concurrency: int
    release: bool


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a manifest allows."""

    verdict: str
    facts: EngineFacts
    drafter: str
    verifier: str
    gamma: int
    cells: tuple[Cell, ...]

    def allows(
        self, facts: EngineFacts, drafter: str, verifier: str, concurrency: int, *, gamma: int | None = None,
        workload: str | None = None, custom_processors: bool = False,
    ) -> Decision:  # fmt: skip
        """May this engine draft so, with ``concurrency`` requests at once?

        Between measured loads the next higher one decides. Without a ``workload`` every suite must be released there.
        ``custom_processors``: the request brings processors of its own, which no audit has seen.
        """
        reason = self._mismatch(facts, drafter, verifier, gamma, custom_processors)
        if reason is not None:
            return Decision(False, reason)
        levels = sorted({c.concurrency for c in self.cells})
        level = next((x for x in levels if x >= concurrency), None)
        if level is None:
            most = levels[-1] if levels else 0
            return Decision(False, f"concurrency {concurrency} lies beyond the envelope, which ends at {most}")
        here = [c for c in self.cells if c.concurrency == level and workload in (None, c.suite)]
        if not here:
            return Decision(False, f"the workload {workload!r} was not audited")
        slow = sorted(c.suite for c in here if not c.release)
        if slow:
            return Decision(False, f"speculation is off at concurrency {level} for {', '.join(slow)}")
        return Decision(True, f"released at concurrency {level}")

    def _mismatch(
        self, facts: EngineFacts, drafter: str, verifier: str, gamma: int | None, custom_processors: bool
    ) -> str | None:
        if self.verdict != "release":
            return f"the manifest's verdict is {self.verdict!r}, not 'release'"
        own = self.facts
        for name, mine, theirs in (
            ("target weights", own.weights_digest, facts.weights_digest),
            ("vocabulary", own.vocabulary_digest, facts.vocabulary_digest),
            ("numerics", own.numerics, facts.numerics),
            ("draft weights", own.draft_digest, facts.draft_digest),
            ("drafter", self.drafter, drafter),
            ("verifier", self.verifier, verifier),
        ):
            if mine != theirs:
                return f"{name}: the manifest was made for {mine}, here it is {theirs}"
        if gamma is not None and gamma > self.gamma:
            return f"gamma {gamma} lies beyond the audited {self.gamma}"
        if custom_processors:
            return "custom processors were not audited"
        return None


def load(path: Path | str) -> Envelope:
    """The envelope of a manifest file. Raises ``ConfigError`` for what is no manifest or was changed by hand."""
    m = read_manifest(Path(path))
    target, speculation = m["target"], m["speculation"]
    return Envelope(
        verdict=m["verdict"],
        facts=EngineFacts(
            target["weights_digest"], target["vocabulary_digest"], target["numerics"], speculation["draft_digest"]
        ),
        drafter=speculation["drafter"],
        verifier=speculation["verifier"],
        gamma=speculation["gamma"],
        cells=_cells(m["envelope"]),
    )


def _cells(rows: Sequence[dict[str, object]]) -> tuple[Cell, ...]:
    return tuple(Cell(str(r["suite"]), int(str(r["concurrency"])), r["decision"] == "release") for r in rows)
