"""Constrained generation with exact speculative decoding.

    import constrained_spec as cs

    engine = cs.Engine.load("smollm2-135m")
    answer = engine([{"role": "user", "content": "Ada is 36."}], Person)
    answer.parsed, answer.speculation

Names are resolved on first use, so that ``import constrained_spec`` stays cheap and no sub-package can be reached
half-initialised.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from constrained_spec.api import Engine, Piece, Result, Ticket
    from constrained_spec.errors import (
        ConfigError,
        ConstrainedSpecError,
        DeadlineError,
        EngineError,
        ModelError,
        OverloadedError,
        RequestCancelled,
        RequestError,
    )
    from constrained_spec.grammars import library
    from constrained_spec.grammars.compile import (
        All,
        AnyOf,
        Choice,
        JsonSchema,
        Lark,
        Lazy,
        Optional,
        Regex,
        Tag,
        Tagged,
        Then,
        ToolCalls,
        Without,
    )
    from constrained_spec.grammars.notation import normalise_grammar
    from constrained_spec.processors.base import Position, Processor
    from constrained_spec.processors.wrap import wrap_transformers

__version__ = "0.1.0"

_HOME = {
    "All": "grammars.compile",
    "AnyOf": "grammars.compile",
    "Choice": "grammars.compile",
    "ConfigError": "errors",
    "ConstrainedSpecError": "errors",
    "DeadlineError": "errors",
    "Engine": "api",
    "EngineError": "errors",
    "JsonSchema": "grammars.compile",
    "Lark": "grammars.compile",
    "Lazy": "grammars.compile",
    "ModelError": "errors",
    "Optional": "grammars.compile",
    "OverloadedError": "errors",
    "Piece": "api",
    "Position": "processors.base",
    "Processor": "processors.base",
    "Regex": "grammars.compile",
    "RequestCancelled": "errors",
    "RequestError": "errors",
    "Result": "api",
    "Tag": "grammars.compile",
    "Tagged": "grammars.compile",
    "Then": "grammars.compile",
    "Ticket": "api",
    "ToolCalls": "grammars.compile",
    "Without": "grammars.compile",
    "normalise_grammar": "grammars.notation",
    "wrap_transformers": "processors.wrap",
}

__all__ = [
    "All",
    "AnyOf",
    "Choice",
    "ConfigError",
    "ConstrainedSpecError",
    "DeadlineError",
    "Engine",
    "EngineError",
    "JsonSchema",
    "Lark",
    "Lazy",
    "ModelError",
    "Optional",
    "OverloadedError",
    "Piece",
    "Position",
    "Processor",
    "Regex",
    "RequestCancelled",
    "RequestError",
    "Result",
    "Tag",
    "Tagged",
    "Then",
    "Ticket",
    "ToolCalls",
    "Without",
    "library",
    "normalise_grammar",
    "wrap_transformers",
]


def __getattr__(name: str) -> object:
    if name == "library":
        return import_module("constrained_spec.grammars.library")
    if name in _HOME:
        return getattr(import_module(f"constrained_spec.{_HOME[name]}"), name)
    raise AttributeError(f"module 'constrained_spec' has no attribute {name!r}")
