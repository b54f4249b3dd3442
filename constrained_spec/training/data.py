"""On-policy data: the target's own answers with its final states and grammar masks, in shards that survive a kill."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.forced import ForcedDrafter
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import DeadEndError, ModelError
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.output_types import to_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.training.prompts import TURN, Task, tasks

WARM = 0.8  # temperature of every second answer; the others are greedy
SHARD = 48  # answers in one file
_GAMMA = 6
_REQUEST = 96  # tokens of a request that the model writes itself, at most
_MARK = "MARK"
_CHUNK = 500  # tasks made at a time

Progress = Callable[[int, int], None]  # tokens sampled, tokens wanted


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One answer. Row i of ``features`` is the target's final state after token i; the last token has none."""

    kind: str
    prompt: int  # number of tokens that are not the target's own
    tokens: Tensor  # [n] int64
    features: Tensor  # [n - 1, hidden] float16
    masks: Tensor | None  # [n - prompt, words] int32: legal ids at each output place; None for free text

    @property
    def outputs(self) -> int:
        return len(self.tokens) - self.prompt


@dataclass(slots=True)
class _Open:
    row: Row
    number: int
    task: Task
    grammar: Grammar | None


class Sampler:
    """Answers tasks on all slots of the target at once. The answers depend on the seed alone."""

    def __init__(self, model: TransformersModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._pipeline = Pipeline(model.vocabulary)
        ngram = NgramDrafter()
        self._drafter: Drafter = MixtureDrafter([ForcedDrafter(ngram), ngram])
        model.keep_features()
        # The user's turn, opened: what stands in front of the text of any one.
        asked = model.tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
        # A template may put nothing there; then the text begins where another one ended.
        self._turn = model.encode(str(asked).partition(_MARK)[0]) or [model.vocabulary.eos_ids[0]]

    def answers(self, todo: Iterator[tuple[int, Task]]) -> Iterator[Sample]:
        """Samples in the order in which they end. A task that has a dead end or does not fit is left out."""
        free = list(range(self._model.slots))
        live: list[_Open] = []
        while True:
            while free:
                number, task = next(todo, (0, None))
                if task is None:
                    break
                started = self._start(number, task, free[-1])
                if started is not None:
                    free.pop()
                    live.append(started)
            if not live:
                return
            outcomes = run_round(self._model, self._pipeline, [o.row for o in live]).outcomes
            going = []
            for started, outcome in zip(live, outcomes, strict=True):
                s = started.row.sequence
                failed = isinstance(outcome, DeadEndError)
                if not failed and not s.finished:
                    going.append(started)
                    continue
                if started.row.drafter is not None:
                    started.row.drafter.close(s)
                answer = None
                if not failed and started.task.messages:
                    yield self._harvest(started)
                elif not failed:
                    answer = self._start(
                        started.number, self._with_request(started), s.slot, s.history.tokens[: s.kv.length]
                    )
                if answer is None:
                    free.append(s.slot)
                else:
                    going.append(answer)
            live = going

    def _start(self, number: int, task: Task, slot: int, known: Seq[int] = ()) -> _Open | None:
        """``known``: the tokens that the slot holds."""
        writes = not task.messages  # the request, to begin with
        prompt = self._turn if writes else self._model.chat_prompt(task.messages)
        if len(prompt) + task.max_tokens > self._model.capacity:
            return None
        constraint = to_constraint(task.output_type)
        grammar = None if constraint is None else compile_constraint(constraint, self._model.vocabulary)
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt[:-1], known, strict=False))
        self._model.set_length(slot, sum(1 for _ in shared))
        sequence = Sequence(
            prompt=prompt,
            sampling=Sampling(max_tokens=_REQUEST, temperature=1.0, top_p=0.95)
            if writes
            else Sampling(max_tokens=task.max_tokens, temperature=0.0 if (number // TURN) % 2 else WARM),
            coins=Coins(self._seed * 1_000_003 + number),
            vocabulary=self._model.vocabulary,
            target=self._model,
            slot=slot,
            capacity=self._model.capacity,
            matcher=None if grammar is None else grammar.matcher(),
        )
        # Copied drafts pay where text is repeated, and only there.
        drafter = None if task.kind in ("chat", "own") else self._drafter
        if drafter is not None:
            drafter.open(sequence)
        return _Open(Row(sequence, drafter, _GAMMA, "coupling"), number, task, grammar)

    def _with_request(self, started: _Open) -> Task:
        """The task whose request the model has just written."""
        text = started.row.sequence.text.text.strip()
        return replace(started.task, messages=({"role": "user", "content": text or "Hello"},))

    def _harvest(self, started: _Open) -> Sample:
        s = started.row.sequence
        features = self._model.features(s.slot)
        assert features is not None and len(features) == len(s.history) - 1
        masks = None
        if started.grammar is not None:
            matcher = started.grammar.matcher()
            rows = np.zeros((s.history.output_length, s.vocabulary.mask_words), dtype=np.int32)
            for row, token in zip(rows, s.output, strict=True):
                matcher.mask_into(row)
                matcher.advance(token)
            masks = torch.from_numpy(rows)
        tokens = torch.tensor(s.history.tokens)
        # A request that the model wrote is its own text too.
        prompt = len(self._turn) if started.task.kind == "own" else s.history.prompt_length
        return Sample(started.task.kind, prompt, tokens, features.to(torch.float16).cpu(), masks)


def collect(
    model: TransformersModel,
    folder: Path,
    *,
    tokens: int,
    seed: int,
    progress: Progress,
    seconds: float = math.inf,
) -> list[Sample]:
    """At least ``tokens`` output tokens of the target, in ``folder``: shards that are there already are kept.

    No new answer is begun when ``seconds`` have gone. A kill loses the answers since the last shard, and
    the next call goes on behind them. Raises ``ModelError`` if the folder holds another model's answers, or those of
    another seed.
    """
    until = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    digest = f"{model.weights_digest()} {seed}"
    shards = sorted(folder.glob("answers-*.safetensors"))
    samples = [sample for shard in shards for sample in _read(shard, digest)]
    have = sum(s.outputs for s in samples)
    progress(have, tokens)
    if have >= tokens:
        return samples
    # Tasks are numbered; a shard's name says which one comes next.
    first = int(shards[-1].stem.split("-")[2]) if shards else 0
    number = first

    def todo() -> Iterator[tuple[int, Task]]:
        nonlocal number
        for chunk in itertools.count():
            for i, task in enumerate(tasks(seed * 7919 + chunk, _CHUNK), start=chunk * _CHUNK):
                if have >= tokens or time.monotonic() > until:
                    return
                if i >= first:
                    number = i + 1
                    yield i, task

    fresh: list[Sample] = []
    sampler = Sampler(model, seed)
    for sample in sampler.answers(todo()):
        fresh.append(sample)
        have += sample.outputs
        progress(min(have, tokens), tokens)
        if len(fresh) == SHARD:
            _write(folder / f"answers-{len(shards):04}-{number:06}.safetensors", fresh, digest)
            shards.append(folder)
            samples += fresh
            fresh = []
    if fresh:
        _write(folder / f"answers-{len(shards):04}-{number:06}.safetensors", fresh, digest)
    return samples + fresh


def split(samples: list[Sample], every: int = 12) -> tuple[list[Sample], list[Sample]]:
    """(for training, held out): one answer of ``every``, told by its prompt, so that no prompt is on both sides.

    A request that the target wrote is told by all of its text.
    """
    train: list[Sample] = []
    held: list[Sample] = []
    for sample in samples:
        told = sample.tokens if sample.kind == "own" else sample.tokens[: sample.prompt]
        key = sum((i + 1) * int(t) for i, t in enumerate(told.tolist()))
        (held if key % every == 0 else train).append(sample)
    return train, held


def _write(path: Path, samples: list[Sample], digest: str) -> None:
    """All or nothing: a killed process leaves no half file under the name."""
    tensors: dict[str, Tensor] = {}
    index = []
    for i, s in enumerate(samples):
        tensors |= {f"{i}.tokens": s.tokens, f"{i}.features": s.features.contiguous()}
        if s.masks is not None:
            tensors[f"{i}.masks"] = s.masks
        index.append([s.kind, s.prompt])
    part = path.with_suffix(".part")
    save_file(tensors, part, metadata={"digest": digest, "index": json.dumps(index)})
    os.replace(part, path)


def _read(path: Path, digest: str) -> Iterator[Sample]:
    with safe_open(path, "pt") as f:
        facts = f.metadata()
        if facts["digest"] != digest:
            raise ModelError(
                f"{path} holds answers of another model or seed", param="out", hint="give another folder, or empty it"
            )
        names = set(f.keys())
        for i, (kind, prompt) in enumerate(json.loads(facts["index"])):
            masks = f.get_tensor(f"{i}.masks") if f"{i}.masks" in names else None
            yield Sample(kind, prompt, f.get_tensor(f"{i}.tokens"), f.get_tensor(f"{i}.features"), masks)
