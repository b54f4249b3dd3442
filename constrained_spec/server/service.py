"""One server's engine, and the way of a plan through it: compile, submit, follow, give up."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread

from constrained_spec import __version__
from constrained_spec.api import Engine, Options, Piece, Snapshot, Ticket
from constrained_spec.errors import ConstrainedSpecError, DeadlineError
from constrained_spec.grammars.constraints import Regex
from constrained_spec.server.compile import Compiler
from constrained_spec.server.errors import HttpError
from constrained_spec.server.facts import facts_of
from constrained_spec.server.logs import failure, make_logger
from constrained_spec.server.metrics import Metrics
from constrained_spec.server.plan import Limits, ModelFacts, Plan
from constrained_spec.server.settings import Settings
from constrained_spec.server.shapes import system_fingerprint

if TYPE_CHECKING:
    from constrained_spec.server.envelope import Restriction

State = Literal["loading", "ready", "failed", "closing"]
Planner = Callable[[dict[str, Any], ModelFacts, Limits], Plan]
PLANNERS = 4  # threads that read bodies
SUBMITTERS = 8  # threads that tokenise and hand over
TAKE_PREDICTION = frozenset({"auto", "mixture", "prediction"})


@dataclass(slots=True)
class Job:
    """The outputs of one plan: ``tickets[prompt * n + choice]``. ``started`` is when the request came."""

    plan: Plan
    started: float = field(default_factory=time.perf_counter)
    tickets: list[Ticket[Any]] = field(default_factory=list)
    cancelled: bool = False

    def cancel(self) -> None:
        """Give every output up. May be called at any time, from any thread, and again."""
        self.cancelled = True
        for ticket in tuple(self.tickets):
            ticket.cancel()


class Service:
    """Holds the engine from loading to closing. ``engine`` given: it is ready at once and closed with the service."""

    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.log = make_logger(settings)
        self.created = int(time.time())
        self.state: State = "loading"
        self.reason: str | None = None  # why it failed to load
        self.fingerprint: str | None = None
        self._given = engine
        self._engine: Engine | None = None
        self._facts: ModelFacts | None = None
        self._compiler: Compiler | None = None
        self._restriction: Restriction | None = None
        self._planners = anyio.CapacityLimiter(PLANNERS)
        self._submitters = anyio.CapacityLimiter(SUBMITTERS)
        self.tokenizer = threading.Lock()  # a fast tokenizer may not be entered twice at a time
        name = settings.served_model_name[0] if settings.served_model_name else settings.model
        self.metrics = Metrics(name, self.snapshot)

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self, on_failure: Callable[[], None] | None = None) -> None:
        """Load in a thread; ``state`` says how far it is. ``on_failure`` is called when it cannot be done."""
        if self._given is not None:
            self._take(self._given)
            return
        threading.Thread(target=self._load, args=(on_failure,), daemon=True, name="load").start()

    def _load(self, on_failure: Callable[[], None] | None) -> None:
        s = self.settings
        try:
            engine = Engine.load(
                s.model, draft_model=s.draft_model, device=s.device, dtype=s.dtype, slots=s.slots, capacity=s.capacity,
                quantize=s.quantize, quantize_draft=s.quantize_draft, parts=s.parts, history_bytes=s.history_bytes,
                threads=s.threads, prefill_chunk=s.prefill_chunk, queue=s.queue, prefix_reuse=s.prefix_reuse,
                speculation=s.speculation, require_drafter=s.require_drafter, check=True,
            )  # fmt: skip
            self._take(engine)
            assert self._compiler is not None
            self._compiler.warm_up(Regex("a"))
        except Exception as error:
            self.reason = str(error) if isinstance(error, ConstrainedSpecError) else type(error).__name__
            self.state = "failed"
            self.log.error("load failed", model=s.model, reason=self.reason, **failure(error, s.log_prompts))
            if on_failure is not None:
                on_failure()

    def _take(self, engine: Engine) -> None:
        s = self.settings
        facts = facts_of(engine, s.served_model_name, fim_template=s.fim_template, tool_syntax=s.tool_syntax)
        self._compiler = Compiler(
            engine.model.vocabulary, s.budget, self.metrics, workers=s.compile_workers, waiting=s.compile_queue
        )
        model = engine.model
        self.fingerprint = system_fingerprint(model.weights_digest(), model.numerics, __version__)
        if s.manifest is not None:
            # Here, because a manifest needs the audit's extra, and serving without one does not.
            from constrained_spec.server.envelope import Restriction

            self._restriction = Restriction(s.manifest, engine)
        self._engine, self._facts = engine, facts
        if self.state == "loading":
            self.state = "ready"
            self.log.info("ready", model=model.name, slots=model.slots, capacity=model.capacity)

    async def close(self) -> None:
        """Let open requests finish, for ``shutdown_seconds`` at most, and end the engine."""
        self.state = "closing"
        engine = self._engine
        if engine is not None:
            seconds = self.settings.shutdown_seconds
            await anyio.to_thread.run_sync(lambda: engine.close(drain=seconds > 0, timeout=seconds))
        self.release()
        self.log.info("closed")

    def release(self) -> None:
        """End the compiling processes."""
        if self._compiler is not None:
            self._compiler.close()

    def snapshot(self) -> Snapshot | None:
        return None if self._engine is None else self._engine.snapshot()

    @property
    def engine(self) -> Engine:
        """Raises ``HttpError`` (503) while there is none."""
        if self._engine is None or self.state != "ready":
            raise self.not_ready()
        return self._engine

    @property
    def facts(self) -> ModelFacts:
        """Raises ``HttpError`` (503) while there are none."""
        if self._facts is None or self.state != "ready":
            raise self.not_ready()
        return self._facts

    def not_ready(self) -> HttpError:
        said = {"loading": "the model is being loaded", "closing": "the server is closing"}
        message = said.get(self.state, f"the model could not be loaded: {self.reason}")
        headers = {"retry-after": "1"} if self.state == "loading" else {}
        return HttpError(503, f"server_{self.state}", message, type_="server_error", headers=headers)

    # ---- requests -------------------------------------------------------------------------------------------------

    async def plan(self, planner: Planner, body: dict[str, Any]) -> Plan:
        """What ``body`` asks for. In a thread: a grammar of 200,000 characters takes a while to read. Raises what it is
        refused for."""
        facts = self.facts
        return await anyio.to_thread.run_sync(planner, body, facts, self.limits, limiter=self._planners)

    async def submit(self, job: Job, namespace: str) -> None:
        """Hand ``job`` to the engine, compiled, all its outputs or none. Raises what the engine refuses it with."""
        plan, engine = job.plan, self.engine
        self._check_count(plan)
        options = self._options(plan)
        if plan.output_type is not None:
            assert self._compiler is not None
            await self._compiler.compile(plan.output_type, options.get("tokenization", "any"))
        try:
            await anyio.to_thread.run_sync(self._hand_over, engine, job, namespace, options, limiter=self._submitters)
        except BaseException:
            job.cancel()
            raise

    def _hand_over(self, engine: Engine, job: Job, namespace: str, options: Options) -> None:
        plan = job.plan
        more: Options = {"namespace": namespace, "priority": plan.priority, "inspect": plan.return_rounds}
        left = self._deadline(job)
        if left is not None:
            more["deadline"] = left
        for prompt in plan.prompts:
            with self.tokenizer:
                tokens = self.encode(engine, prompt, plan)
            for choice in range(plan.n):
                if job.cancelled:
                    return
                chosen: Options = {**options, **more, "choice": choice}
                job.tickets.append(engine.submit(tokens, plan.output_type, **chosen))

    @staticmethod
    def encode(engine: Engine, prompt: str | list[Any], plan: Plan) -> list[int]:
        """Ids of a prompt: text, ids, or messages; the chat template also sees the tools."""
        if plan.chat_tools and isinstance(prompt, list):
            return engine.model.chat_prompt(prompt, plan.chat_tools)
        return engine.encode(prompt)

    def _check_count(self, plan: Plan) -> None:
        """More outputs than slots and queue hold would be refused by the busiest and the idlest server alike."""
        most, count = self.settings.slots + self.settings.queue, len(plan.prompts) * plan.n
        if count > most:
            raise HttpError(
                400, "limit_exceeded", f"the request wants {count} outputs, this server holds {most} at once",
                param="/n" if plan.n > 1 else "/prompt", hint="send several requests, or raise --queue",
            )  # fmt: skip

    def _deadline(self, job: Job) -> float | None:
        """Seconds left to a request, of its own limit and the server's. Raises ``DeadlineError`` if none are."""
        limits = [t for t in (job.plan.timeout, self.settings.request_timeout) if t is not None]
        if not limits:
            return None
        left = min(limits) - (time.perf_counter() - job.started)
        if left <= 0:
            raise DeadlineError(f"the time limit of {min(limits):g} s passed before the request could start")
        return left

    def _options(self, plan: Plan) -> Options:
        """The plan's options over the server's defaults for speculation. One seed for all n choices."""
        s, asked = self.settings, plan.options
        verifier = s.verifier_of(seeded=asked.get("seed") is not None)
        options: Options = {"gamma": s.gamma, "verifier": verifier, **asked}
        if "speculation" not in asked and "drafter" not in asked:
            options["speculation"] = s.speculation
        if "drafter" not in asked and options.get("speculation") not in (False, "off"):
            fits = asked.get("prediction") is None or s.drafter in TAKE_PREDICTION
            options["drafter"] = s.drafter if fits else "auto"
        if plan.n > 1 and options.get("seed") is None:
            options["seed"] = secrets.randbits(63)
        return self._within_envelope(options)

    def _within_envelope(self, options: Options) -> Options:
        """With ``--manifest``: what no audit released decodes target-only, and the metrics say so."""
        if self._restriction is None or options.get("speculation") in (False, "off"):
            return options
        reason = self._restriction.reason(options)
        if reason is None:
            return options
        self.engine.refuse_speculation(reason)
        return _target_only(options)

    async def follow(self, job: Job, index: int) -> AsyncIterator[Piece[Any]]:
        """The pieces of one output, as they are committed."""
        last = None
        async for piece in job.tickets[index]:
            now = time.perf_counter()
            if piece.tokens and last is None:
                self.metrics.first_token(now - job.started)
            elif piece.tokens and last is not None:
                self.metrics.tokens(now - last, len(piece.tokens))
            last = now if piece.tokens else last
            if piece.result is not None:
                self.metrics.finished(piece.result, now - job.started)
            yield piece

    def note_failure(self, error: BaseException, request_id: str) -> None:
        """Log an error that is the server's."""
        self.log.error("failed", request=request_id, **failure(error, self.settings.log_prompts))


def _target_only(options: Options) -> Options:
    """The same request without speculation, which has the same law."""
    kept: Options = {**options, "speculation": "off"}
    for name in ("drafter", "gamma", "prediction"):
        kept.pop(name, None)  # type: ignore[misc]  # mypy wants a literal
    return kept
