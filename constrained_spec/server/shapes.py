"""What all shapes of answers share: identity, usage, tokens and their probabilities, speculation figures."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from constrained_spec.server.reasoning import reasoning_tokens
from constrained_spec.state.sequence import TokenLogprob
from constrained_spec.types import Vocabulary

if TYPE_CHECKING:
    from constrained_spec.api.result import Piece, Result
    from constrained_spec.engine.inspection import Inspection
    from constrained_spec.server.plan import ModelFacts, Plan

_PREFIXES = {"chat": "chatcmpl-", "fim": "fim-", "completion": "cmpl-", "responses": "resp_"}
_LEAST = -9999.0  # stands for the logarithm of a probability of zero, which is no JSON number

Json = dict[str, Any]


def new_id(prefix: str) -> str:
    """A fresh id that begins with ``prefix``."""
    return prefix + secrets.token_hex(12)


def system_fingerprint(weights: str, numerics: str, version: str) -> str:
    """Names the law and the code: equal fingerprints and seeds give equal texts. ``weights`` is the digest of them."""
    return "fp_" + hashlib.blake2b(repr((weights, numerics, version)).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished output: its place among all outputs of the request, its result, and the pieces it came in."""

    index: int
    result: Result[Any]
    pieces: Sequence[Piece[Any]] = ()


@dataclass(frozen=True, slots=True)
class Answering:
    """One request on its way out: the plan, the model, and what every part of the answer repeats.

    ``id`` and ``created`` (seconds since 1970) are the answer's own; a request makes one value, for all its outputs.
    """

    plan: Plan
    facts: ModelFacts
    vocabulary: Vocabulary
    fingerprint: str | None = None
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", new_id(_PREFIXES.get(self.plan.kind, "")))

    def token_text(self, token: int) -> str:
        """The text of one token; a part of a character is shown as U+FFFD, a special token by its name."""
        data = self.vocabulary.tokens[token]
        return self.special(token) if data is None else data.decode("utf-8", errors="replace")

    def special(self, token: int) -> str:
        """The name of a token without text."""
        return next((name for name, i in self.vocabulary.special.items() if i == token), "")

    def prompt_of(self, index: int) -> object:
        """The prompt that output ``index`` continues."""
        return self.plan.prompts[index // self.plan.n]

    # ---- usage ----------------------------------------------------------------------------------------------------

    def usage(self, results: Sequence[Result[Any]]) -> Json:
        """OpenAI's usage of all outputs, in order. A prompt counts once, however many outputs continue it."""
        prompts = [r.usage for r in results[:: self.plan.n]]
        usages = [r.usage for r in results]
        return _usage(
            sum(u.prompt_tokens for u in prompts),
            sum(u.completion_tokens for u in usages),
            sum(u.cached_tokens for u in prompts),
            sum(map(self.reasoning_tokens, results)),
            sum(u.accepted_prediction_tokens for u in usages),
            sum(u.rejected_prediction_tokens for u in usages),
        )

    def reasoning_tokens(self, result: Result[Any]) -> int:
        """Tokens of the reasoning block of ``result``."""
        if not self.plan.reasoning:
            return 0
        return reasoning_tokens(result.tokens, self.vocabulary, self.facts.think, self.facts.think_opened)

    # ---- probabilities --------------------------------------------------------------------------------------------

    def shown(self, logprobs: Sequence[TokenLogprob], result: Result[Any] | None) -> Sequence[TokenLogprob]:
        """Without the EOS token that ended the text: it is no part of the answer. ``result`` if these are the last."""
        if result is not None and result.finish_reason == "stop" and logprobs:
            return logprobs[:-1] if logprobs[-1].token in self.vocabulary.eos_ids else logprobs
        return logprobs

    def logprobs(self, logprobs: Sequence[TokenLogprob], result: Result[Any] | None) -> Json | None:
        """The ``logprobs`` object of a chat choice, of some tokens; None unless asked for."""
        if not self.plan.logprobs:
            return None
        return {"content": [self.logprob(entry) for entry in self.shown(logprobs, result)], "refusal": None}

    def logprob(self, entry: TokenLogprob) -> Json:
        """One token with its alternatives."""
        top = entry.top[: self.plan.top_logprobs]
        return {**self._one(entry.token, entry.logprob), "top_logprobs": [self._one(*pair) for pair in top]}

    def _one(self, token: int, logprob: float) -> Json:
        data = self.vocabulary.tokens[token]
        return {
            "token": self.token_text(token),
            "logprob": finite(logprob),
            "bytes": None if data is None else list(data),
        }

    # ---- speculation ----------------------------------------------------------------------------------------------

    def spec(self, piece: Piece[Any]) -> Json:
        """The tokens of a piece by origin, and what its round judged."""
        return {"tokens": self.origins(piece), "round": self.round(piece.inspection)}

    def rounds(self, pieces: Sequence[Piece[Any]]) -> Json:
        """As ``spec``, of all pieces of an output."""
        tokens = [token for piece in pieces for token in self.origins(piece)]
        return {"tokens": tokens, "rounds": [self.round(piece.inspection) for piece in pieces]}

    def origins(self, piece: Piece[Any]) -> list[Json]:
        """Id, text and origin of each token."""
        return [
            {"id": token, "text": self.token_text(token), "origin": origin}
            for token, origin in zip(piece.tokens, piece.origins, strict=True)
        ]

    def round(self, inspection: Inspection | None) -> Json | None:
        """One round as JSON; ``top`` holds (id, probability, text)."""
        if inspection is None:
            return None
        places = [
            {
                "draft": p.draft,
                "draft_text": None if p.draft is None else self.token_text(p.draft),
                "source": p.source,
                "p": p.p,
                "q": p.q,
                "coin": p.coin,
                "accepted": p.accepted,
                "legal": p.legal,
                "top": [[token, share, self.token_text(token)] for token, share in p.top],
                "token": p.token,
            }
            for p in inspection.places
        ]
        return {"first": inspection.first, "places": places}


def usage_so_far(prompt_tokens: int, completion_tokens: int) -> Json:
    """Usage of one output while it is being written."""
    return _usage(prompt_tokens, completion_tokens, 0, 0, 0, 0)


def _usage(prompt: int, completion: int, cached: int, reasoning: int, accepted: int, rejected: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def finite(logprob: float) -> float:
    """A logarithm of a probability as a JSON number."""
    return max(logprob, _LEAST)


def law(result: Result[Any]) -> Json:
    """What must be said about the law of an output: an approximate verifier, a declared change, what of the schema was
    not enforced. Nothing for an exact answer."""
    said: Json = {}
    if result.exactness != "exact":
        said["exactness"] = result.exactness
    if result.declared:
        said["declared"] = list(result.declared)
    if result.unenforced:
        said["unenforced"] = [{"pointer": pointer, "keyword": keyword} for pointer, keyword in result.unenforced]
        said["holds"] = result.holds
        said["violation"] = result.violation
    return {"constrained_spec": said} if said else {}


def spec_metrics(results: Sequence[Result[Any]]) -> Json:
    """The speculation figures of some outputs, under vLLM's names and with our own beside them.

    ``results`` is not empty. A step is a round that judged a draft. ``acceptance_histogram`` counts the steps by the
    drafts that stood.
    """
    reports = [r.speculation for r in results]
    first = reports[0]
    accepted = sum(r.accepted for r in reports)
    proposed = sum(r.proposed for r in reports)
    histogram: dict[str, int] = {}
    steps = 0
    sources: dict[str, list[int]] = {}
    for report in reports:
        judged = [report.by_position[0][0]] if report.by_position else []
        stood = [*judged, *(kept for _, kept in report.by_position)]
        steps += sum(judged)
        for k, count in enumerate(stood):
            exactly = count - (stood[k + 1] if k + 1 < len(stood) else 0)
            if exactly > 0:
                histogram[str(k)] = histogram.get(str(k), 0) + exactly
        for source, (offered, kept) in report.by_source.items():
            total = sources.setdefault(source, [0, 0])
            total[0] += offered
            total[1] += kept
    figures = {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_rounds": sum(r.rounds for r in reports),
        "forced": sum(r.forced for r in reports),
        "recovered": sum(r.recovered for r in reports),
        "bonus": sum(r.bonus for r in reports),
        "by_source": {name: {"proposed": offered, "accepted": kept} for name, (offered, kept) in sources.items()},
        "drafter": first.drafter,
        "verifier": first.verifier,
        "mode": first.mode,
        "gamma": first.gamma,
        "exactness": results[0].exactness,
        "disabled_reason": next((r.disabled_reason for r in reports if r.disabled_reason), None),
    }
    return {"speculative_decoding": figures}


def timings(result: Result[Any]) -> Json:
    """llama.cpp's timings, from when a slot was free, with its counts of drafts."""
    usage, timing, report = result.usage, result.timing, result.speculation
    return {
        **pace(
            usage.cached_tokens,
            usage.prompt_tokens - usage.cached_tokens,
            usage.completion_tokens,
            (timing.first_token_s - timing.queue_s, timing.total_s - timing.queue_s),
        ),
        "draft_n": report.proposed,
        "draft_n_accepted": report.accepted,
    }


def pace(cached: int, prompt: int, predicted: int, times: tuple[float, float]) -> Json:
    """Tokens and milliseconds of the prompt and of the output. The prompt's time ends with the first token."""
    first_s, rest_s = times[0], max(0.0, times[1] - times[0])
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        **_pace("prompt", prompt, first_s),
        "predicted_n": predicted,
        **_pace("predicted", predicted, rest_s),
    }


def _pace(name: str, count: int, seconds: float) -> Mapping[str, float]:
    return {
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds else 0.0,
    }
