"""What llama.cpp's POST /completion and /infill have in common.

``samplers`` says which of temperature, top_k, top_p, min_p and penalties apply. They apply in this server's declared
order; "infill" and the samplers whose strength is neutral add nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from constrained_spec.server.constraints import read_constraint
from constrained_spec.server.delivery import read_delivery
from constrained_spec.server.fields import Fields
from constrained_spec.server.fim_prompt import fim_stops
from constrained_spec.server.plan import BodyError, Kind, Limits, ModelFacts, Plan
from constrained_spec.server.sampling import (
    Asked,
    read_extra,
    read_length,
    read_model,
    read_sampling,
)

# Fields without effect on the text: how it is computed, or a limit of prompt processing that llama.cpp does not keep.
IGNORED = (
    "cache_prompt", "id_slot", "n_cache_reuse", "n_discard", "n_keep", "speculative.n_max", "speculative.n_min",
    "speculative.p_min", "t_max_prompt_ms",
)  # fmt: skip

# Samplers that are not offered, with the values at which they do nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "image_data": ([],),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "response_fields": ([],),
    "return_progress": (False,),
    "return_tokens": (False,),
    "timings_per_token": (False,),
    "top_n_sigma": (-1, 0),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
# Their other parameters mean nothing while they do nothing.
_PARAMETERS = (
    "dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent",
    "mirostat_eta", "mirostat_tau", "xtc_threshold",
)  # fmt: skip

_SAMPLERS: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "penalties": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
}
_LETTERS = {
    "d": "dry", "e": "penalties", "i": "infill", "k": "top_k", "m": "min_p", "p": "top_p", "s": "top_n_sigma",
    "t": "temperature", "x": "xtc", "y": "typ_p",
}  # fmt: skip
_OTHER_SAMPLERS = ("dry", "infill", "top_n_sigma", "typ_p", "typical_p", "xtc")


def llama_plan(
    kind: Kind,
    fields: Fields,
    prompts: tuple[Any, ...],
    facts: ModelFacts,
    limits: Limits,
    places: Mapping[str, str],
) -> Plan:
    """The plan of ``prompts``, which are read from ``fields`` already; ``places`` says where."""
    model = read_model(fields, facts)
    asked = read_sampling(fields, facts, limits, no_seed=-1)
    if asked.options.get("temperature", 1.0) < 0:
        asked.options["temperature"] = 0.0  # llama.cpp: greedy
    read_llama_sampling(fields, asked)
    warm_up = _length(fields, asked, facts, limits)
    indent = fields.integer("n_indent", least=0, most=10_000) or 0
    delivery = read_delivery(fields)
    milliseconds = fields.integer("t_max_predict_ms", most=2**31) or 0
    if milliseconds > 0:  # the shorter of the two
        seconds = milliseconds / 1000
        delivery["timeout"] = min(seconds, delivery["timeout"] or seconds)
    extra = read_extra(fields, asked)
    found = read_constraint(fields, limits, extra)
    fields.finish()
    if kind == "infill":
        fim_stops(asked, facts)
    if found is not None:
        asked.places |= found.places
    return Plan(
        kind=kind,
        model=model,
        prompts=prompts,
        output_type=None if found is None else found.constraint,
        options=asked.checked(fields.body),
        warm_up=warm_up,
        n_indent=indent,
        partial_on_timeout=milliseconds > 0,
        ignored=tuple(fields.ignored),
        places={**asked.places, **places},
        raw=fields.body,
        **delivery,
    )


def read_llama_sampling(fields: Fields, asked: Asked) -> None:
    """llama.cpp's own fields, which its editors send to every endpoint."""
    for name in _PARAMETERS:
        fields.value(name)
    for name, neutral in NEUTRAL.items():
        fields.only(name, *neutral)
    penalty = fields.number("repeat_penalty")
    if not fields.has("repetition_penalty"):
        asked.set("repetition_penalty", penalty, fields.pointer("repeat_penalty"))
    window = fields.integer("repeat_last_n", least=-1)
    penalised = any(
        asked.options.get(name, neutral) != neutral
        for name, neutral in (("repetition_penalty", 1), ("presence_penalty", 0), ("frequency_penalty", 0))
    )
    if window not in (None, -1) and penalised:
        raise BodyError(
            "penalties look at the whole text here",
            code="unsupported_value",
            param=fields.pointer("repeat_last_n"),
            hint="send -1, or no penalty",
        )
    _samplers(fields, asked)
    fields.ignore(*IGNORED)


def _samplers(fields: Fields, asked: Asked) -> None:
    """Turn off what ``samplers`` does not list; without the temperature the logits stay as they are."""
    value = fields.value("samplers")
    # One letter each, in llama.cpp's short form; an unknown one is refused below as it stands.
    listed = [_LETTERS.get(letter, letter) for letter in value] if isinstance(value, str) else fields.texts("samplers")
    if listed is None:
        return
    for i, name in enumerate(listed):
        if name not in _SAMPLERS and name not in _OTHER_SAMPLERS:
            raise BodyError(
                f"unknown sampler {name[:40]!r}",
                code="invalid_value",
                param=f"{fields.pointer('samplers')}/{i}",
                hint=f"some of {', '.join((*_SAMPLERS, *_OTHER_SAMPLERS))}",
            )
        if name in _OTHER_SAMPLERS:
            fields.ignored.append(f"{fields.pointer('samplers')}/{i}")
    for name, options in _SAMPLERS.items():
        if name not in listed:
            for option in options:
                asked.options.pop(option, None)
    asked.options.setdefault("temperature", 1.0)


def _length(fields: Fields, asked: Asked, facts: ModelFacts, limits: Limits) -> bool:
    """``n_predict`` (-1 and -2: what the context holds); True for 0, a call that only warms up."""
    tokens = fields.integer("n_predict", least=-2)
    if tokens is None or tokens > 0:
        read_length(fields, asked, facts, limits, ("n_predict", "max_tokens"))
        return False
    fields.value("max_tokens")
    asked.options["max_tokens"] = min(facts.capacity, limits.max_tokens or facts.capacity)
    asked.places["max_tokens"] = fields.pointer("n_predict")
    return tokens == 0
