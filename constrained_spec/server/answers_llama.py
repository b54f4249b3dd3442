"""The shapes of llama.cpp's ``/completion`` and ``/infill``."""

from __future__ import annotations

from typing import Any

from constrained_spec.api.result import Result
from constrained_spec.server.shapes import Answering, Finished, Json, law, pace, spec_metrics, timings


def llama_answer(a: Answering, output: Finished) -> Json:
    """The whole answer."""
    return {**llama_end(a, output.result, output.index), "content": output.result.text}


def llama_end(a: Answering, result: Result[Any], index: int = 0) -> Json:
    """The last event of a stream: no more text, and how it ended."""
    body: Json = {
        "index": index,
        "content": "",
        "tokens": [],
        "model": a.plan.model,
        "stop": True,
        **_stop(a, result),
        "truncated": False,  # a prompt that does not fit is refused, never cut
        "tokens_evaluated": result.usage.prompt_tokens,
        "tokens_predicted": result.usage.completion_tokens,
        "tokens_cached": result.usage.cached_tokens,
        "timings": timings(result),
        **law(result),
    }
    if a.plan.return_spec_metrics:
        body["metrics"] = spec_metrics([result])
    return body


def llama_cut(
    a: Answering, content: str, prompt_tokens: int, predicted: int, times: tuple[float, float] = (0.0, 0.0)
) -> Json:
    """An answer that the server ended itself: a warm-up without tokens, the time limit, or a line out of the block.

    ``times``: seconds until the first token, and in all.
    """
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "model": a.plan.model,
        "stop": True,
        "stop_type": "limit",
        "stopping_word": "",
        "truncated": False,
        "tokens_evaluated": prompt_tokens,
        "tokens_predicted": predicted,
        "tokens_cached": 0,
        "timings": pace(0, prompt_tokens if predicted else 0, predicted, times),
    }


def _stop(a: Answering, result: Result[Any]) -> Json:
    """Why it ended: "limit", "word" with the stop string, or "eos", which is also the end of a grammar."""
    if result.finish_reason == "length":
        return {"stop_type": "limit", "stopping_word": ""}
    asked = a.plan.options.get("stop") or ()
    full = a.vocabulary.bytes_of(result.tokens).decode("utf-8", errors="replace")
    for word in (asked,) if isinstance(asked, str) else asked:
        if full.startswith(result.text + word) or (result.text.endswith(word) and full.startswith(result.text)):
            return {"stop_type": "word", "stopping_word": word}
    return {"stop_type": "eos", "stopping_word": ""}
