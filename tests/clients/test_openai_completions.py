"""openai-python: completions of plain text."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Completion

from constrained_spec.api import Engine
from tests.clients.common import MODEL, Talk

PROMPT = "Once upon a time"
LETTERS = {"structured_outputs": {"regex": "[a-z]{10}"}}


def asked(talk: Talk, **options: Any) -> Completion:
    async def create(client: AsyncOpenAI) -> Completion:
        answer: Completion = await client.completions.create(
            **{"model": MODEL, "prompt": PROMPT, "extra_body": LETTERS, "temperature": 0, **options}
        )
        return answer

    return talk(create)


def test_a_constraint_holds_with_and_without_drafts(talk: Talk) -> None:
    drafted = asked(talk)
    assert re.fullmatch("[a-z]{10}", drafted.choices[0].text)
    off = asked(talk, extra_body={**LETTERS, "extra": {"speculation": "off"}})
    assert off.choices[0].text == drafted.choices[0].text
    assert drafted.usage is not None and drafted.usage.completion_tokens == 10


def test_the_prompt_is_text_or_ids_or_several_of_both(talk: Talk, tiny: Engine) -> None:
    ids = tiny.encode(PROMPT)
    one = asked(talk).choices[0].text
    assert asked(talk, prompt=ids).choices[0].text == one
    assert [c.text for c in asked(talk, prompt=[ids, ids]).choices] == [one, one]
    two = asked(talk, prompt=["Once", PROMPT], n=2)
    assert [c.index for c in two.choices] == [0, 1, 2, 3]
    assert [c.text for c in two.choices[2:]] == [one, one]
    assert two.usage is not None and two.usage.prompt_tokens == len(tiny.encode("Once")) + len(ids)
    assert two.usage.completion_tokens == 40


def test_echo_and_logprobs(talk: Talk) -> None:
    plain = asked(talk, logprobs=2).choices[0]
    assert plain.logprobs is not None
    assert "".join(plain.logprobs.tokens or ()) == plain.text
    assert plain.logprobs.text_offset == list(range(10))
    assert all(len(top) >= 2 for top in plain.logprobs.top_logprobs or ())
    assert asked(talk, echo=True).choices[0].text == PROMPT + plain.text


def test_stop_n_and_seed(talk: Talk) -> None:
    options: dict[str, Any] = {"temperature": 1, "seed": 4, "n": 3}
    texts = [c.text for c in asked(talk, **options).choices]
    assert texts == [c.text for c in asked(talk, **options).choices] and len(set(texts)) == 3
    stopped = asked(talk, stop="-", extra_body={"structured_outputs": {"regex": "abc-abc"}}).choices[0]
    assert stopped.text == "abc" and stopped.finish_reason == "stop"


def test_the_default_length_is_openais(talk: Talk) -> None:
    answer = asked(talk, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_the_stream_adds_up_to_the_answer(talk: Talk) -> None:
    async def read(client: AsyncOpenAI) -> list[Completion]:
        stream = await client.completions.create(
            model=MODEL, prompt=PROMPT, stream=True, temperature=0, extra_body=LETTERS,
            stream_options={"include_usage": True},
        )  # fmt: skip
        return [chunk async for chunk in stream]

    *chunks, last = talk(read)
    assert "".join(chunk.choices[0].text for chunk in chunks) == asked(talk).choices[0].text
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 10
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_middle_is_refused_without_tokens_for_it(talk: Talk) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        asked(talk, suffix="\n")
    assert caught.value.code == "fim_not_supported" and caught.value.param == "/suffix"
