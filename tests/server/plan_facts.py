"""Facts of a model whose tokens are the 256 bytes, and ways to ask for a plan or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.constraints import Constraint
from constrained_spec.server.chat import plan_chat
from constrained_spec.server.plan import FimTokens, Limits, ModelFacts, Plan
from constrained_spec.types import Vocabulary

FIRST = 4  # id of byte 0
SPECIAL = {"<eos>": 0, "<pre>": 1, "<suf>": 2, "<mid>": 3}
LIMITS = Limits()
HI = [{"role": "user", "content": "hi"}]


def encode(text: str) -> list[int]:
    return [FIRST + byte for byte in text.encode()]


def facts(**more: Any) -> ModelFacts:
    """Facts of the model "m" without a template of its own for tools, and with ``more``."""
    made: dict[str, Any] = {"names": ("m",), "capacity": 512, "vocabulary_size": FIRST + 256, "eos_ids": (0,)}
    return ModelFacts(**{**made, "encode": encode, **more})


FIM = FimTokens(prefix=1, suffix=2, middle=3)
FACTS = facts()
VOCABULARY = Vocabulary((None,) * FIRST + tuple(bytes([b]) for b in range(256)), (0,), SPECIAL, encode)


def chat(facts: Any = FACTS, limits: Any = LIMITS, **body: Any) -> Plan:
    """The plan of a chat request with the members ``body``, which may be anything."""
    return plan_chat({"messages": HI, **body}, facts, limits)


def refused(make: Callable[..., Plan], *args: Any, **body: Any) -> tuple[str | None, str | None]:
    """(code, param) of the error that ``make`` raises."""
    with pytest.raises(RequestError) as caught:
        make(*args, **body)
    assert caught.value.message
    return getattr(caught.value, "code", None), caught.value.param


def legal(constraint: Constraint | None, text: str) -> bool:
    """Is ``text`` a whole output under ``constraint``?"""
    if constraint is None:
        return True
    matcher = compile_constraint(constraint, VOCABULARY).matcher()
    return all(matcher.advance(token) for token in encode(text)) and matcher.is_complete


def function(name: str = "f", parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A function tool."""
    inner: dict[str, Any] = {"name": name}
    if parameters is not None:
        inner["parameters"] = parameters
    return {"type": "function", "function": inner}
