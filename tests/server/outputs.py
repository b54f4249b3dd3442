"""Hand-made outputs of a vocabulary of single bytes, and what the server makes of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from constrained_spec.api import Piece, Result
from constrained_spec.api.result import SpeculationReport, Target, Timing, Usage
from constrained_spec.engine.inspection import Inspection, Place
from constrained_spec.server.answers import answer
from constrained_spec.server.plan import ModelFacts, Plan, ToolPlan
from constrained_spec.server.shapes import Answering, Finished
from constrained_spec.server.sse import open_stream, usage_event
from constrained_spec.state.sequence import TokenLogprob
from constrained_spec.state.text import TextState
from constrained_spec.types import Vocabulary

EOS, CALLS, THOUGHT = 256, 257, 258
VOCABULARY = Vocabulary(
    (*(bytes([b]) for b in range(256)), None, None, None),
    (EOS,),
    {"<eos>": EOS, "[TOOL_CALLS]": CALLS, "</think>": THOUGHT},
    lambda text: list(text.encode()),
)
FACTS = ModelFacts(
    names=("m",), capacity=64, vocabulary_size=259, think=("<think>", "</think>"), eos_ids=(EOS,),
    encode=VOCABULARY.encode,
)  # fmt: skip
TOOL = {"name": "f", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'


def tools(**changes: Any) -> ToolPlan:
    return dataclasses.replace(ToolPlan(tools=(TOOL,), choice="auto", parallel=True, syntax="hermes"), **changes)


def plan(kind: str = "chat", **changes: Any) -> Plan:
    values: dict[str, Any] = {"model": "m", "prompts": ("Hi",), "options": {}}
    return Plan(kind=kind, **values | changes)  # type: ignore[arg-type]


def answering(made: Plan) -> Answering:
    return Answering(made, FACTS, VOCABULARY, "fp_x", "id-1", 1700000000)


def logprob(token: int, *, alone: bool) -> TokenLogprob:
    """``alone``: without alternatives."""
    return TokenLogprob(token, -0.5, () if alone else ((token, -0.5), (65, -math.inf)))


def output(
    written: str | Sequence[int], *, size: int = 4, reason: str = "stop", eos: bool = True, **changes: Any
) -> tuple[list[Piece[Any]], Result[Any]]:
    """The pieces, ``size`` tokens each, and the result of an output of one token per byte."""
    tokens = [*(written.encode() if isinstance(written, str) else written), *([EOS] if eos else [])]
    state = TextState(VOCABULARY)
    pieces: list[Piece[Any]] = []
    for start in range(0, len(tokens), size):
        part, shown = tuple(tokens[start : start + size]), len(state)
        for token in part:
            state.advance(token)
        origins = ("ngram", *("recovered" for _ in part[1:]))
        logprobs = [logprob(token, alone=start + i == 0) for i, token in enumerate(part)]
        place = Place(part[0], "ngram", 0.5, None, 0.25, True, 7, ((65, 0.5),), part[0])
        pieces.append(
            Piece(
                text=state.since(shown),
                tokens=part,
                origins=origins,
                at=1.0 + start,
                logprobs=tuple(logprobs),
                inspection=Inspection(start, (place,)),
            )
        )
    report = SpeculationReport(
        drafter="ngram", verifier="coupling", gamma=4, mode="fixed", preemptions=0, rounds=len(pieces),
        target_passes=len(pieces), proposed=6, accepted=3, forced=1, recovered=2, bonus=1, disabled_reason=None,
        by_source={"ngram": (6, 3)}, by_position=((3, 2), (2, 1), (1, 0)),
    )  # fmt: skip
    result: Result[Any] = Result(
        text=state.finish(), parsed=None, tokens=tuple(tokens), finish_reason=reason,  # type: ignore[arg-type]
        exactness="exact", usage=Usage(10, len(tokens), 4, 2, 1), speculation=report,
        timing=Timing(0.25, 0.75, 1.75, 1.0, 0.1, 0.05, 0.01), seed=1, target=Target("m", "float32"),
        logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
    )  # fmt: skip
    result = dataclasses.replace(result, **changes)
    last = pieces[-1]
    tail = result.text[sum(len(p.text) for p in pieces[:-1]) :]
    pieces[-1] = dataclasses.replace(last, text=tail, result=result)
    return pieces, result


def whole(made: Plan, *outputs: tuple[list[Piece[Any]], Result[Any]]) -> dict[str, Any]:
    found = answer(answering(made), [Finished(i, result, pieces) for i, (pieces, result) in enumerate(outputs)])
    json.dumps(found, allow_nan=False)
    return found


def streamed(made: Plan, *outputs: tuple[list[Piece[Any]], Result[Any]]) -> list[dict[str, Any]]:
    a = answering(made)
    streams = [open_stream(a, i, 10) for i in range(len(outputs))]
    events = [event for stream in streams for event in stream.start()]
    for stream, (pieces, result) in zip(streams, outputs, strict=True):
        events += [event for piece in pieces for event in stream.piece(piece)] + stream.end(result)
    events += usage_event(a, [result for _, result in outputs])
    json.dumps(events, allow_nan=False)
    return events
