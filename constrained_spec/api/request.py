"""What a request may ask for, and the checks that need no model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, Literal, TypedDict, get_args

from constrained_spec.config import DEFAULT_GAMMA, Sampling, Speculation
from constrained_spec.drafters.base import Drafter
from constrained_spec.engine.job import Mode
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.constraints import Constraint, JsonSchema
from constrained_spec.grammars.json_schema import SchemaSource, Whitespace
from constrained_spec.grammars.output_types import JsonOptions, to_constraint
from constrained_spec.grammars.tokens import Tokenization
from constrained_spec.processors.base import Processor


class Options(TypedDict, total=False):
    """Everything a request may set; see ``Sampling`` and ``Speculation`` for meanings and defaults.

    ``speculation``: "off" (or False) is target-only, "fixed" drafts up to ``gamma`` each round, "auto" lets the engine
    decide by what it measured; True and the default are the engine's own. ``choice`` numbers the outputs of one seed.
    Of waiting requests the one of highest ``priority`` goes first, at the cost of a running one of lower priority.
    ``deadline``: seconds from submission after which it ends with ``DeadlineError``. ``namespace``: neither earlier
    outputs nor prompts are shared across it. ``inspect`` adds what each round judged to its piece.
    """

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
    speculation: bool | Mode
    processors: Seq[Processor]
    whitespace: str
    tokenization: str
    on_unsupported: str
    ensure_ascii: bool
    registry: Mapping[str, SchemaSource]
    nullable: bool
    max_depth: int | None
    close_on_length: bool
    prediction: str | Seq[int] | None
    namespace: str
    choice: int
    priority: int
    deadline: float | None
    inspect: bool


WHITESPACE = get_args(Whitespace)
TOKENIZATION = get_args(Tokenization)
_SAMPLING = {f.name for f in dataclasses.fields(Sampling)}


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
    mode: Mode | None  # None: the engine's own
    choice: int
    priority: int
    deadline: float | None
    inspect: bool

    def constraint(self) -> Constraint | None:
        """What ``output_type`` and the options for JSON ask for together.

        Raises ``ConfigError`` for an option of JSON on anything else, and what the type's own constraint raises.
        """
        found = to_constraint(self.output_type, self.json_options)
        ascii_only, depth = self.json_options.ensure_ascii, self.json_options.max_depth
        if not ascii_only and depth is None:
            return found
        if not isinstance(found, JsonSchema):
            name = "ensure_ascii" if ascii_only else "max_depth"
            raise ConfigError(
                f"{name} is for JSON only", param=name, hint="give a JSON Schema, or a type written as JSON"
            )
        return dataclasses.replace(
            found,
            ensure_ascii=found.ensure_ascii or ascii_only,
            max_depth=found.max_depth if depth is None else depth,
        )

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
        mode = _mode(given.get("speculation", True))
        if mode == "off":
            if drafter not in ("auto", "none"):
                raise ConfigError("speculation is off, but a drafter is named", param="drafter")
            drafter = "none"
        if drafter == "none":
            gamma, mode = 0, "off"
        _check_scheduling(given)
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
                given.get("max_depth"),
            ),
            close_on_length=bool(given.get("close_on_length", False)),
            prediction=given.get("prediction"),
            namespace=given.get("namespace", ""),
            tokenization=given.get("tokenization", "any"),
            mode=mode,
            choice=given.get("choice", 0),
            priority=given.get("priority", 0),
            deadline=given.get("deadline"),
            inspect=bool(given.get("inspect", False)),
        )


def _mode(value: object) -> Mode | None:
    if value is True:
        return None
    if value is False or value == "off":
        return "off"
    if value == "auto":
        return "auto"
    if value == "fixed":
        return "fixed"
    raise ConfigError(f"unknown speculation {value!r}", param="speculation", hint="off, fixed, auto, True or False")


def _check_scheduling(given: Mapping[str, Any]) -> None:
    for name in ("choice", "priority"):
        value = given.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or (name == "choice" and value < 0):
            raise ConfigError(f"{name} must be an integer, got {value!r}", param=name)
    deadline = given.get("deadline")
    if deadline is not None and (not isinstance(deadline, (int, float)) or not deadline > 0):
        raise ConfigError(f"deadline must be a positive number of seconds, got {deadline!r}", param="deadline")
    if not isinstance(given.get("namespace", ""), str):
        raise ConfigError("namespace must be a text", param="namespace")
