"""``--manifest``: what an audit did not release decodes target-only, with the same text, and the metrics say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from constrained_spec.api import Engine
from constrained_spec.audit.envelope import Cell, Envelope, facts_of
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError
from constrained_spec.server.envelope import Restriction

ASK = {
    "messages": [{"role": "user", "content": "abc abc"}], "temperature": 0, "max_tokens": 12, "regex": "(abc ){3,9}",
    "return_spec_metrics": True, "extra": {"speculation": "fixed"},
}  # fmt: skip


@pytest.fixture
def engine(make_model: Callable[..., TransformersModel]) -> Any:
    engine = Engine(make_model(2))
    yield engine
    engine.close()


@pytest.fixture
def envelope(engine: Engine) -> Envelope:
    cells = (Cell("s", 1, True), Cell("s", 2, False))
    return Envelope("release", facts_of(engine), "auto", "coupling", 24, cells)


@pytest.fixture
def serve(
    make_api: Callable[..., Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Envelope], Callable[..., Any]]:
    """An app under an envelope, as a function from a body to (text, metrics of speculation, fallbacks)."""

    def under(envelope: Envelope) -> Callable[..., Any]:
        monkeypatch.setattr("constrained_spec.server.envelope.load", lambda path: envelope)
        api = make_api(engine, manifest=Path("manifest.json"))

        def ask(**more: Any) -> Any:
            answer = api.post("/v1/chat/completions", {**ASK, **more})
            assert answer.status_code == 200, answer.text
            body = answer.json()
            return body["choices"][0]["message"]["content"], body["metrics"]["speculative_decoding"]

        return ask

    return under


def test_inside_it_speculates(serve: Any, envelope: Envelope, engine: Engine) -> None:
    _, seen = serve(envelope)()
    assert seen["num_draft_tokens"] > 0
    assert "envelope" not in engine.snapshot().fallbacks


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "experiment"},
        {"gamma": 3},
        {"drafter": "ngram"},
        {"verifier": "block"},
        {"cells": (Cell("s", 1, False), Cell("s", 2, False))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_outside_it_is_target_only(serve: Any, envelope: Envelope, engine: Engine, change: dict[str, Any]) -> None:
    inside, _ = serve(envelope)()
    text, seen = serve(replace(envelope, **change))()
    assert text == inside
    assert seen["num_draft_tokens"] == 0
    assert engine.snapshot().fallbacks["envelope"] == 1


def test_other_weights(serve: Any, envelope: Envelope, engine: Engine) -> None:
    _, seen = serve(replace(envelope, facts=replace(envelope.facts, weights_digest="0")))()
    assert seen["num_draft_tokens"] == 0
    assert "target weights" in engine.fallbacks["envelope"]


def test_a_request_may_leave_the_envelope_by_its_own_options(serve: Any, envelope: Envelope) -> None:
    ask = serve(envelope)
    _, seen = ask(extra={"speculation": "fixed", "drafter": "ngram"})
    assert seen["num_draft_tokens"] == 0
    _, seen = ask(prediction={"type": "content", "content": "abc abc abc"})
    assert seen["num_draft_tokens"] > 0


def test_a_round_of_more_requests_than_released_drafts_nothing(envelope: Envelope, engine: Engine) -> None:
    class Fixed(Restriction):
        def __init__(self) -> None:
            self._envelope, self._facts = envelope, facts_of(engine)
            engine.speculate_where(self._allows_load)

    Fixed()
    options: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "speculation": "fixed"}
    tickets = [engine.submit("abc abc abc abc", **options) for _ in range(2)]
    both = [ticket.result().speculation.proposed for ticket in tickets]
    alone = engine.generate("abc abc abc abc", **options).speculation.proposed
    assert min(both) < alone
    assert engine.snapshot().fallbacks["envelope"] >= 1


def test_what_is_no_manifest_is_refused(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    with pytest.raises(ConfigError):
        Restriction(path, engine)
