"""Whole answers and streams of hand-made results: exact shapes, validated by OpenAI's own types."""

from __future__ import annotations

from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage

from constrained_spec.server.answers_llama import llama_cut
from constrained_spec.server.shapes import system_fingerprint
from constrained_spec.server.sse import DONE, encode, ends_with_done, open_stream
from constrained_spec.server.sse_llama import LlamaStream
from tests.server.outputs import CALL, CALLS, THOUGHT, answering, output, plan, streamed, tools, whole


def accumulated(events: list[dict[str, Any]]) -> ChatCompletion:
    """What OpenAI's client makes of a stream."""
    state = ChatCompletionStreamState()
    for event in events:
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    return state.get_final_completion()


def called(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or () if c.type == "function"]


def test_a_chat_answer_has_openais_shape() -> None:
    assert whole(plan(), output("Héllo")) == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "system_fingerprint": "fp_x",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Héllo", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 2,
                "rejected_prediction_tokens": 1,
            },
        },
    }


def test_a_chat_stream_is_role_deltas_reason() -> None:
    head = {
        "id": "id-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "m",
        "system_fingerprint": "fp_x",
    }

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    assert streamed(plan(), output("Hello")) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hell"}),
        chunk({"content": "o"}),
        chunk({}, "stop"),
    ]


def test_usage_is_null_until_the_chunk_without_choices_and_only_on_request() -> None:
    *chunks, last = streamed(plan(include_usage=True), output("Hello"), output("you"))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6 + 4
    assert all("usage" not in chunk and chunk["choices"] for chunk in streamed(plan(), output("Hello")))


def test_continuous_usage_grows_with_every_chunk() -> None:
    events = streamed(plan(continuous_usage=True, include_usage=True), output("Hello you"))
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == counts[-2] == 10


def test_a_prompt_counts_once_for_all_its_outputs() -> None:
    made = plan("completion", prompts=("a", "b"), n=2)
    usage = whole(made, *(output("x") for _ in range(4)))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 8, 28)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("Héllo 😀", {}),
        (f"Well.{CALL}\n{CALL}", {"tools": tools()}),
        (CALL, {"tools": tools(choice="required")}),
        ('[{"name": "f", "arguments": {}}]', {"tools": tools(syntax="json")}),
        ("", {}),
    ],
)
def test_openais_client_reads_from_the_stream_what_the_answer_says(text: str, changes: Any, size: int) -> None:
    made = plan(**changes)
    found = ChatCompletion.model_validate(whole(made, output(text)))
    read = accumulated(streamed(made, output(text, size=size)))
    message, again = found.choices[0].message, read.choices[0].message
    assert (message.content or "") == (again.content or "")
    assert read.choices[0].finish_reason == found.choices[0].finish_reason
    assert called(message) == called(again)
    assert found.choices[0].finish_reason == ("tool_calls" if "tools" in changes else "stop")


def test_tool_calls_begin_with_the_name_and_go_on_with_arguments() -> None:
    events = streamed(plan(tools=tools(choice="f")), output(CALL, size=1))
    first, *calls = [event["choices"][0]["delta"] for event in events[:-1]]
    assert first == {"role": "assistant", "content": None}
    assert set(calls[0]["tool_calls"][0]) == {"index", "id", "type", "function"}
    assert calls[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert all(set(delta["tool_calls"][0]) == {"index", "function"} for delta in calls[1:])
    assert "".join(d["tool_calls"][0]["function"]["arguments"] for d in calls[1:]) == '{"a": "é"}'


def test_a_marker_may_be_a_special_token() -> None:
    tokens = [*b"Well.", CALLS, *b'[{"name": "f", "arguments": {}}]']
    made = plan(tools=tools(syntax="mistral"))
    for size in (1, 4, 100):
        message = accumulated(streamed(made, output(tokens, size=size))).choices[0].message
        assert message.content == "Well."
        assert called(message) == [("f", "{}")]
    message = ChatCompletion.model_validate(whole(made, output(tokens))).choices[0].message
    assert (message.content, len(message.tool_calls or ())) == ("Well.", 1)


def test_custom_tools_carry_their_input() -> None:
    text = '<tool_call>\n{"name": "sh", "arguments": {"input": "a\\nb"}}\n</tool_call>'
    raw = tools(syntax="raw", choice="sh", custom={"sh": None})
    for made, written in ((plan(tools=tools(custom={"sh": None})), text), (plan(tools=raw), "a\nb")):
        call = whole(made, output(written))["choices"][0]["message"]["tool_calls"][0]
        assert {k: v for k, v in call.items() if k != "id"} == {
            "type": "custom",
            "custom": {"name": "sh", "input": "a\nb"},
        }
        deltas = [e["choices"][0]["delta"] for e in streamed(made, output(written, size=1))]
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert calls[0]["type"] == "custom"
        assert "".join(call["custom"]["input"] for call in calls) == "a\nb"


def test_reasoning_is_told_apart_and_counted() -> None:
    made = plan(reasoning=True)
    for tokens in (b"<think>\nhm\n</think>\n\nyes", [*b"<think>\nhm\n", THOUGHT, *b"\n\nyes"]):
        body = whole(made, output(list(tokens)))
        assert body["choices"][0]["message"] == {
            "role": "assistant", "content": "yes", "refusal": None, "reasoning_content": "hm",
        }  # fmt: skip
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(tokens) - len(b"\n\nyes")
        deltas = [e["choices"][0]["delta"] for e in streamed(made, output(list(tokens), size=1))]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
        assert "".join(delta.get("content") or "" for delta in deltas) == "yes"


def test_a_call_that_was_cut_off_ends_for_its_length() -> None:
    body = whole(plan(tools=tools()), output(CALL[:-20], reason="length", eos=False))
    assert body["choices"][0]["finish_reason"] == "length"
    arguments = body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments
    assert '{"a": "é"}'.startswith(arguments)


def test_logprobs_show_bytes_and_partial_characters_and_no_eos() -> None:
    made = plan(logprobs=True, top_logprobs=1)
    found = ChatCompletion.model_validate(whole(made, output("é"))).choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [(entry.token, entry.bytes) for entry in found.content] == [("\ufffd", [0xC3]), ("\ufffd", [0xA9])]
    assert [len(entry.top_logprobs) for entry in found.content] == [0, 1]
    streamed_logprobs = accumulated(streamed(made, output("é", size=1))).choices[0].logprobs
    assert streamed_logprobs is not None
    assert streamed_logprobs.content is not None
    assert [entry.bytes for entry in streamed_logprobs.content] == [[0xC3], [0xA9]]


def test_the_logarithm_of_zero_is_a_json_number() -> None:
    body = whole(plan(logprobs=True, top_logprobs=5), output("xyz"))
    assert body["choices"][0]["logprobs"]["content"][1]["top_logprobs"][1]["logprob"] == -9999.0


def test_completions_have_parallel_lists_and_offsets() -> None:
    made = plan("completion", logprobs=True, top_logprobs=1, echo=True, prompts=("Hi ",))
    body = Completion.model_validate(whole(made, output("aé"))).choices[0]
    assert (body.text, body.finish_reason) == ("Hi aé", "stop")
    assert body.logprobs is not None
    assert body.logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert body.logprobs.text_offset == [3, 4, 4]
    assert body.logprobs.token_logprobs == [-0.5] * 3
    assert body.logprobs.top_logprobs == [{token: -0.5} for token in body.logprobs.tokens]
    events = streamed(made, output("aé", size=1))
    choices = [event["choices"][0] for event in events]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert "".join(choice["text"] for choice in choices) == "Hi aé"
    assert [n for choice in choices if choice["logprobs"] for n in choice["logprobs"]["text_offset"]] == [3, 4, 4]
    Completion.model_validate(events[-1])


def test_echo_of_token_ids_is_their_text() -> None:
    body = whole(plan("completion", echo=True, prompts=([72, 105], [0xFF])), output("a"), output("b"))
    assert [choice["text"] for choice in body["choices"]] == ["Hia", "\ufffdb"]


def test_fim_answers_in_the_shape_of_chat() -> None:
    events = streamed(plan("fim"), output("mid"))
    assert events[1]["choices"][0]["delta"]["content"] == "mid"
    assert whole(plan("fim"), output("mid"))["choices"][0]["message"]["content"] == "mid"


def test_rounds_come_with_the_tokens_they_committed() -> None:
    made = plan(return_rounds=True, tools=tools())
    pieces, result = output(f"Hi{CALL}", size=3)
    events = streamed(made, (pieces, result))
    told = [event["spec"] for event in events if "spec" in event]
    assert [t["id"] for spec in told for t in spec["tokens"]] == list(result.tokens)
    assert told[0] == {
        "tokens": [
            {"id": 72, "text": "H", "origin": "ngram"},
            {"id": 105, "text": "i", "origin": "recovered"},
            {"id": 60, "text": "<", "origin": "recovered"},
        ],
        "round": {
            "first": 0,
            "places": [
                {
                    "draft": 72, "draft_text": "H", "source": "ngram", "p": 0.5, "q": None, "coin": 0.25,
                    "accepted": True, "legal": 7,
                    "top": [[65, 0.5, "A"]], "token": 72,
                }
            ],
        },
    }  # fmt: skip
    spec = whole(made, (pieces, result))["choices"][0]["spec"]
    assert len(spec["rounds"]) == len(pieces)
    assert [t["id"] for t in spec["tokens"]] == list(result.tokens)


def test_speculation_figures_agree_with_each_other() -> None:
    made = plan(return_spec_metrics=True)
    figures = whole(made, output("a"), output("b"))["metrics"]["speculative_decoding"]
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"].values()) == 6
    assert figures["acceptance_histogram"] == {"0": 2, "1": 2, "2": 2}
    assert sum(int(k) * n for k, n in figures["acceptance_histogram"].items()) == figures["num_accepted_draft_tokens"]
    assert figures["mean_acceptance_length"] == 1 + 6 / 6
    assert figures["draft_acceptance_rate"] == 0.5
    assert figures["by_source"] == {"ngram": {"proposed": 12, "accepted": 6}}
    assert streamed(made, output("a"))[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] == 3


def test_what_is_not_exact_is_said() -> None:
    changes: dict[str, Any] = {
        "exactness": "approximate",
        "declared": ("close_on_length",),
        "unenforced": (("/x", "not"),),
        "holds": True,
    }
    said = {
        "exactness": "approximate",
        "declared": ["close_on_length"],
        "unenforced": [{"pointer": "/x", "keyword": "not"}],
        "holds": True,
        "violation": None,
    }
    for kind in ("chat", "completion"):
        assert whole(plan(kind), output("a", **changes))["choices"][0]["constrained_spec"] == said
        assert streamed(plan(kind), output("a", **changes))[-1]["choices"][0]["constrained_spec"] == said
    for kind in ("llama", "infill", "responses"):
        assert whole(plan(kind), output("a", **changes))["constrained_spec"] == said
    assert "constrained_spec" not in whole(plan(), output("a"))["choices"][0]


def test_an_error_midway_is_one_event_that_openais_client_raises_on() -> None:
    body = {"error": {"message": "no", "type": "server_error", "param": None, "code": "internal_error"}}
    for kind in ("chat", "completion", "fim", "llama", "infill"):
        assert open_stream(answering(plan(kind)), 0, 10).failed(body) == [body]


def test_events_on_the_wire() -> None:
    assert encode({"choices": [], "text": "é\n"}) == 'data: {"choices":[],"text":"é\\n"}\n\n'.encode()
    assert encode({"type": "response.created"}) == b'event: response.created\ndata: {"type":"response.created"}\n\n'
    assert DONE == b"data: [DONE]\n\n"
    assert [ends_with_done(plan(kind)) for kind in ("chat", "completion", "fim", "infill", "llama", "responses")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_llama_answers_say_how_they_ended_and_how_long_it_took() -> None:
    made = plan("llama", options={"stop": ("END",)})
    body = whole(made, output("mid"))
    assert (body["content"], body["stop"], body["stop_type"], body["truncated"]) == ("mid", True, "eos", False)
    assert (body["tokens_predicted"], body["tokens_evaluated"]) == (4, 10)
    times = body["timings"]
    assert (times["draft_n"], times["draft_n_accepted"], times["cache_n"], times["prompt_n"]) == (6, 3, 4, 6)
    assert (times["prompt_ms"], times["predicted_ms"], times["predicted_per_second"]) == (500.0, 1000.0, 4.0)
    assert whole(made, output("mi", reason="length", eos=False))["stop_type"] == "limit"
    stopped = whole(made, output("miEND", eos=False, text="mi"))
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("mi", "word", "END")


def test_a_llama_stream_has_content_then_how_it_ended() -> None:
    events = streamed(plan("infill", include_usage=True), output("a middle", size=2))
    assert "".join(event["content"] for event in events) == "a middle"
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert "timings" in events[-1]


def test_a_fingerprint_names_weights_numerics_and_version() -> None:
    prints = {
        system_fingerprint(*facts) for facts in (("a", "f", "1"), ("b", "f", "1"), ("a", "g", "1"), ("a", "f", "2"))
    }
    assert len(prints) == 4
    assert system_fingerprint("a", "f", "1") in prints


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_an_infill_ends_before_the_first_line_that_leaves_the_block(size: int) -> None:
    made = plan("infill", n_indent=2)
    for text, expected in (
        ("a\n  b\n\n  c\nd\n  e", "a\n  b\n\n  c"),
        ("a\n  b\n", "a\n  b\n"),
        ("  \n  a", "  \n  a"),
        ("a\n d", "a"),
    ):
        pieces, _ = output(text, size=size)
        stream = LlamaStream(answering(made), 10)
        shown = [event["content"] for piece in pieces for event in stream.piece(piece)]
        assert "".join(shown) == stream.text == expected
        assert stream.done == (expected != text)
        assert stream.cut()[0]["tokens_predicted"] == stream.predicted


def test_an_answer_that_was_given_up_has_the_shape_of_others() -> None:
    cut, end = (
        set(made) for made in (llama_cut(answering(plan("infill")), "", 0, 0), whole(plan("infill"), output("a")))
    )
    assert cut == end
