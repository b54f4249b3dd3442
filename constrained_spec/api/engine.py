"""The face of the library: load a model once, then ask it for text or typed values."""

from __future__ import annotations

import secrets
import statistics
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from constrained_spec.api.drafters import Drafters
from constrained_spec.api.request import Options, Request
from constrained_spec.api.result import Piece, Result, SpeculationReport, Target, Timing, Usage
from constrained_spec.api.ticket import Ticket
from constrained_spec.backends.load import load_model
from constrained_spec.backends.process import release_team
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.coins import Coins
from constrained_spec.config import APPROXIMATE
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.manifest import KINDS, Part, load_part
from constrained_spec.drafters.prediction import prediction_usage
from constrained_spec.engine.controller import Controller
from constrained_spec.engine.job import Job, Mode
from constrained_spec.engine.scheduler import PREFILL_CHUNK, Scheduler
from constrained_spec.engine.selfcheck import self_check
from constrained_spec.engine.snapshot import Snapshot, Totals
from constrained_spec.engine.worker import Health, Worker
from constrained_spec.errors import AuditFailure, ConfigError, ModelError, RequestError, VocabularyMismatchError
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import JsonSchema, compile_constraint
from constrained_spec.grammars.json_schema import SchemaGrammar, load_schema
from constrained_spec.grammars.lengths import CloseOnLength
from constrained_spec.grammars.output_types import parse_output
from constrained_spec.grammars.schema_relax import validates
from constrained_spec.grammars.schema_walk import with_null
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.processors.pipeline import Pipeline, validate_sampling

T = TypeVar("T")
Message = Mapping[str, Any]
Prompt = str | Seq[Message] | Seq[int]
Progress = Callable[[str, int, int | None], None]


class Engine:
    """One target model, at most one draft model, and the thread that runs requests on them.

        engine = Engine.load("smollm2-135m", slots=4)
        person = engine([{"role": "user", "content": "Ada, 36"}], Person).parsed
        people = engine.batch(prompts, Person)
        ticket = engine.submit(prompt, Person)  # iterate it, `await` its `aresult()`, or `cancel()` it

    Safe under threads. Up to ``slots`` requests share each forward; further ones wait.
    """

    def __init__(
        self,
        model: TransformersModel,
        draft_model: TransformersModel | None = None,
        *,
        parts: Mapping[str, Part] | None = None,
        history_bytes: int = 0,
        prefill_chunk: int = PREFILL_CHUNK,
        prefix_reuse: bool = False,
        queue: int | None = None,
        speculation: Mode = "fixed",
        require_drafter: bool = False,
        check: bool = False,
    ) -> None:
        """See ``load``."""
        if prefill_chunk < 1:
            raise ConfigError(f"prefill_chunk must be at least 1, got {prefill_chunk}", param="prefill_chunk")
        if queue is not None and queue < 0:
            raise ConfigError(f"queue must not be negative, got {queue}", param="queue")
        if speculation not in ("off", "fixed", "auto"):
            raise ConfigError(f"unknown speculation {speculation!r}", param="speculation", hint="off, fixed or auto")
        self.model = model
        self.draft_model = draft_model
        self.speculation: Mode = speculation
        self.require_drafter = require_drafter
        self._pipeline = Pipeline(model.vocabulary)
        self._target = Target(model.name, model.numerics, model.weights_digest() if model.quantized else None)
        self._totals = Totals()
        self._off: str | None = None  # why nobody may speculate
        self._speculates: Callable[[int], bool] = lambda requests: True
        self.controller = Controller()
        drafters = self._drafters = Drafters(model, self._pipeline, draft_model, parts, history_bytes)
        self._worker = Worker(
            partial(
                Scheduler, model, self._pipeline, prefill_chunk=prefill_chunk, prefix_reuse=prefix_reuse,
                controller=self.controller, on_memory=drafters.release, totals=self._totals,
                speculates=_weakly(self),
            ),
            queue=queue,
        )  # fmt: skip
        drafters.run = self._worker.call
        # The thread must not keep an engine alive that nobody holds any more.
        self._finalizer = weakref.finalize(self, self._worker.close, drain=False)
        if check:
            self._check()
        release_team()  # this thread loaded the model; another one will run it

    @classmethod
    def load(
        cls,
        name: str,
        *,
        draft_model: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        slots: int = 1,
        capacity: int | None = None,
        quantize: str | None = None,
        quantize_draft: str | None = None,
        parts: str | None = None,
        history_bytes: int = 0,
        threads: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        prefix_reuse: bool = False,
        queue: int | None = None,
        speculation: Mode = "fixed",
        require_drafter: bool = False,
        check: bool = False,
        progress: Progress | None = None,
    ) -> Engine:
        """Load by catalogue alias (``smollm2-135m``), hub id, local folder or GGUF file.

        ``slots`` is the number of requests that share a forward, ``capacity`` the context limit of each in tokens
        (default: the model's own, at most 8192): keys and values take ``slots * capacity`` places from the start.
        ``quantize="int8"`` (CPU) declares the int8 model to be the target: quicker, and another distribution;
        ``quantize_draft`` does the same to the draft model, which changes speed only. ``parts`` is a folder of trained
        heads (default: those shipped for the model). With ``history_bytes`` the drafter "auto" also copies from
        finished outputs, within one ``namespace``; what a seed gives then depends on them, except under the "invariant"
        verifier. ``threads`` pins torch's intra-op threads, a setting of the whole process.

        ``prefill_chunk`` bounds the prompt tokens that one round writes beside requests that decode. ``prefix_reuse``
        takes the beginning of a prompt from a slot of the same namespace. ``queue`` bounds the requests that wait, see
        ``OverloadedError``. ``speculation`` is the default of requests: "fixed" drafts up to ``gamma`` each round,
        "auto" lets measured cost and acceptance decide, which makes the text of a seed depend on the clock except under
        the "invariant" verifier (never its law), "off" is target-only. A draft model that cannot be loaded or used
        means target-only decoding and a warning, or with ``require_drafter`` the error. ``check`` tests law and
        rollback first, and speculates only if they hold.

        Raises ``ConfigError``, ``ModelError``.
        """
        model = load_model(
            name, device=device, dtype=dtype, slots=slots, capacity=capacity, quantize=quantize, threads=threads,
            progress=progress,
        )  # fmt: skip
        draft, lost = None, None
        if draft_model is not None:
            try:
                # Its own context limit: where the draft's context ends, drafting ends, not the request.
                draft = load_model(
                    draft_model, device=device, dtype=dtype, slots=slots, quantize=quantize_draft, threads=threads,
                    progress=progress,
                )  # fmt: skip
            except ModelError as error:
                if require_drafter:
                    raise
                lost = str(error)
        elif quantize_draft is not None:
            raise ConfigError("there is no draft model to quantise", param="quantize_draft")
        found = None if parts is None else _load_parts(Path(parts))
        engine = cls(
            model, draft, parts=found, history_bytes=history_bytes, prefill_chunk=prefill_chunk,
            prefix_reuse=prefix_reuse, queue=queue, speculation=speculation, require_drafter=require_drafter,
            check=check,
        )  # fmt: skip
        if lost is not None:
            engine.lose_draft_model(lost)
        return engine

    # ---- one request ----------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompt: Prompt, output_type: type[T], **options: Unpack[Options]) -> Result[T]: ...

    @overload
    def generate(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Result[Any]: ...

    def generate(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Result[Any]:
        """Run one request to its end.

        ``prompt`` is raw text, messages for the model's chat template, or token ids. ``output_type`` is a pydantic
        model, any Python type, a JSON Schema (dict), or a constraint (``Regex``, ``Choice``, ``Lark``, ``JsonSchema``).
        Raises ``ConfigError`` for a bad option, ``RequestError`` for a bad prompt or constraint, ``DeadEndError``,
        ``OverloadedError``, ``DeadlineError``, ``EngineError``.
        """
        ticket = self.submit(prompt, output_type, **options)
        try:
            return ticket.result()
        except BaseException:
            ticket.cancel()
            raise

    __call__ = generate

    async def agenerate(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Result[Any]:
        """As ``generate``; a cancelled task cancels the request. Compiling the constraint happens in the event loop."""
        ticket = self.submit(prompt, output_type, **options)
        try:
            return await ticket.aresult()
        except BaseException:
            ticket.cancel()
            raise

    def stream(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Iterator[Piece[Any]]:
        """As ``generate``, a piece per round. Options and constraint are checked here, before the first step.

        Closing the iterator before its end cancels the request.
        """
        ticket = self.submit(prompt, output_type, **options)

        def pieces() -> Iterator[Piece[Any]]:
            try:
                yield from ticket
            finally:
                ticket.cancel()

        return pieces()

    def astream(
        self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]
    ) -> AsyncIterator[Piece[Any]]:
        """As ``stream``, for an event loop."""
        ticket = self.submit(prompt, output_type, **options)

        async def pieces() -> AsyncIterator[Piece[Any]]:
            try:
                async for piece in ticket:
                    yield piece
            finally:
                ticket.cancel()

        return pieces()

    def batch(self, prompts: Seq[Prompt], output_type: object = None, **options: Unpack[Options]) -> list[Result[Any]]:
        """Run several prompts together, results in their order. With a ``seed``, prompt i is choice i of it.

        The first error cancels the rest and is raised. Never more wait than the engine's queue takes.
        """
        tickets: list[Ticket[Any]] = []
        limit = self._worker.queue
        first = options.get("choice", 0)
        try:
            for i, prompt in enumerate(prompts):
                if limit is not None and i >= limit + self.model.slots:
                    tickets[i - limit - self.model.slots].result()
                numbered: Options = {**options, "choice": first + i}
                tickets.append(self.submit(prompt, output_type, **numbered))
            return [ticket.result() for ticket in tickets]
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            raise

    def submit(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Ticket[Any]:
        """Hand a request over and return at once; the constraint is compiled here, in the caller's thread.

        Raises what is wrong with the request, ``OverloadedError`` and ``EngineError`` here; all else where the ticket
        is waited for.
        """
        start = time.monotonic()
        request = Request.parse(output_type, options)
        validate_sampling(request.sampling, self.model.vocabulary)
        tokens = self.encode(prompt)
        if len(tokens) >= self.model.capacity:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, the context holds {self.model.capacity}",
                param="prompt",
                hint="shorten it, or load the model with a larger capacity",
            )
        if not tokens:
            raise RequestError("the prompt is empty", param="prompt")
        constraint = request.constraint()
        if request.close_on_length and constraint is None:
            raise ConfigError("close_on_length needs a constraint to close", param="close_on_length")
        grammar = (
            None
            if constraint is None
            else compile_constraint(constraint, self.model.vocabulary, tokenization=request.tokenization)
        )
        drafter, disabled = self._drafter(request, None if grammar is None else grammar.key)
        matcher = None if grammar is None else grammar.matcher()
        if request.close_on_length:
            assert isinstance(matcher, TrackingMatcher), "every matcher tracks its tokens"
            matcher = CloseOnLength(matcher, min(request.sampling.max_tokens, self.model.capacity - len(tokens)))
        seed = secrets.randbits(64) if request.sampling.seed is None else request.sampling.seed
        ticket: Ticket[Any] = Ticket()
        job = Job(
            prompt=tokens, sampling=request.sampling, coins=Coins(seed, request.choice), sink=ticket, matcher=matcher,
            processors=request.processors, drafter=drafter, gamma=request.speculation.gamma,
            mode="off" if drafter is None else request.mode or self.speculation,
            verifier=request.speculation.verifier, priority=request.priority,
            deadline=None if request.deadline is None else start + request.deadline, namespace=request.namespace,
            inspect=request.inspect, disabled=disabled,
        )  # fmt: skip
        # The ticket holds the engine, so that one nobody else holds lives until its requests are over.
        ticket.bind(job, partial(self._result, request, grammar), self._cancel)
        release_team()
        self._worker.submit(job)
        return ticket

    @staticmethod
    def check(output_type: object = None, **options: Unpack[Options]) -> None:
        """Raise what ``generate`` would raise for these options, without a model."""
        Request.parse(output_type, options).constraint()

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt: raw text as it is, messages through the chat template, ids checked."""
        if isinstance(prompt, str):
            return self.model.encode(prompt)
        if all(isinstance(part, int) for part in prompt):
            return self._checked_ids([int(part) for part in prompt])  # type: ignore[arg-type]
        return self.model.chat_prompt([part for part in prompt if isinstance(part, Mapping)])

    def _checked_ids(self, ids: list[int]) -> list[int]:
        size = self.model.vocabulary.size
        wrong = next((i for i in ids if not 0 <= i < size), None)
        if wrong is not None:
            raise RequestError(f"token id {wrong} is not one of the model's {size}", param="prompt")
        return ids

    # ---- the engine -----------------------------------------------------------------------------------------------

    def health(self) -> Health:
        return self._worker.health()

    def snapshot(self) -> Snapshot:
        return self._worker.snapshot()

    @property
    def fallbacks(self) -> dict[str, str]:
        """Why decoding went on target-only where it did: kind -> the latest reason."""
        return dict(self._totals.reasons)

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests; let the present ones end (``drain``, at most ``timeout`` seconds), or cancel them."""
        self._worker.close(drain, timeout)

    def speculate_where(self, allowed: Callable[[int], bool]) -> None:
        """From now on nobody drafts in a round of n requests unless ``allowed(n)``. Called on the engine's thread."""
        self._speculates = allowed

    def refuse_speculation(self, reason: str) -> None:
        """A request will decode target-only, for ``reason``: counted among the fallbacks."""
        self._totals.fallback("envelope", reason)

    def lose_draft_model(self, reason: str) -> None:
        """Go on without the draft model: what would use it decodes target-only, and its results say why."""
        self._drafters.lost = reason
        self._totals.fallback("drafter-load", reason)
        warnings.warn(f"decoding goes on without the draft model: {reason}", RuntimeWarning, stacklevel=2)

    def _check(self) -> None:
        try:
            self_check(self.model)
        except AuditFailure as failure:
            if self.require_drafter:
                raise
            self._off = f"self-check: {failure}"
            self._totals.fallback("self-check", str(failure))
            warnings.warn(f"speculation is off: {failure}", RuntimeWarning, stacklevel=3)

    def _cancel(self, job: Job) -> None:
        self._worker.cancel(job)

    def _drafter(self, request: Request, grammar_key: str | None) -> tuple[Drafter | None, dict[str, str]]:
        """The request's drafter, or None and the reason why it has none."""
        name = request.drafter
        if request.mode == "off" or name == "none":
            return None, {}
        if self._off is not None:
            return None, {"speculation": self._off}
        if self.speculation == "off" and request.mode is None:
            return None, {}
        if not isinstance(name, str):
            return name, {}
        try:
            drafter = self._drafters.make(
                name,
                prediction=request.prediction,
                namespace=request.namespace,
                grammar_key=grammar_key,
                verifier=request.speculation.verifier,
            )
        except (ModelError, VocabularyMismatchError) as error:
            if self.require_drafter:
                raise
            self._totals.fallback("drafter-load", f"{name}: {error}")
            return None, {name: str(error)}
        return drafter, {}

    def _result(self, request: Request, grammar: Grammar | None, job: Job) -> Result[Any]:
        s, times = job.sequence, job.times
        assert s is not None and s.finish_reason is not None
        assert times.admitted is not None and times.first is not None and times.finished is not None
        text = s.visible_text()
        parsed, parse_error = None, None
        if request.output_type is not None and s.finish_reason == "stop":
            try:
                parsed = parse_output(request.output_type, text)
            except RequestError as error:
                # A stop string may cut a value short, and a type may check more than its schema says.
                parse_error = str(error)
        unenforced = grammar.relaxed if isinstance(grammar, SchemaGrammar) else ()
        violation = None
        if unenforced and s.finish_reason == "stop":
            violation = _violation(request, text)
        c = s.counts
        predicted = prediction_usage(c)
        approximate = request.speculation.verifier in APPROXIMATE and not s.sampling.greedy
        return Result(
            text=text,
            parsed=parsed,
            tokens=tuple(s.output),
            finish_reason=s.finish_reason,
            exactness="approximate" if approximate else "exact",
            usage=Usage(
                s.history.prompt_length,
                s.history.output_length,
                cached_tokens=job.cached,
                accepted_prediction_tokens=predicted[0],
                rejected_prediction_tokens=predicted[1],
            ),
            speculation=SpeculationReport(
                drafter=request.drafter if isinstance(request.drafter, str) else request.drafter.name,
                verifier=request.speculation.verifier,
                mode=job.mode,
                gamma=request.speculation.gamma,
                preemptions=job.preemptions,
                rounds=c.rounds,
                target_passes=c.rounds,
                proposed=c.proposed,
                accepted=c.accepted,
                forced=c.forced,
                recovered=c.recovered,
                bonus=c.bonus,
                disabled_reason="; ".join(f"{k}: {v}" for k, v in s.disabled.items()) or None,
                by_source={k: (v[0], v[1]) for k, v in c.by_source.items()},
                by_position=tuple((judged, accepted) for judged, accepted in c.by_position),
            ),
            timing=Timing(
                queue_s=times.admitted - times.submitted,
                first_token_s=times.first - times.submitted,
                total_s=times.finished - times.submitted,
                forward_s=times.forward,
                propose_s=times.propose,
                draft_s=times.draft,
                overhead_s=statistics.median(times.overheads),
            ),
            seed=job.coins.seed,
            target=self._target,
            logprobs=tuple(s.logprobs),
            parse_error=parse_error,
            declared=request.declared,
            unenforced=unenforced,
            holds=violation is None if unenforced and s.finish_reason == "stop" else None,
            violation=violation,
        )


def _weakly(engine: Engine) -> Callable[[int], bool]:
    """``engine._speculates`` without keeping the engine alive: its thread asks."""
    reference = weakref.ref(engine)

    def speculates(requests: int) -> bool:
        alive = reference()
        return alive is None or alive._speculates(requests)

    return speculates


def _violation(request: Request, text: str) -> str | None:
    """What of the schema the finished value breaks, in words; None if it holds."""
    constraint = request.constraint()
    assert isinstance(constraint, JsonSchema)
    registry = {uri: load_schema(schema) for uri, schema in (constraint.registry or {}).items()}
    schema = load_schema(constraint.schema)
    return validates(with_null(schema) if constraint.nullable else schema, text, registry)


def _load_parts(folder: Path) -> dict[str, Part]:
    """The trained heads of a folder, by kind. Raises ``ModelError`` if it holds none."""
    found = {kind: load_part(folder / f"{kind}.json") for kind in KINDS if (folder / f"{kind}.json").is_file()}
    if not found:
        raise ModelError(f"{folder} holds no trained part", param="parts", hint="constrained-spec train eagle")
    return found
