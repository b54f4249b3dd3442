"""constrained-spec bench: figures as ratios against a matched baseline in the same run."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
import typer
from rich.progress import Progress

from constrained_spec.api import Engine, Result
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.environment import environment
from constrained_spec.cli.suite import Job, extraction_suite
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import JsonSchema, compile_constraint

bench = typer.Typer(help="Measure, as ratios within one run.", no_args_is_help=True)
MAX_TOKENS = 160


@bench.callback()
def _bench() -> None:
    """Measure, as ratios within one run."""


@bench.command()
def decode(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    drafter: str = typer.Option("auto", help="none, forced, ngram, model, mixture, auto."),
    gamma: int = typer.Option(8, help="At most so many drafts a round."),
    repeats: int = typer.Option(3, min=1, help="Interleaved repetitions of every job."),
    limit: int | None = typer.Option(None, min=1, help="Only the first jobs of the suite."),
    transformers: bool = typer.Option(True, help="Also run transformers' own generate with a pure grammar processor."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Extraction suite, greedy: speculative against target-only against transformers, interleaved, medians."""
    with exit_codes():
        Engine.check(drafter=drafter, gamma=gamma)
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(model, capacity=1024, progress=progress)
        jobs = extraction_suite()[:limit]
        runs = _run(engine, jobs, drafter, gamma, repeats, transformers)
        figures = _figures(runs, jobs, transformers)
        report = {
            "model": model, "drafter": drafter, "gamma": gamma, "repeats": repeats,
            "suites": {"extraction": figures}, "environment": environment(),
        }  # fmt: skip
        if as_json:
            typer.echo(json.dumps(report))
            return
        for name, value in figures.items():
            typer.echo(f"{name:28} {value}")


def _run(
    engine: Engine, jobs: list[Job], drafter: str, gamma: int, repeats: int, transformers: bool
) -> list[dict[str, Any]]:
    """One record per (repeat, job): results and seconds of each contender, run one after the other."""
    runs = []
    engine.generate(jobs[0].messages, jobs[0].schema, max_tokens=8)
    with Progress(console=stderr, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("decode", total=repeats * len(jobs))
        for _ in range(repeats):
            for job in jobs:
                record: dict[str, Any] = {"job": job.id}
                if transformers:
                    record["transformers"] = _transformers(engine, job)
                record["plain"] = _timed(engine, job, "none", 0)
                record["fast"] = _timed(engine, job, drafter, gamma)
                runs.append(record)
                bar.advance(task)
    return runs


def _timed(engine: Engine, job: Job, drafter: str, gamma: int) -> tuple[Result[Any], float]:
    start = time.perf_counter()
    result = engine.generate(job.messages, job.schema, max_tokens=MAX_TOKENS, drafter=drafter, gamma=gamma)
    return result, time.perf_counter() - start


def _figures(runs: list[dict[str, Any]], jobs: list[Job], transformers: bool) -> dict[str, Any]:
    fast = [r["fast"][0] for r in runs]
    by_job = {job.id: [r for r in runs if r["job"] == job.id] for job in jobs}

    def suite_seconds(who: str) -> float:
        """The suite's time: per job the median of its repetitions, summed."""
        return sum(float(statistics.median(r[who][1] for r in rows)) for rows in by_job.values())

    figures: dict[str, Any] = {
        "jobs": len(jobs),
        "tokens_per_pass": sum(r.usage.completion_tokens for r in fast)
        / sum(r.speculation.target_passes for r in fast),
        "speedup_vs_target_only": suite_seconds("plain") / suite_seconds("fast"),
        "overhead_ms_per_round": statistics.median(r.timing.overhead_s for r in fast) * 1e3,
        "target_only_vs_transformers": None,
        "identical": all(r["plain"][0].text == r["fast"][0].text for r in runs),
        "accepted": sum(r.speculation.accepted for r in fast),
        "proposed": sum(r.speculation.proposed for r in fast),
        "target_only_tokens_per_s": sum(rows[0]["plain"][0].usage.completion_tokens for rows in by_job.values())
        / suite_seconds("plain"),
        "disabled": sorted({r.speculation.disabled_reason for r in fast} - {None}),
    }
    if transformers:
        figures["target_only_vs_transformers"] = suite_seconds("transformers") / suite_seconds("plain")
        figures["speedup_vs_transformers"] = suite_seconds("transformers") / suite_seconds("fast")
        figures["same_text_as_transformers"] = sum(
            rows[0]["transformers"][0] == rows[0]["plain"][0].text for rows in by_job.values()
        )
    return figures


def _transformers(engine: Engine, job: Job) -> tuple[str, float]:
    """transformers' own greedy generate on the same weights, with the same masks from a pure processor."""
    grammar = compile_constraint(JsonSchema(job.schema), engine.model.vocabulary)
    prompt = engine.encode(job.messages)
    vocabulary = engine.model.vocabulary
    start = time.perf_counter()
    output = engine.model.model.generate(
        torch.tensor([prompt], device=engine.model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=engine.model.device),
        logits_processor=[_PureMask(grammar, len(prompt), vocabulary.mask_words)],
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=list(vocabulary.eos_ids),
        pad_token_id=vocabulary.eos_ids[0],
    )
    seconds = time.perf_counter() - start
    ids = output[0, len(prompt) :].tolist()
    return vocabulary.bytes_of(ids).decode("utf-8", errors="replace"), seconds


class _PureMask:
    """A transformers logits processor whose mask is a function of the prefix (one call per token here)."""

    def __init__(self, grammar: Grammar, prompt_length: int, words: int) -> None:
        self._matcher = grammar.matcher()
        self._start = prompt_length
        self._seen = 0
        self._row = np.empty(words, dtype=np.int32)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        output = input_ids[0, self._start + self._seen :].tolist()
        for token in output:
            assert self._matcher.advance(token)
        self._seen += len(output)
        self._matcher.mask_into(self._row)
        bits = np.unpackbits(self._row.view(np.uint8), bitorder="little")[: scores.shape[1]]
        return scores.masked_fill(torch.from_numpy(bits == 0).to(scores.device), float("-inf"))
