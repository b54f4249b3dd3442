"""Rejections at every cut on an exact model: after each repair, bit for bit the state of a target-only replay.

The model is a hash of its whole prefix, so one token that leaked into a slot changes every later distribution.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from constrained_spec.audit.drafters import ScriptDrafter
from constrained_spec.audit.exact_law import next_law, replayed
from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.engine.round import Row, run_round
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence

TOKENS: tuple[bytes | None, ...] = (None, None, *(bytes([b]) for b in range(32, 127)), b"ab", b'": ', b'{"')
EOS = (0, 1)
PROMPT = (40, 41, 42)
CONSTRAINTS: dict[str, Constraint | None] = {
    "none": None,
    "regex": Regex(r"[ab]{3,12}(-[0-9]{2})?"),
    "choice": Choice(("abab", "ababab", "abacus", "ba")),
    "schema": JsonSchema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
    "lark": Lark('start: "a" start "b" | "ab"'),
}
SAMPLINGS = {
    "greedy": Sampling(max_tokens=14, presence_penalty=0.7, frequency_penalty=0.4, stop=("zz",)),
    "sampled": Sampling(max_tokens=14, temperature=1.0, repetition_penalty=1.3, top_p=0.95, seed=5),
}
GAMMA = 4


def _logits(prefix: tuple[int, ...]) -> Tensor:
    digest = hashlib.blake2b(repr(prefix).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    logits = torch.randn(len(TOKENS), generator=generator)
    logits[list(EOS)] -= 3.0
    return logits


def exact_replay() -> dict[str, Any]:
    """Every constraint, sampling and cut. ``mismatches`` names what differed from the replay, at most ten."""
    model = ToyModel(TOKENS, _logits, eos_ids=EOS, slots=2, capacity=48)
    pipeline = Pipeline(model.vocabulary)
    compared, repairs = 0, 0
    mismatches: list[str] = []
    for name, constraint in CONSTRAINTS.items():
        grammar = None if constraint is None else compile_constraint(constraint, model.vocabulary)
        for kind, sampling in SAMPLINGS.items():
            script = _script(model, pipeline, grammar, sampling)
            for cut in range(GAMMA + 1):
                where = f"{name}, {kind}, cut {cut}"
                try:
                    found, rounds, recovered = _one(model, pipeline, grammar, sampling, script, cut)
                except Exception as error:  # a leak may break anything, and that too is an answer
                    found, rounds, recovered = [f"{type(error).__name__}: {error}"], 0, 0
                compared += rounds
                repairs += recovered
                mismatches += [f"{where}: {what}" for what in found]
    return {"compared": compared, "repairs": repairs, "mismatches": mismatches[:10], "failed": len(mismatches)}


def _open(model: ToyModel, grammar: Grammar | None, sampling: Sampling) -> Sequence:
    model.set_length(0, 0)
    return Sequence(
        prompt=PROMPT, sampling=sampling, coins=Coins(5), vocabulary=model.vocabulary, target=model, slot=0,
        capacity=model.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip


def _script(model: ToyModel, pipeline: Pipeline, grammar: Grammar | None, sampling: Sampling) -> list[int]:
    """The target's own text: with the same coins a sampled run follows it for a while, a greedy one to the end."""
    s = _open(model, grammar, sampling)
    while not s.finished:
        run_round(model, pipeline, [Row(s, None, 0, "coupling")])
    return s.output


def _one(
    model: ToyModel, pipeline: Pipeline, grammar: Grammar | None, sampling: Sampling, script: list[int], cut: int
) -> tuple[list[str], int, int]:
    s = _open(model, grammar, sampling)
    drafter = ScriptDrafter(script, GAMMA, cut)
    found: list[str] = []
    while not s.finished:
        [outcome] = run_round(model, pipeline, [Row(s, drafter, GAMMA, "coupling")]).outcomes
        if isinstance(outcome, Exception):
            return [*found, f"{type(outcome).__name__}: {outcome}"], s.counts.rounds, s.counts.recovered
        found += _differences(model, pipeline, grammar, s)
        if found:
            break
    return found, s.counts.rounds, s.counts.recovered


def _differences(model: ToyModel, pipeline: Pipeline, grammar: Grammar | None, s: Sequence) -> list[str]:
    fresh = replayed(model, 1, PROMPT, grammar, s.sampling, tuple(s.output), held=0)
    model.score([Block(1, s.history.tokens[:-1], want=0)])
    mine, theirs = s.fingerprints(), fresh.fingerprints()
    found = [f"{name} after {len(s.output)} tokens" for name in mine if mine[name] != theirs.get(name)]
    if not found and not s.finished and next_law(model, pipeline, s) != next_law(model, pipeline, fresh):
        found.append(f"the next distribution after {len(s.output)} tokens")
    return found
