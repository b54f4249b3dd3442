"""``--manifest``: an audit's manifest says what may speculate; everything else decodes target-only."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from constrained_spec.api import Engine, Options
from constrained_spec.audit.envelope import facts_of, load
from constrained_spec.config import DEFAULT_GAMMA


class Restriction:
    """The envelope of one manifest over one engine. Raises ``ConfigError`` for a file that is no manifest."""

    def __init__(self, manifest: Path, engine: Engine) -> None:
        self._envelope = load(manifest)
        self._facts = facts_of(engine)
        engine.speculate_where(lru_cache(1024)(self._allows_load))

    def _allows_load(self, requests: int) -> bool:
        e = self._envelope
        return e.allows(self._facts, e.drafter, e.verifier, requests).ok

    def reason(self, options: Options) -> str | None:
        """Why a request with ``options`` may not speculate, None if it may."""
        drafter = options.get("drafter", "auto")
        decision = self._envelope.allows(
            self._facts,
            drafter if isinstance(drafter, str) else drafter.name,
            options.get("verifier", "coupling"),
            self._least,
            gamma=options.get("gamma", DEFAULT_GAMMA),
            custom_processors=bool(options.get("processors")),
        )
        return None if decision.ok else decision.reason

    @property
    def _least(self) -> int:
        """The least load that is released: the rounds themselves tell how many requests run."""
        levels = sorted({cell.concurrency for cell in self._envelope.cells})
        return next((level for level in levels if self._allows_load(level)), levels[0] if levels else 1)
