"""The shape of ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence

from constrained_spec.server.shapes import Answering, Finished, Json, finite, law, spec_metrics
from constrained_spec.state.sequence import TokenLogprob
from constrained_spec.state.text import TextState


def completion_answer(a: Answering, outputs: Sequence[Finished]) -> Json:
    """A ``text_completion`` object."""
    results = [output.result for output in outputs]
    body = {**completion_head(a), "choices": [_choice(a, output) for output in outputs], "usage": a.usage(results)}
    if a.plan.return_spec_metrics:
        body["metrics"] = spec_metrics(results)
    return body


def completion_head(a: Answering) -> Json:
    """What a whole answer and every chunk of it begin with."""
    return {
        "id": a.id,
        "object": "text_completion",
        "created": a.created,
        "model": a.plan.model,
        "system_fingerprint": a.fingerprint,
    }


def _choice(a: Answering, output: Finished) -> Json:
    result = output.result
    echoed = echo(a, output.index)
    table = LogprobTable(a, len(echoed))
    choice: Json = {
        "index": output.index,
        "text": echoed + result.text,
        "logprobs": table.take(a.shown(result.logprobs, result)),
        "finish_reason": result.finish_reason,
        **law(result),
    }
    if a.plan.return_rounds:
        choice["spec"] = a.rounds(output.pieces)
    return choice


def echo(a: Answering, index: int) -> str:
    """The text of the prompt of output ``index`` where it is to be repeated, else nothing."""
    if not a.plan.echo:
        return ""
    prompt = a.prompt_of(index)
    if isinstance(prompt, str):
        return prompt
    assert isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    return a.vocabulary.bytes_of(prompt).decode("utf-8", errors="replace")


class LogprobTable:
    """The parallel lists of a completion's ``logprobs``; offsets go on from one call of ``take`` to the next.

    ``start`` is the number of characters before the first token. A token that is a part of a character is written
    ``bytes:\\xe2\\x82``, as OpenAI writes it: two of them must not look the same as keys.
    """

    def __init__(self, a: Answering, start: int) -> None:
        self._a = a
        self._start = start
        self._text = TextState(a.vocabulary)

    def take(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        """The lists for the tokens that follow; None if no logprobs were asked for."""
        if not self._a.plan.logprobs:
            return None
        tops: list[dict[str, float]] = []
        offsets: list[int] = []
        for entry in logprobs:
            offsets.append(self._start + len(self._text))
            self._text.advance(entry.token)
            tops.append(self._top(entry))
        return {
            "tokens": [self._key(entry.token) for entry in logprobs],
            "token_logprobs": [finite(entry.logprob) for entry in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The most probable tokens, and the chosen one. Of two ids with one spelling the more probable counts."""
        found: dict[str, float] = {}
        for token, logprob in (*entry.top[: self._a.plan.top_logprobs], (entry.token, entry.logprob)):
            key = self._key(token)
            found[key] = max(finite(logprob), found.get(key, finite(logprob)))
        return found

    def _key(self, token: int) -> str:
        data = self._a.vocabulary.tokens[token]
        if data is None:
            return self._a.special(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
