"""``generation_config``: the JSON text that ``transformers chat`` sends beside the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping

from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError, Limits
from constrained_spec.server.sampling import Asked

# What does not steer a single sampled sequence, or is said by the model itself here.
_UNUSED = (
    "_from_model_config", "bos_token_id", "cache_implementation", "eos_token_id", "pad_token_id",
    "transformers_version", "use_cache",
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "length_penalty": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "typical_p": (1,),
}


def read_generation_config(fields: Fields, asked: Asked, limits: Limits) -> None:
    """Options of it that the body itself does not set. ``do_sample`` false (transformers' default) is temperature 0."""
    text, at = fields.text("generation_config"), fields.pointer("generation_config")
    if text is None:
        return
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise BodyError("generation_config is no JSON text", code="invalid_value", param=at) from None
    config = Fields(given, at)

    def take(name: str, value: object, source: str, *own: str) -> None:
        if value is not None and not any(fields.has(field) for field in own):
            asked.set(name, value, config.pointer(source))

    temperature = config.number("temperature")
    if not config.flag("do_sample"):
        temperature = 0.0
    take("temperature", 1.0 if temperature is None else temperature, "temperature", "temperature")
    for name in ("top_p", "min_p", "repetition_penalty"):
        take(name, config.number(name), name, name)
    take("top_k", config.integer("top_k", least=0), "top_k", "top_k")
    tokens = config.integer("max_new_tokens", least=1, most=limits.max_tokens)
    take("max_tokens", tokens, "max_new_tokens", "max_tokens", "max_completion_tokens")
    take("min_tokens", config.integer("min_new_tokens", least=0), "min_new_tokens", "min_tokens")
    for name in _UNUSED:
        config.value(name)
    for name, neutral in _NEUTRAL.items():
        config.only(name, *neutral)
    config.finish()
