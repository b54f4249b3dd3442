"""For schemas that cannot be enforced in full: a sound relaxation to generate under, and the check of what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import jsonschema
from referencing import Registry
from referencing.jsonschema import DRAFT7, DRAFT202012

from constrained_spec.grammars.schema_rewrite import default_draft, rewrite
from constrained_spec.grammars.schema_walk import Json, escape


def relax(schema: Json, registry: Mapping[str, Json] | None = None) -> tuple[Json, list[tuple[str, str]]]:
    """(a schema that every value of ``schema`` satisfies, [(JSON pointer, keyword) of each demand that it leaves out]).

    The first is written in keywords that the engine enforces in full; an empty list says that both mean the same.
    """
    made = rewrite(schema, registry, relaxing=True)
    return made.schema, list(made.relaxed)


def validates(schema: Json, text: str, registry: Mapping[str, Json] | None = None) -> str | None:
    """None if ``text`` is JSON that satisfies ``schema``, formats included; else what is wrong, and where."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    known = {2020: jsonschema.Draft202012Validator, 7: jsonschema.Draft7Validator}
    draft = default_draft(schema)
    kind = jsonschema.validators.validator_for(schema, default=known[draft])
    specification = DRAFT7 if draft == 7 else DRAFT202012
    resources = Registry().with_contents((registry or {}).items(), default_specification=specification)
    validator = kind(schema, registry=resources, format_checker=kind.FORMAT_CHECKER)
    try:
        fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except Exception as failure:  # a reference that leads nowhere, a pattern that Python cannot read
        return f"cannot be checked: {failure}"
    if fault is None:
        return None
    where = "".join(f"/{escape(part)}" for part in fault.absolute_path)
    return f"{where or '/'}: {cast(str, fault.message)}"
