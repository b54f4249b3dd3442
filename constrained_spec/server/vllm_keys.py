"""Speculation options in the JSON keys of vLLM's ``--speculative-config``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from constrained_spec.errors import ConfigError

METHODS = {
    "ngram": "ngram",
    "[ngram]": "ngram",
    "suffix": "suffix",
    "draft_model": "model",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle3": "eagle",
}
HEADS = ("medusa", "eagle")
_KEYS = ("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "rejection_sample_method")


def from_vllm(given: object) -> dict[str, Any]:
    """The settings that ``given`` (a mapping, or its JSON text) means.

    ``model`` is the draft model, or the folder of trained heads for "medusa" and "eagle"; without ``method`` it drafts.
    Raises ``ConfigError`` for a key or a value that has no meaning here.
    """
    options = _mapping(given)
    for key in options:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}", param=f"speculative/{key}", hint=f"one of {', '.join(_KEYS)}")
    _only(options, "draft_tensor_parallel_size", (1,))
    # The other method of theirs changes the law of the output.
    _only(options, "rejection_sample_method", ("standard", "strict"))
    path = options.get("model")
    method = options.get("method")
    if method is None:
        method = path if path in METHODS else "draft_model"
        path = None if path in METHODS else path
    if method not in METHODS:
        raise ConfigError(f"unknown method {method!r}", param="speculative/method", hint=f"one of {', '.join(METHODS)}")
    drafter = METHODS[method]
    meant: dict[str, Any] = {"drafter": drafter}
    if "num_speculative_tokens" in options:
        meant["gamma"] = options["num_speculative_tokens"]
    if drafter == "model" and path is None:
        raise ConfigError("a draft model has no name", param="speculative/model")
    if path is not None:
        if drafter not in ("model", *HEADS):
            raise ConfigError(f"method {method!r} takes no model", param="speculative/model")
        meant["draft_model" if drafter == "model" else "parts"] = path
    return meant


def _mapping(given: object) -> Mapping[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ConfigError(f"not JSON: {error}", param="speculative") from None
    if not isinstance(given, Mapping):
        raise ConfigError("must be a JSON object", param="speculative")
    return given


def _only(options: Mapping[str, Any], key: str, allowed: tuple[object, ...]) -> None:
    if options.get(key, allowed[0]) not in allowed:
        choices = ", ".join(map(str, allowed))
        raise ConfigError(f"{key} {options[key]!r} is not offered", param=f"speculative/{key}", hint=f"only {choices}")
