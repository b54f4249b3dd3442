"""constrained-spec bench: figures as ratios against a matched baseline in the same run."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.progress import Progress

from constrained_spec.api import Engine, Result
from constrained_spec.cli.baseline import transformers_generate
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.environment import environment
from constrained_spec.cli.suite import Job, extraction_suite

bench = typer.Typer(help="Measure, as ratios within one run.", no_args_is_help=True)
MAX_TOKENS = 160
CAPACITY = 1024


@bench.callback()
def _bench() -> None:
    """Measure, as ratios within one run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of one job by every contender, one directly after the other. Seconds are of the whole call."""

    job: str
    plain: Result[Any]
    plain_s: float
    fast: Result[Any]
    fast_s: float
    stock_text: str | None  # transformers' own generate
    stock_s: float


@bench.command()
def decode(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    draft_model: str | None = typer.Option(None, help="A smaller model with the same tokenizer."),
    drafter: str = typer.Option("auto", help="none, forced, ngram, model, mixture, auto."),
    gamma: int = typer.Option(8, help="At most so many drafts a round."),
    repeats: int = typer.Option(3, min=1, help="Interleaved repetitions of every job."),
    limit: int | None = typer.Option(None, min=1, help="Only the first jobs of the suite."),
    transformers: bool = typer.Option(True, help="Also run transformers' own generate with a pure grammar processor."),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    dtype: str = typer.Option("auto", help="auto, float32, float16, bfloat16."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Extraction suite, greedy: speculative against target-only against transformers, interleaved, medians."""
    with exit_codes():
        Engine.check(drafter=drafter, gamma=gamma)
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(
                model, draft_model=draft_model, device=device, dtype=dtype, capacity=CAPACITY, progress=progress
            )
        jobs = extraction_suite()[:limit]
        figures = _figures(_measure(engine, jobs, drafter, gamma, repeats, transformers))
        report = {
            "model": model, "draft_model": draft_model, "drafter": drafter, "gamma": gamma, "repeats": repeats,
            "max_tokens": MAX_TOKENS, "suites": {"extraction": figures},
            "environment": environment() | {"device": str(engine.model.device), "dtype": str(engine.model.model.dtype)},
        }  # fmt: skip
        if as_json:
            typer.echo(json.dumps(report))
            return
        for name, value in figures.items():
            typer.echo(f"{name:28} {round(value, 3) if isinstance(value, float) else value}")


def _measure(
    engine: Engine, jobs: Sequence[Job], drafter: str, gamma: int, repeats: int, transformers: bool
) -> list[Run]:
    contenders: dict[str, Callable[[Job], tuple[Any, float]]] = {
        "plain": lambda job: _timed(engine, job, "none", 0),
        "fast": lambda job: _timed(engine, job, drafter, gamma),
    }
    if transformers:
        contenders["stock"] = lambda job: transformers_generate(engine, job, MAX_TOKENS)
    # A short warm-up of each path, so that the first job does not pay for it.
    engine.generate(jobs[0].messages, jobs[0].schema, max_tokens=8, drafter=drafter, gamma=gamma)
    if transformers:
        transformers_generate(engine, jobs[0], 8)
    runs = []
    with Progress(console=stderr, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("decode", total=repeats * len(jobs))
        for repeat in range(repeats):
            # Each repetition starts with another contender, so that none always follows the same one.
            names = list(contenders)
            order = names[repeat % len(names) :] + names[: repeat % len(names)]
            for job in jobs:
                got = {name: contenders[name](job) for name in order}
                runs.append(Run(job.id, *got["plain"], *got["fast"], *got.get("stock", (None, 0.0))))
                bar.advance(task)
    return runs


def _timed(engine: Engine, job: Job, drafter: str, gamma: int) -> tuple[Result[Any], float]:
    start = time.perf_counter()
    result = engine.generate(job.messages, job.schema, max_tokens=MAX_TOKENS, drafter=drafter, gamma=gamma)
    return result, time.perf_counter() - start


def _figures(runs: Sequence[Run]) -> dict[str, object]:
    """The published figures of one suite; seconds are per job the median of its repetitions, summed."""
    by_job: dict[str, list[Run]] = {}
    for run in runs:
        by_job.setdefault(run.job, []).append(run)
    once = [rows[0] for rows in by_job.values()]

    def suite_seconds(seconds: Callable[[Run], float]) -> float:
        return sum(statistics.median(map(seconds, rows)) for rows in by_job.values())

    plain, fast = suite_seconds(lambda r: r.plain_s), suite_seconds(lambda r: r.fast_s)
    tokens = sum(r.fast.usage.completion_tokens for r in once)
    figures: dict[str, object] = {
        "jobs": len(once),
        "tokens": tokens,
        "tokens_per_pass": tokens / sum(r.fast.speculation.target_passes for r in once),
        "speedup_vs_target_only": plain / fast,
        "overhead_ms_per_round": statistics.median(r.fast.timing.overhead_s for r in runs) * 1e3,
        "target_only_vs_transformers": None,
        "identical": all(r.plain.text == r.fast.text for r in runs),
        "differing_jobs": sorted({r.job for r in runs if r.plain.text != r.fast.text}),
        "accepted": sum(r.fast.speculation.accepted for r in once),
        "proposed": sum(r.fast.speculation.proposed for r in once),
        "target_only_tokens_per_s": sum(r.plain.usage.completion_tokens for r in once) / plain,
        "disabled": sorted({r.fast.speculation.disabled_reason for r in runs if r.fast.speculation.disabled_reason}),
    }
    if once[0].stock_text is not None:
        stock = suite_seconds(lambda r: r.stock_s)
        figures["target_only_vs_transformers"] = stock / plain
        figures["speedup_vs_transformers"] = stock / fast
        figures["same_text_as_transformers"] = sum(r.stock_text == r.plain.text for r in once)
    return figures
