"""Outlines as a client: its models of vLLM's, SGLang's and OpenAI's API, over loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import outlines
import pytest
from openai import OpenAI

from tests.clients.common import MODEL, Person, is_person

PROMPT = "Ada Lovelace died at 36. Who was she?"
STYLES: dict[str, Callable[..., Any]] = {
    "vllm": outlines.from_vllm,
    "sglang": outlines.from_sglang,
    "openai": outlines.from_openai,
}
OPEN_STYLES = ["vllm", "sglang"]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("style", STYLES)
def test_json(client: OpenAI, style: str) -> None:
    model = STYLES[style](client, MODEL)
    text = model(PROMPT, Person, temperature=0)
    is_person(json.loads(text))
    assert "".join(model.stream(PROMPT, Person, temperature=0)) == text


@pytest.mark.parametrize("style", OPEN_STYLES)
def test_literal_regex_and_integer(client: OpenAI, style: str) -> None:
    model = STYLES[style](client, MODEL)
    assert model(PROMPT, Literal["red", "blue"]) in ("red", "blue")
    assert re.fullmatch("[a-c]{3}", model(PROMPT, outlines.regex("[a-c]{3}")))
    assert re.fullmatch("[-+]?[0-9]+", model(PROMPT, int, max_tokens=6))


# Its warning is that SGLang itself reads another notation under this name; here the text tells which it is.
@pytest.mark.filterwarnings("ignore:SGLang grammar-based structured outputs")
@pytest.mark.parametrize("style", OPEN_STYLES)
def test_grammar(client: OpenAI, style: str) -> None:
    model = STYLES[style](client, MODEL)
    assert re.fullmatch("a{1,3}!", model(PROMPT, outlines.cfg('start: "a"~1..3 "!"'), temperature=1, seed=3))


@pytest.mark.parametrize("style", STYLES)
def test_plain_text(client: OpenAI, style: str) -> None:
    model = STYLES[style](client, MODEL)
    assert isinstance(model(PROMPT, max_tokens=5), str)
    assert len(model(PROMPT, max_tokens=5, n=2)) == 2
