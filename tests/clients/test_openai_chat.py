"""openai-python: chat completions that are not streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, LengthFinishReasonError
from openai.types.chat import ChatCompletion

from constrained_spec.api import Engine
from tests.clients.common import MODEL, SCHEMA, USER, Person, Talk, is_person

OFF = {"extra": {"speculation": "off"}}
# What the tiny model writes freely is hardly ever text.
LETTERS = {"structured_outputs": {"regex": "[a-z]{24}"}}
CONSTRAINTS: Mapping[str, Mapping[str, Any]] = {
    "regex": {"structured_outputs": {"regex": "[a-f]{3}-[0-9]{1,4}"}},
    "choice": {"structured_outputs": {"choice": ["north", "northwest", "south"]}},
    "grammar": {"structured_outputs": {"grammar": 'start: ("ab" | "cd") "!"'}},
    "json": {"structured_outputs": {"json": SCHEMA}},
    "guided": {"guided_regex": "(yes|no){2}"},
    "free": {},
}


def text(answer: ChatCompletion, index: int = 0) -> str:
    return answer.choices[index].message.content or ""


def asked(talk: Talk, *, body: Mapping[str, Any] | None = None, **options: Any) -> ChatCompletion:
    """One answer of the tiny model; at temperature 0 unless the options say otherwise."""
    options = {"temperature": 0, "max_tokens": 60, **options}

    async def create(client: AsyncOpenAI) -> ChatCompletion:
        answer: ChatCompletion = await client.chat.completions.create(
            model=MODEL, messages=USER, extra_body=body, **options
        )
        return answer

    return talk(create)


@pytest.mark.parametrize("seed", range(3))
def test_parse_gives_the_object(talk: Talk, seed: int) -> None:
    answer = talk(lambda c: c.chat.completions.parse(model=MODEL, messages=USER, response_format=Person, seed=seed))
    message = answer.choices[0].message
    is_person(json.loads(message.content or ""))
    assert message.parsed == Person.model_validate_json(message.content or "")
    assert message.refusal is None and answer.choices[0].finish_reason == "stop"


def test_a_cut_answer_is_said_to_be_cut(talk: Talk) -> None:
    with pytest.raises(LengthFinishReasonError) as caught:
        talk(lambda c: c.chat.completions.parse(model=MODEL, messages=USER, response_format=Person, max_tokens=5))
    cut = caught.value.completion
    assert text(cut) == '{"nam' and cut.usage is not None and cut.usage.completion_tokens == 5


def check(name: str, written: str) -> None:
    if name == "regex":
        assert re.fullmatch("[a-f]{3}-[0-9]{1,4}", written)
    elif name == "choice":
        assert written in ("north", "northwest", "south")
    elif name == "grammar":
        assert written in ("ab!", "cd!")
    elif name == "json":
        is_person(json.loads(written))
    elif name == "guided":
        assert re.fullmatch("(yes|no){2}", written)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_hold_and_drafts_change_nothing(talk: Talk, name: str) -> None:
    constraint = CONSTRAINTS[name]
    with_drafts = asked(talk, body={**constraint, "extra": {"speculation": "fixed", "gamma": 6}})
    check(name, text(with_drafts))
    without = asked(talk, body={**constraint, **OFF})
    assert text(with_drafts) == text(without)
    assert with_drafts.choices[0].finish_reason == without.choices[0].finish_reason
    sampled = asked(talk, body=constraint, temperature=1.3, seed=4)
    check(name, text(sampled))


@pytest.mark.parametrize("pattern", ["[a-c]{5}", "[a-zé]{1,9}", "x*"])
@pytest.mark.parametrize("seed", range(3))
def test_usage_counts_every_token(talk: Talk, tiny: Engine, pattern: str, seed: int) -> None:
    answer = asked(talk, body={"structured_outputs": {"regex": pattern}}, temperature=1, seed=seed)
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens == len(tiny.encode(USER))
    written = text(answer)
    # One token a byte, and the end where something else might have followed.
    ended = answer.choices[0].finish_reason == "stop" and re.fullmatch(pattern, written + written[-1:] or "x")
    assert usage.completion_tokens == len(written.encode()) + bool(ended)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@pytest.mark.parametrize("wanted", [1, 7])
def test_usage_counts_a_cut_answer(talk: Talk, wanted: int) -> None:
    answer = asked(talk, max_tokens=None, max_completion_tokens=wanted, body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == wanted
    assert answer.choices[0].finish_reason == "length"


def predicted(talk: Talk, content: Any, **options: Any) -> tuple[str, int, int]:
    answer = asked(talk, prediction={"type": "content", "content": content}, **options)
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    details = answer.usage.completion_tokens_details
    accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert accepted is not None and rejected is not None
    return text(answer), accepted, rejected


def test_a_right_prediction_is_taken_and_a_wrong_one_harmless(talk: Talk) -> None:
    plain = text(asked(talk, body=LETTERS))
    right = predicted(talk, plain, body=LETTERS)
    assert right[0] == plain and right[1] > 12 and right[2] == 0
    parts = predicted(talk, [{"type": "text", "text": plain[:8]}, {"type": "text", "text": plain[8:]}], body=LETTERS)
    # How many drafts a round has is up to the clock; that the parts are taken as one text is not.
    assert parts[0] == plain and parts[1] > 12 and parts[2] == 0
    wrong = predicted(talk, "ENTIRELY ANOTHER", body=LETTERS)
    assert wrong[0] == plain and wrong[1] == 0


def test_a_prediction_goes_with_a_schema_and_with_n_and_logprobs(talk: Talk) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    plain = text(asked(talk, response_format=shape))
    got, accepted, rejected = predicted(talk, plain, response_format=shape, n=2, logprobs=True)
    assert got == plain and accepted > 0 and rejected == 0


def test_logprobs_are_the_targets(talk: Talk) -> None:
    found = []
    for speculation in ("fixed", "off"):
        answer = asked(talk, logprobs=True, top_logprobs=3, body={**LETTERS, "extra": {"speculation": speculation}})
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert answer.usage is not None and len(logprobs.content) == answer.usage.completion_tokens
        assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
        # Greedy: the one written is the likeliest.
        assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in logprobs.content)
        found.append([entry.logprob for entry in logprobs.content])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_n_and_seed(talk: Talk) -> None:
    options: dict[str, Any] = {"seed": 11, "temperature": 1, "max_tokens": 12}
    first, again = asked(talk, n=3, **options), asked(talk, n=3, **options)
    texts = [text(first, i) for i in range(3)]
    assert texts == [text(again, i) for i in range(3)]
    assert [choice.index for choice in first.choices] == [0, 1, 2] and len(set(texts)) == 3
    # The first of several is what the seed gives alone, with and without drafts.
    assert text(asked(talk, **options)) == texts[0]
    assert text(asked(talk, **options, body=OFF)) == texts[0]
    assert text(asked(talk, **{**options, "seed": 12})) != texts[0]


def test_stop_ends_the_text_before_it(talk: Talk) -> None:
    body = {"structured_outputs": {"regex": "(ab-){4}cd"}}
    answer = asked(talk, body=body, stop=["-c", "zz"])
    assert text(answer) == "ab-ab-ab-ab" and answer.choices[0].finish_reason == "stop"


def test_every_sampling_parameter_is_taken(talk: Talk) -> None:
    answer = asked(
        talk, temperature=0.7, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"65": -5},
        seed=-1, user="u", metadata={"a": "b"}, max_tokens=8,
        body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "min_tokens": 2},
    )  # fmt: skip
    assert answer.usage is not None and 2 <= answer.usage.completion_tokens <= 8


def test_speculation_figures_on_request(talk: Talk) -> None:
    answer = asked(talk, body={"structured_outputs": {"regex": "(abc){8}"}, "return_spec_metrics": True})
    figures = (answer.model_extra or {})["metrics"]["speculative_decoding"]
    assert figures["num_accepted_draft_tokens"] > 0 and figures["mean_acceptance_length"] > 1


def test_the_models_are_listed(talk: Talk) -> None:
    async def first(client: Any) -> Any:
        return [model async for model in client.models.list()]

    models = talk(first)
    assert [model.id for model in models] == [MODEL]
    assert models[0].model_extra["max_model_len"] == 2048
