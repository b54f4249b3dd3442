"""Sampling and speculation options of a body, under the names that OpenAI, vLLM and this server give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from constrained_spec.api import Options
from constrained_spec.api.request import Request
from constrained_spec.errors import ConfigError
from constrained_spec.server.fields import Fields, text_of
from constrained_spec.server.plan import BodyError, Limits, ModelFacts, locate

DEFAULT_TEMPERATURE = 1.0  # OpenAI's, on every endpoint; truncation and penalties are off unless asked for
MODEL_ALIASES = ("default", "dummy")  # what clients send that have no name: Hugging Face's sends "dummy"
SPECULATION = ("off", "auto", "fixed")

# OpenAI's fields that cannot change the text.
IGNORED = (
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
)  # fmt: skip

# Fields of other servers, with the values that mean what happens here anyway; any other value is refused.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "detokenize": (True,),
    "early_stopping": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "prompt_logprobs": (),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # special tokens have no text here
    "stop_regex": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}

EXTRA = ("drafter", "gamma", "verifier", "speculation", "tokenization", "close_on_length", "logprobs_mode")


@dataclass(slots=True)
class Asked:
    """Options on their way into a plan, and the pointers of those whose name in the body is another one."""

    options: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: object, pointer: str) -> None:
        """Set an option of the engine unless ``value`` is None."""
        if value is not None:
            self.options[name] = value
            self.places[name] = pointer

    def checked(self, raw: Mapping[str, Any]) -> Options:
        """The options, if the engine takes them. Raises ``BodyError`` at their place in the body ``raw``."""
        options = cast(Options, self.options)
        try:
            Request.parse(None, options)
        except ConfigError as error:
            raise BodyError(
                error.message, code="invalid_value", param=locate(error.param, self.places, raw), hint=error.hint
            ) from None
        return options


def read_model(fields: Fields, facts: ModelFacts) -> str:
    """The served name that ``model`` asks for; the first one if it is absent or an alias."""
    name = fields.text("model")
    if name is None or name in MODEL_ALIASES:
        return facts.names[0]
    if name not in facts.names:
        raise BodyError(
            f"the model {name!r} is not served here",
            code="model_not_found",
            param=fields.pointer("model"),
            hint=f"one of {', '.join(facts.names)}",
        )
    return name


def read_sampling(fields: Fields, facts: ModelFacts, limits: Limits, *, no_seed: int | None = None) -> Asked:
    """What OpenAI, vLLM and SGLang call alike on every endpoint; lengths, n and logprobs are read elsewhere.

    A negative seed is one of 64 bits in two's complement; ``no_seed`` is a value that asks for a fresh one.
    """
    asked = Asked()
    for name in ("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        asked.set(name, fields.number(name), fields.pointer(name))
    temperature = fields.number("temperature")
    asked.set("temperature", DEFAULT_TEMPERATURE if temperature is None else temperature, "/temperature")
    top_k = fields.integer("top_k", least=-1)
    asked.set("top_k", None if top_k is None else max(0, top_k), fields.pointer("top_k"))
    seed = fields.integer("seed", least=-(2**63), most=2**64 - 1)
    asked.set("seed", None if seed in (None, no_seed) else seed % 2**64, fields.pointer("seed"))
    asked.set("logit_bias", _logit_bias(fields, facts), fields.pointer("logit_bias"))
    asked.set("stop", read_stop(fields, limits), fields.pointer("stop"))
    asked.set("include_stop", fields.flag("include_stop_str_in_output"), fields.pointer("include_stop_str_in_output"))
    asked.set("ignore_eos", fields.flag("ignore_eos"), fields.pointer("ignore_eos"))
    asked.set("min_tokens", fields.integer("min_tokens", least=0), fields.pointer("min_tokens"))
    _stop_ids(fields, facts)
    for name, neutral in NEUTRAL.items():
        fields.only(name, *neutral)
    return asked


def read_length(
    fields: Fields, asked: Asked, facts: ModelFacts, limits: Limits, names: Sequence[str], default: int | None = None
) -> None:
    """The first given of ``names``, all of them checked; else ``default`` tokens, or what the context holds.

    -1 is not given, as llama.cpp's clients send it.
    """
    most = facts.capacity if limits.max_tokens is None else min(limits.max_tokens, facts.capacity)
    given = {name: _limit(fields, name) for name in names}
    for name, value in given.items():
        if value is not None and limits.max_tokens is not None and value > limits.max_tokens:
            raise BodyError(
                f"{name} is {value}, max_tokens is {limits.max_tokens} here",
                code="limit_exceeded",
                param=fields.pointer(name),
            )
    chosen = next((name for name in names if given[name] is not None), None)
    asked.options["max_tokens"] = min(most, default or most) if chosen is None else given[chosen]
    asked.places["max_tokens"] = fields.pointer(names[0] if chosen is None else chosen)


def _limit(fields: Fields, name: str) -> int | None:
    return None if fields.body.get(name) == -1 and fields.value(name) else fields.integer(name, least=1)


def read_n(fields: Fields, limits: Limits) -> int:
    """``n``; ``best_of`` must be the same, for nothing is chosen among outputs here."""
    n = fields.integer("n", least=1) or 1
    if n > limits.max_n:
        raise BodyError(
            f"n is {n}, at most {limits.max_n} are served", code="limit_exceeded", param=fields.pointer("n")
        )
    fields.only("best_of", n, hint=f"leave it out: all {n} outputs are returned")
    return n


def read_extra(fields: Fields, asked: Asked) -> Fields | None:
    """This server's own options, in ``extra`` (or ``extra_body``, as some clients send their own argument's name).

    Returns the object, from which ``constraints`` reads on, to finish it.
    """
    name = "extra" if fields.has("extra") else "extra_body"
    extra = fields.inside(name)
    if name == "extra" and fields.has("extra_body"):
        raise BodyError("extra and extra_body", code="invalid_value", param="/extra_body", hint="send one of them")
    close = fields.flag("close_on_length")
    asked.set("close_on_length", close, fields.pointer("close_on_length"))
    fields.value("extra_body")
    if extra is None:
        return None
    for option in ("drafter", "verifier", "tokenization", "logprobs_mode"):
        asked.set(option, extra.text(option), extra.pointer(option))
    asked.set("gamma", extra.integer("gamma", least=0), extra.pointer("gamma"))
    asked.set("close_on_length", extra.flag("close_on_length"), extra.pointer("close_on_length"))
    mode = extra.value("speculation")
    if mode is not None and not isinstance(mode, bool) and mode not in SPECULATION:
        raise BodyError(
            "unknown speculation",
            code="invalid_value",
            param=extra.pointer("speculation"),
            hint=f"true, false, or one of {', '.join(SPECULATION)}",
        )
    asked.set("speculation", mode, extra.pointer("speculation"))
    return extra


def read_stop(fields: Fields, limits: Limits) -> tuple[str, ...] | None:
    """``stop``: a string or a list of strings."""
    value, at = fields.value("stop"), fields.pointer("stop")
    if value is None:
        return None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise BodyError("stop is a string or a list of strings", code="invalid_type", param=at)
    if len(value) > limits.max_stop:
        raise BodyError(
            f"{len(value)} stop strings, at most {limits.max_stop} are served", code="limit_exceeded", param=at
        )
    for i, text in enumerate(value):
        if not text_of(text, f"{at}/{i}"):
            raise BodyError("a stop string must not be empty", code="invalid_value", param=f"{at}/{i}")
    return tuple(value)


def _stop_ids(fields: Fields, facts: ModelFacts) -> None:
    """Ids that end the text: those of the model do so anyway, others are refused."""
    for i, token in enumerate(fields.listed("stop_token_ids") or ()):
        if token not in facts.eos_ids or isinstance(token, bool):
            raise BodyError(
                "only the model's own end-of-sequence ids end the text",
                code="unsupported_value",
                param=f"{fields.pointer('stop_token_ids')}/{i}",
                hint=f"use stop; the model's ids are {list(facts.eos_ids)}",
            )


def _logit_bias(fields: Fields, facts: ModelFacts) -> dict[int, float] | None:
    if fields.value("logit_bias") == []:  # llama.cpp's clients send it so
        return None
    given = fields.inside("logit_bias")
    if given is None:
        return None
    bias: dict[int, float] = {}
    for key in given.body:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < facts.vocabulary_size):
            raise BodyError(
                f"no token id of the model: {key[:40]!r}",
                code="invalid_value",
                param=given.pointer(key),
                hint=f"ids are 0 to {facts.vocabulary_size - 1}, as strings",
            )
        value = given.number(key)
        if value is not None:
            bias[int(key)] = value
    return bias
