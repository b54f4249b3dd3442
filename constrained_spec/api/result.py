"""What a request gives back: one type for generate, stream and batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from constrained_spec.engine.inspection import Inspection
from constrained_spec.state.sequence import TokenLogprob
from constrained_spec.types import Exactness, FinishReason

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. ``completion_tokens`` are the committed ones, an EOS token included.

    ``rejected_prediction_tokens`` are drafts from the caller's prediction that did not stand.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """How the tokens came about.

    ``accepted`` counts kept drafts of every source, ``forced`` those of them that the grammar forced; so
    ``accepted + recovered + bonus`` is ``completion_tokens``. ``by_source`` maps a source to (proposed, accepted),
    ``by_position`` a place in a block to the rounds in which the draft there was (judged, accepted). ``mode`` is
    "fixed" (up to ``gamma`` drafts a round), "auto" (as many as pay) or "off". ``preemptions`` counts how often a
    request of higher priority took the slot. ``disabled_reason`` says why a drafter was switched off, or is None.
    """

    drafter: str
    verifier: str
    mode: str
    gamma: int
    preemptions: int
    rounds: int
    target_passes: int
    proposed: int
    accepted: int
    forced: int
    recovered: int
    bonus: int
    disabled_reason: str | None
    by_source: dict[str, tuple[int, int]]
    by_position: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall-clock seconds from submission: until a slot was free, until the first committed token, in all.

    ``forward_s`` and ``propose_s`` are target forwards and drafting of the rounds it took part in, shared with others;
    ``draft_s`` the part of drafting that draft models and trained heads computed. ``overhead_s`` is the median over
    rounds of what is neither a forward of any of them nor grammar mask.
    """

    queue_s: float
    first_token_s: float
    total_s: float
    forward_s: float
    propose_s: float
    draft_s: float
    overhead_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """Whose law the text follows. ``numerics`` is the dtype, or the kind of quantisation, which is another model.

    ``weights`` is the digest of a quantised model's weights; of any other, ``engine.model.weights_digest()`` gives it.
    """

    name: str
    numerics: str
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """A finished answer.

    ``parsed`` is the value of the output type, or None without one, after ``finish_reason`` "length" (the text is then
    a prefix of a value, never repaired), or when ``parse_error`` says why the text could not be turned into the type.
    ``logprobs`` has one entry per token when they were asked for. ``declared`` names changes of the target's law that
    were asked for (canonical tokenization, close_on_length). ``unenforced`` lists (JSON pointer, keyword) of what the
    schema says and the grammar could not enforce, with ``on_unsupported="validate"``; the finished value was then
    checked: ``holds`` says whether it satisfies the whole schema, ``violation`` what it breaks.
    """

    text: str
    parsed: T_co | None
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    exactness: Exactness
    usage: Usage
    speculation: SpeculationReport
    timing: Timing
    seed: int
    target: Target
    logprobs: tuple[TokenLogprob, ...] = ()
    parse_error: str | None = None
    declared: tuple[str, ...] = ()
    unenforced: tuple[tuple[str, str], ...] = ()
    holds: bool | None = None
    violation: str | None = None


@dataclass(frozen=True, slots=True)
class Piece(Generic[T_co]):
    """One streamed step: the text it released (maybe empty) and the origin of each committed token.

    The last piece carries the ``result``; the texts of all pieces, joined, are ``result.text``. ``logprobs`` has an
    entry per token if asked for, ``inspection`` what the round judged. Its tokens were committed at the point ``at`` of
    ``time.perf_counter``.
    """

    text: str
    tokens: tuple[int, ...]
    origins: tuple[str, ...]
    at: float
    result: Result[T_co] | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    inspection: Inspection | None = None
