"""An engine's faces: a call, a stream, a batch, a ticket, in threads and in event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from constrained_spec.api import Engine, Options
from constrained_spec.errors import (
    ConfigError,
    DeadlineError,
    EngineError,
    OverloadedError,
    RequestCancelled,
    RequestError,
)
from constrained_spec.grammars.compile import Regex

pytestmark = pytest.mark.model
ASK = "Ada Lovelace was born in"
CODE = Regex(r"[A-Z]{2}-[0-9]{3}")
SHORT: dict[str, Any] = {"max_tokens": 12}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine.load("smollm2-135m", slots=2, capacity=256, queue=1, check=True)
    yield engine
    engine.close()


def test_every_face_gives_the_same_text(engine: Engine) -> None:
    whole = engine.generate(ASK, CODE, **SHORT)
    pieces = list(engine.stream(ASK, CODE, **SHORT))
    ticket = engine.submit(engine.encode(ASK), CODE, **SHORT)

    async def later() -> tuple[str, str]:
        result = await engine.agenerate(ASK, CODE, **SHORT)
        return result.text, "".join([piece.text async for piece in engine.astream(ASK, CODE, **SHORT)])

    assert whole.text == "".join(p.text for p in pieces)
    assert [t for p in pieces for t in p.tokens] == list(whole.tokens)
    assert pieces[-1].result is not None
    assert pieces[-1].result.text == whole.text
    assert ticket.result().tokens == whole.tokens
    assert ticket.result() is ticket.result()
    assert [p.text for p in ticket] == [p.text for p in pieces]
    assert anyio.run(later) == (whole.text, whole.text)


def test_a_batch_keeps_its_order_and_may_be_longer_than_the_queue(engine: Engine) -> None:
    prompts = [f"{ASK} {year}" for year in (1815, 1852, 1843, 1900, 1912)]
    results = engine.batch(prompts, CODE, **SHORT)
    assert [r.tokens for r in results] == [engine.generate(p, CODE, **SHORT).tokens for p in prompts]


def test_choices_of_one_seed_differ_and_repeat(engine: Engine) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.5, "seed": 5}
    first = [r.text for r in engine.batch([ASK] * 4, None, **options)]
    again = [engine.generate(ASK, None, **options, choice=i).text for i in range(4)]
    assert first == again
    assert len(set(first)) > 1


def test_pieces_carry_log_probabilities_and_what_was_judged(engine: Engine) -> None:
    pieces = list(engine.stream(ASK, CODE, **SHORT, logprobs=2, inspect=True))
    result = pieces[-1].result
    assert result is not None
    assert [entry for p in pieces for entry in p.logprobs] == list(result.logprobs)
    place = 0
    for piece in pieces:
        assert piece.inspection is not None
        assert piece.inspection.first == place
        judged = piece.inspection.places
        assert [j.token for j in judged][: len(piece.tokens)] == list(piece.tokens)
        assert all(j.accepted == (j.draft == j.token) for j in judged if j.draft is not None)
        assert all(j.legal is not None and j.legal >= len([p for _, p in j.top if p > 0]) for j in judged[:-1])
        for j in judged:
            assert j.p is None or 0 <= j.p <= 1
            assert abs(sum(p for _, p in j.top)) <= 1 + 1e-6
        place += len(piece.tokens)


def test_leaving_a_stream_frees_its_slot(engine: Engine) -> None:
    streams = [engine.stream(ASK, max_tokens=200, ignore_eos=True) for _ in range(2)]
    for stream in streams:
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert engine.generate(ASK, CODE, **SHORT).finish_reason == "stop"
    assert engine.snapshot().running == 0


def test_a_cancelled_task_cancels_its_request(engine: Engine) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(engine.agenerate(ASK, max_tokens=200, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # On a busy machine it may not even have begun when it is cancelled.
        with anyio.fail_after(60):
            while (now := engine.snapshot()).running or now.finished.get("cancelled", 0) == before:
                await asyncio.sleep(0.01)

    before = engine.snapshot().finished.get("cancelled", 0)
    anyio.run(give_up)
    assert engine.snapshot().finished["cancelled"] == before + 1


def test_waiting_for_a_cancelled_request_says_so(engine: Engine) -> None:
    ticket = engine.submit(ASK, max_tokens=200, ignore_eos=True)
    threading.Timer(0.05, ticket.cancel).start()
    with pytest.raises(RequestCancelled):
        for _ in ticket:
            pass
    with pytest.raises(RequestCancelled):
        ticket.result()


def test_a_deadline_and_a_timeout(engine: Engine) -> None:
    with pytest.raises(DeadlineError):
        engine.generate(ASK, max_tokens=200, ignore_eos=True, deadline=0.05)
    ticket = engine.submit(ASK, max_tokens=200, ignore_eos=True)
    with pytest.raises(TimeoutError):
        ticket.result(timeout=0.02)
    ticket.cancel()


def test_a_full_queue_refuses_and_loses_nothing(engine: Engine) -> None:
    tickets, waits = [], []
    for _ in range(8):
        try:
            tickets.append(engine.submit(ASK, max_tokens=30, ignore_eos=True))
        except OverloadedError as error:
            waits.append(error.retry_after)
    assert waits
    assert min(waits) >= 1
    assert all(ticket.result().usage.completion_tokens == 30 for ticket in tickets)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"speculation": "sometimes"}, "speculation"),
        ({"choice": -1}, "choice"),
        ({"priority": "high"}, "priority"),
        ({"deadline": 0}, "deadline"),
        ({"namespace": 3}, "namespace"),
    ],
)
def test_options_are_checked_at_once(engine: Engine, options: Options, param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        engine.submit(ASK, **options)
    assert refused.value.param == param


def test_ids_are_checked(engine: Engine) -> None:
    with pytest.raises(RequestError, match="not one of the model's"):
        engine.submit([1, 10**6])


def test_target_only_by_default_and_by_request() -> None:
    engine = Engine.load("smollm2-135m", capacity=256, speculation="off")
    plain, fast = engine.generate(ASK, CODE, **SHORT), engine.generate(ASK, CODE, **SHORT, speculation="fixed")
    assert (plain.speculation.mode, plain.speculation.proposed) == ("off", 0)
    assert fast.speculation.mode == "fixed"
    assert fast.speculation.proposed > 0
    assert plain.tokens == fast.tokens


def test_a_draft_model_that_cannot_be_loaded() -> None:
    with pytest.raises(Exception, match="no-such"):
        Engine.load("smollm2-135m", draft_model="/no-such-model", require_drafter=True)
    with pytest.warns(RuntimeWarning, match="without the draft model"):
        engine = Engine.load("smollm2-135m", capacity=256, draft_model="/no-such-model")
    assert "no-such" in engine.fallbacks["drafter-load"]
    result = engine.generate(ASK, CODE, **SHORT, drafter="model")
    assert result.text
    assert result.speculation.mode == "off"
    assert result.speculation.disabled_reason is not None
    assert "no-such" in result.speculation.disabled_reason


def test_a_failed_self_check_means_target_only(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    monkeypatch.setattr(type(engine.model), "fingerprint", lambda self, slot: object())
    with pytest.warns(RuntimeWarning, match="speculation is off"):
        careful = Engine(engine.model, check=True)
    result = careful.generate(ASK, CODE, **SHORT)
    assert result.speculation.proposed == 0
    assert "self-check" in (result.speculation.disabled_reason or "")


def test_a_closed_engine_refuses_and_a_forgotten_one_ends_its_thread() -> None:
    engine = Engine.load("smollm2-135m", capacity=256)
    engine.generate(ASK, CODE, **SHORT)
    thread = engine._worker._thread
    assert thread is not None
    gone = weakref.ref(engine)
    worker = engine._worker
    del engine
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(EngineError, match="closed"):
        worker.call(lambda: None)
