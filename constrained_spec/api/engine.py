"""The face of the library: load a model once, then ask it for text or typed values."""

from __future__ import annotations

import dataclasses
import secrets
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

from constrained_spec.api.drafters import Drafters
from constrained_spec.api.result import Piece, Result, SpeculationReport, Target, Timing, Usage
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.coins import Coins
from constrained_spec.config import APPROXIMATE, DEFAULT_GAMMA, Sampling, Speculation
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.manifest import KINDS, Part, load_part
from constrained_spec.drafters.prediction import prediction_usage
from constrained_spec.engine.generation import Generation, RoundEvent
from constrained_spec.errors import ConfigError, ModelError, RequestError
from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.compile import JsonSchema, compile_constraint
from constrained_spec.grammars.json_schema import SchemaGrammar, SchemaSource, Whitespace, load_schema
from constrained_spec.grammars.lengths import CloseOnLength
from constrained_spec.grammars.output_types import JsonOptions, parse_output, to_constraint
from constrained_spec.grammars.schema_relax import validates
from constrained_spec.grammars.schema_walk import with_null
from constrained_spec.grammars.tokens import Tokenization
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.processors.base import Processor
from constrained_spec.processors.pipeline import Pipeline, validate_sampling
from constrained_spec.state.sequence import Sequence

T = TypeVar("T")
Message = Mapping[str, Any]
Prompt = str | Seq[Message]
Progress = Callable[[str, int, int | None], None]


class Options(TypedDict, total=False):
    """Everything a request may set; see ``Sampling`` and ``Speculation`` for meanings and defaults."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    suppress_tokens: tuple[int, ...]
    stop: str | Seq[str]
    include_stop: bool
    ignore_eos: bool
    seed: int | None
    logprobs: int | None
    logprobs_mode: Literal["processed", "raw"]
    drafter: str | Drafter
    gamma: int
    verifier: str
    speculation: bool
    processors: Seq[Processor]
    whitespace: str
    tokenization: str
    on_unsupported: str
    ensure_ascii: bool
    registry: Mapping[str, SchemaSource]
    nullable: bool
    close_on_length: bool
    prediction: str | Seq[int] | None
    namespace: str
    on_round: Callable[[RoundEvent], None] | None


WHITESPACE = get_args(Whitespace)
TOKENIZATION = get_args(Tokenization)
_SAMPLING = {f.name for f in dataclasses.fields(Sampling)}


class Engine:
    """One target model, at most one draft model, and the requests that run on them.

        engine = Engine.load("smollm2-135m")
        person = engine([{"role": "user", "content": "Ada, 36"}], Person).parsed

    Threads may share an engine: rounds of different requests take turns on the model.
    """

    def __init__(
        self,
        model: TransformersModel,
        draft_model: TransformersModel | None = None,
        *,
        parts: Mapping[str, Part] | None = None,
        history_bytes: int = 0,
    ) -> None:
        self.model = model
        self.draft_model = draft_model
        self._pipeline = Pipeline(model.vocabulary)
        self._target = Target(model.name, model.numerics, model.weights_digest() if model.quantized else None)
        self._turn = threading.Lock()
        self._free = list(range(model.slots))
        self._drafters = Drafters(model, self._pipeline, draft_model, parts, history_bytes)

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
        progress: Progress | None = None,
    ) -> Engine:
        """Load by catalogue alias (``smollm2-135m``), hub id, local folder or GGUF file.

        ``slots`` is the number of requests that may be open at once, ``capacity`` the context limit in tokens (default:
        the model's own, at most 8192). ``quantize="int8"`` (CPU) declares the int8 model to be the target: quicker, and
        another distribution; ``quantize_draft`` does the same to the draft model, which changes speed only. ``parts``
        is a folder of trained heads (default: those shipped for the model). With ``history_bytes`` the drafter "auto"
        also copies from finished outputs, within one ``namespace``; what a seed gives then depends on them, except
        under the "invariant" verifier. ``threads``
        pins torch's intra-op threads, a setting of the whole process. Raises ``ConfigError``, ``ModelError``.
        """
        model = load_model(
            name, device=device, dtype=dtype, slots=slots, capacity=capacity, quantize=quantize, threads=threads,
            progress=progress,
        )  # fmt: skip
        draft = None
        if draft_model is not None:
            # Its own context limit: where the draft's context ends, drafting ends, not the request.
            draft = load_model(
                draft_model, device=device, dtype=dtype, slots=slots, quantize=quantize_draft, threads=threads,
                progress=progress,
            )  # fmt: skip
        elif quantize_draft is not None:
            raise ConfigError("there is no draft model to quantise", param="quantize_draft")
        found = None if parts is None else _load_parts(Path(parts))
        return cls(model, draft, parts=found, history_bytes=history_bytes)

    @overload
    def generate(self, prompt: Prompt, output_type: type[T], **options: Unpack[Options]) -> Result[T]: ...

    @overload
    def generate(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Result[Any]: ...

    def generate(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Result[Any]:
        """Run one request to its end.

        ``prompt`` is raw text, or messages for the model's chat template. ``output_type`` is a pydantic model, any
        Python type, a JSON Schema (dict), or a constraint (``Regex``, ``Choice``, ``Lark``, ``JsonSchema``). Raises
        ``ConfigError`` for a bad option, ``RequestError`` for a bad prompt or constraint, ``DeadEndError``.
        """
        result = None
        for piece in self.stream(prompt, output_type, **options):
            result = piece.result
        assert result is not None
        return result

    __call__ = generate

    def stream(self, prompt: Prompt, output_type: object = None, **options: Unpack[Options]) -> Iterator[Piece[Any]]:
        """As ``generate``, a piece per round. Options and constraint are checked here, before the first step."""
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
        constraint = to_constraint(output_type, request.json_options)
        if request.close_on_length and constraint is None:
            raise ConfigError("close_on_length needs a constraint to close", param="close_on_length")
        grammar = (
            None
            if constraint is None
            else compile_constraint(constraint, self.model.vocabulary, tokenization=request.tokenization)
        )
        drafter = self._drafter(request, None if grammar is None else grammar.key)
        matcher = None if grammar is None else grammar.matcher()
        if request.close_on_length:
            assert isinstance(matcher, TrackingMatcher), "every matcher tracks its tokens"
            matcher = CloseOnLength(matcher, min(request.sampling.max_tokens, self.model.capacity - len(tokens)))
        return self._run(request, tokens, grammar, matcher, drafter)

    @staticmethod
    def check(output_type: object = None, **options: Unpack[Options]) -> None:
        """Raise what ``generate`` would raise for these options, without a model."""
        request = Request.parse(output_type, options)
        to_constraint(output_type, request.json_options)

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt: raw text as it is, messages through the chat template."""
        if isinstance(prompt, str):
            return self.model.encode(prompt)
        return self.model.chat_prompt(prompt)

    def _drafter(self, request: Request, grammar_key: str | None) -> Drafter | None:
        if not isinstance(request.drafter, str):
            return request.drafter
        return self._drafters.make(
            request.drafter,
            prediction=request.prediction,
            namespace=request.namespace,
            grammar_key=grammar_key,
            verifier=request.speculation.verifier,
        )

    def _run(
        self,
        request: Request,
        prompt: list[int],
        grammar: Grammar | None,
        matcher: Matcher | None,
        drafter: Drafter | None,
    ) -> Iterator[Piece[Any]]:
        with self._turn:
            if not self._free:
                raise ConfigError(
                    f"all {self.model.slots} slots are in use by open streams",
                    param="slots",
                    hint="finish or close one, or load the engine with more slots",
                )
            slot = self._free.pop()
            self.model.set_length(slot, 0)
        seed = secrets.randbits(64) if request.sampling.seed is None else request.sampling.seed
        sequence = Sequence(
            prompt=prompt,
            sampling=request.sampling,
            coins=Coins(seed),
            vocabulary=self.model.vocabulary,
            target=self.model,
            slot=slot,
            capacity=self.model.capacity,
            matcher=matcher,
            processors=request.processors,
        )
        try:
            if drafter is not None:
                with self._turn:
                    drafter.open(sequence)
            generation = Generation(
                self.model,
                self._pipeline,
                sequence,
                drafter,
                gamma=request.speculation.gamma,
                verifier=request.speculation.verifier,
            )
            while not sequence.finished:
                with self._turn:
                    event = generation.step()
                if request.on_round is not None:
                    request.on_round(event)
                result = self._result(request, generation, seed, grammar) if event.finished else None
                yield Piece(event.text, event.commit.tokens, event.commit.origins, result)
        finally:
            with self._turn:
                if drafter is not None:
                    drafter.close(sequence)
                self._free.append(slot)

    def _result(self, request: Request, generation: Generation, seed: int, grammar: Grammar | None) -> Result[Any]:
        s, times = generation.sequence, generation.times
        assert s.finish_reason is not None
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
                accepted_prediction_tokens=predicted[0],
                rejected_prediction_tokens=predicted[1],
            ),
            speculation=SpeculationReport(
                drafter=request.drafter if isinstance(request.drafter, str) else request.drafter.name,
                verifier=request.speculation.verifier,
                gamma=request.speculation.gamma,
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
                times.first_round, times.total, times.forward, times.propose, statistics.median(times.overheads)
            ),
            seed=seed,
            target=self._target,
            logprobs=tuple(s.logprobs),
            parse_error=parse_error,
            declared=request.declared,
            unenforced=unenforced,
            holds=violation is None if unenforced and s.finish_reason == "stop" else None,
            violation=violation,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Checked options of one request."""

    output_type: object
    sampling: Sampling
    speculation: Speculation
    drafter: str | Drafter
    processors: tuple[Processor, ...]
    json_options: JsonOptions
    tokenization: str
    close_on_length: bool
    prediction: str | Seq[int] | None
    namespace: str
    on_round: Callable[[RoundEvent], None] | None

    @property
    def declared(self) -> tuple[str, ...]:
        """Changes of the target's law that the caller asked for, beside sampling options."""
        canonical = ("tokenization=canonical",) if self.tokenization == "canonical" else ()
        return (*canonical, *(("close_on_length",) if self.close_on_length else ()))

    @classmethod
    def parse(cls, output_type: object, options: Options) -> Request:
        given: dict[str, Any] = dict(options)
        unknown = given.keys() - Options.__annotations__.keys()
        if unknown:
            name = min(unknown)
            raise ConfigError(f"unknown option {name!r}", param=name, hint=f"one of {', '.join(sorted(_SAMPLING))}, …")
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        for name in ("stop", "suppress_tokens", "processors"):
            if name in given:
                given[name] = tuple(given[name])
        for name, allowed in (
            ("whitespace", WHITESPACE),
            ("tokenization", TOKENIZATION),
            ("on_unsupported", ("error", "validate")),
        ):
            if given.get(name, allowed[0]) not in allowed:
                raise ConfigError(f"unknown {name} {given[name]!r}", param=name, hint=f"one of {', '.join(allowed)}")
        drafter = given.get("drafter", "auto")
        gamma = given.get("gamma", DEFAULT_GAMMA)
        if given.get("speculation") is False:
            if drafter not in ("auto", "none"):
                raise ConfigError("speculation is off, but a drafter is named", param="drafter")
            drafter = "none"
        if drafter == "none":
            gamma = 0
        return cls(
            output_type=output_type,
            sampling=Sampling(**{k: v for k, v in given.items() if k in _SAMPLING}),
            speculation=Speculation(
                drafter=drafter if isinstance(drafter, str) else "none",
                gamma=gamma,
                verifier=given.get("verifier", "coupling"),
            ),
            drafter=drafter,
            processors=given.get("processors", ()),
            json_options=JsonOptions(
                given.get("whitespace", "one-space"),
                given.get("on_unsupported", "error"),
                bool(given.get("ensure_ascii", False)),
                given.get("registry"),
                bool(given.get("nullable", False)),
            ),
            close_on_length=bool(given.get("close_on_length", False)),
            prediction=given.get("prediction"),
            namespace=given.get("namespace", ""),
            tokenization=given.get("tokenization", "any"),
            on_round=given.get("on_round"),
        )


def _violation(request: Request, text: str) -> str | None:
    """What of the schema the finished value breaks, in words; None if it holds."""
    constraint = to_constraint(request.output_type, request.json_options)
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
