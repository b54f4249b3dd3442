"""Filling in the middle: POST /v1/fim/completions (Mistral's shape) and /infill (llama.cpp's)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from constrained_spec.server.constraints import read_constraint
from constrained_spec.server.delivery import read_delivery
from constrained_spec.server.fields import Fields
from constrained_spec.server.fim_prompt import fim_prompt, fim_stops
from constrained_spec.server.llama_fields import llama_plan
from constrained_spec.server.plan import BodyError, Limits, ModelFacts, Plan
from constrained_spec.server.sampling import (
    read_extra,
    read_length,
    read_model,
    read_n,
    read_sampling,
)

MAX_FILES = 256


def plan_fim(body: Mapping[str, Any], facts: ModelFacts, limits: Limits) -> Plan:
    """The plan of a request in Mistral's shape. Without a suffix the middle goes to the end of the text."""
    fields = Fields(body)
    model = read_model(fields, facts)
    fields.need("prompt")
    prompt, suffix = fields.text("prompt") or "", fields.text("suffix") or ""
    asked = read_sampling(fields, facts, limits)
    seed = fields.integer("random_seed", least=0, most=2**63)  # Mistral's name
    if not fields.has("seed"):
        asked.set("seed", seed, fields.pointer("random_seed"))
    read_length(fields, asked, facts, limits, ("max_tokens",))
    n = read_n(fields, limits)
    delivery = read_delivery(fields)
    extra = read_extra(fields, asked)
    found = read_constraint(fields, limits, extra)
    fields.finish()
    made = fim_prompt(prompt, suffix, facts, "/prompt")
    fim_stops(asked, facts)
    if found is not None:
        asked.places |= found.places
    return Plan(
        kind="fim",
        model=model,
        prompts=(made,),
        output_type=None if found is None else found.constraint,
        options=asked.checked(body),
        n=n,
        ignored=tuple(fields.ignored),
        places={**asked.places, "prompt": "/prompt"},
        raw=body,
        **delivery,
    )


def plan_infill(body: Mapping[str, Any], facts: ModelFacts, limits: Limits) -> Plan:
    """The plan of an infill: between ``input_prefix`` and ``input_suffix``, with ``prompt`` as its beginning."""
    fields = Fields(body)
    prefix, suffix = fields.text("input_prefix") or "", fields.text("input_suffix") or ""
    prompt = fim_prompt(prefix, suffix, facts, "/input_prefix", files=_files(fields), after=fields.text("prompt") or "")
    return llama_plan("infill", fields, (prompt,), facts, limits, {"prompt": "/input_prefix"})


def indent_end(text: str, n_indent: int) -> int | None:
    """Where ``text`` must end: the line break before its first line, but the first one, that is not blank and is
    indented by fewer than ``n_indent`` blanks or tabs; None if there is none yet. A line that may still grow counts
    only once something else than blanks stands on it."""
    at = text.find("\n")
    while at >= 0 and n_indent > 0:
        line_end = text.find("\n", at + 1)
        line = text[at + 1 : None if line_end < 0 else line_end]
        if line.strip() and len(line) - len(line.lstrip(" \t")) < n_indent:
            return at
        at = line_end
    return None


def _files(fields: Fields) -> list[tuple[str, str]]:
    """``input_extra``: [{"filename", "text"}, ...]; llama.vscode's chunks of other files."""
    entries = fields.listed("input_extra") or []
    if len(entries) > MAX_FILES:
        raise BodyError(
            f"{len(entries)} files, at most {MAX_FILES} are read",
            code="limit_exceeded",
            param=fields.pointer("input_extra"),
        )
    files = []
    for i, value in enumerate(entries):
        entry = Fields(value, f"{fields.pointer('input_extra')}/{i}")
        entry.need("text")
        files.append((entry.text("filename") or "tmp", entry.text("text") or ""))
        entry.ignore("time")
        entry.finish()
    return files
