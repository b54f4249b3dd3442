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
    from constrained_spec.api import Engine, Piece, Result
    from constrained_spec.errors import ConfigError, ConstrainedSpecError, ModelError, RequestError
    from constrained_spec.grammars.compile import Choice, JsonSchema, Lark, Regex
    from constrained_spec.processors.base import Position, Processor
    from constrained_spec.processors.wrap import wrap_transformers

__version__ = "0.1.0"

_HOME = {
    "Choice": "grammars.compile",
    "ConfigError": "errors",
    "ConstrainedSpecError": "errors",
    "Engine": "api",
    "JsonSchema": "grammars.compile",
    "Lark": "grammars.compile",
    "ModelError": "errors",
    "Piece": "api",
    "Position": "processors.base",
    "Processor": "processors.base",
    "Regex": "grammars.compile",
    "RequestError": "errors",
    "Result": "api",
    "wrap_transformers": "processors.wrap",
}

__all__ = [
    "Choice",
    "ConfigError",
    "ConstrainedSpecError",
    "Engine",
    "JsonSchema",
    "Lark",
    "ModelError",
    "Piece",
    "Position",
    "Processor",
    "Regex",
    "RequestError",
    "Result",
    "wrap_transformers",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"constrained_spec.{_HOME[name]}"), name)
    raise AttributeError(f"module 'constrained_spec' has no attribute {name!r}")
