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
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.cli.baseline import transformers_generate
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.environment import environment
from constrained_spec.cli.steps import CONTEXT, step_table
from constrained_spec.cli.suite import Job, extraction_suite
from constrained_spec.config import DEFAULT_GAMMA, DRAFTERS

bench = typer.Typer(help="Measure, as ratios within one run.", no_args_is_help=True)
MAX_TOKENS = 160
CAPACITY = 1024

_MODEL = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file.")
_DEVICE = typer.Option("auto", help="auto, cpu, cuda.")
_DTYPE = typer.Option("auto", help="auto, float32, float16, bfloat16.")
_QUANTIZE = typer.Option(None, help="int8: our target's weights and inputs (CPU); transformers stays as it is.")
_THREADS = typer.Option(None, help="Pin torch's threads; default: the quickest number.")
_JSON = typer.Option(False, "--json", help="Print one JSON object.")


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
    model: str = _MODEL,
    draft_model: str | None = typer.Option(None, help="A smaller model with the same tokenizer."),
    drafter: str = typer.Option("auto", help=f"{', '.join(DRAFTERS)}."),
    gamma: int = typer.Option(DEFAULT_GAMMA, help="At most so many drafts a round."),
    tokenization: str = typer.Option("any", help="any, or canonical where text is forced; of all contenders."),
    repeats: int = typer.Option(3, min=1, help="Interleaved repetitions of every job."),
    limit: int | None = typer.Option(None, min=1, help="Only the first jobs of the suite."),
    transformers: bool = typer.Option(True, help="Also run transformers' own generate with a pure grammar processor."),
    quantize: str | None = _QUANTIZE,
    threads: int | None = _THREADS,
    device: str = _DEVICE,
    dtype: str = _DTYPE,
    as_json: bool = _JSON,
) -> None:
    """Extraction suite, greedy: speculative against target-only against transformers, interleaved, medians."""
    with exit_codes():
        Engine.check(drafter=drafter, gamma=gamma, tokenization=tokenization)
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(
                model, draft_model=draft_model, device=device, dtype=dtype, capacity=CAPACITY, quantize=quantize,
                threads=threads, progress=progress,
            )  # fmt: skip
            stock = _stock(model, device, dtype, threads) if transformers else None
        jobs = extraction_suite()[:limit]
        contest = Contest(engine, stock, drafter, gamma, tokenization)
        figures = _figures(contest.measure(jobs, repeats))
        report = {
            **about(model, engine.model),
            "draft_model": draft_model, "drafter": drafter, "gamma": gamma, "tokenization": tokenization,
            "repeats": repeats, "max_tokens": MAX_TOKENS, "suites": {"extraction": figures},
        }  # fmt: skip
        _print(report, figures, as_json)


@bench.command()
def step(
    model: str = _MODEL,
    repeats: int = typer.Option(15, min=3, help="Interleaved repetitions of every block size."),
    quantize: str | None = _QUANTIZE,
    threads: int | None = _THREADS,
    device: str = _DEVICE,
    dtype: str = _DTYPE,
    as_json: bool = _JSON,
) -> None:
    """One forward of k tokens at a context of 256: ours against transformers' own, interleaved, medians in ms."""
    with exit_codes():
        quiet_libraries()
        with loading(model) as progress:
            ours = load_model(
                model, device=device, dtype=dtype, capacity=CAPACITY, quantize=quantize, threads=threads,
                progress=progress,
            )  # fmt: skip
            stock = _stock(model, device, dtype, threads)
        table = step_table(ours, stock, repeats)
        report = {**about(model, ours), "context": CONTEXT, "repeats": repeats, **table}
        rows = {f"ours {k}": ms for k, ms in table["ours"].items()} | {
            f"stock {k}": ms for k, ms in table["stock"].items()
        }
        _print(report, rows | {k: v for k, v in table.items() if k not in ("ours", "stock")}, as_json)


def _stock(model: str, device: str, dtype: str, threads: int | None) -> TransformersModel:
    return load_model(model, device=device, dtype=dtype, capacity=1, specialise=False, threads=threads)


def about(name: str, model: TransformersModel) -> dict[str, Any]:
    """What every report says of model and machine."""
    path = model.path
    return {
        "model": name,
        "numerics": model.numerics,
        "step": {"specialised": path.specialised, "detail": path.detail, "drift": path.drift},
        "memory": model.memory(),
        "environment": environment() | {"device": str(model.device), "dtype": str(model.dtype)},
    }


def _print(report: dict[str, Any], figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report))
        return
    for name, value in figures.items():
        typer.echo(f"{name:28} {round(value, 3) if isinstance(value, float) else value}")


@dataclass(frozen=True, slots=True)
class Contest:
    """What runs against what."""

    engine: Engine
    stock: TransformersModel | None
    drafter: str
    gamma: int
    tokenization: str

    def measure(self, jobs: Sequence[Job], repeats: int) -> list[Run]:
        stock = self.stock
        contenders: dict[str, Callable[[Job], tuple[Any, float]]] = {
            "plain": lambda job: self._timed(job, "none", 0),
            "fast": lambda job: self._timed(job, self.drafter, self.gamma),
        }
        if stock is not None:
            contenders["stock"] = lambda job: transformers_generate(stock, job, MAX_TOKENS, self.tokenization)
        # A short warm-up of each path, so that the first job does not pay for it.
        self._timed(jobs[0], self.drafter, self.gamma, max_tokens=8)
        if stock is not None:
            transformers_generate(stock, jobs[0], 8, self.tokenization)
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

    def _timed(self, job: Job, drafter: str, gamma: int, max_tokens: int = MAX_TOKENS) -> tuple[Result[Any], float]:
        start = time.perf_counter()
        result = self.engine.generate(
            job.messages, job.schema, max_tokens=max_tokens, drafter=drafter, gamma=gamma,
            tokenization=self.tokenization,
        )  # fmt: skip
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
        "tokens_per_s": tokens / fast,
        "disabled": sorted({r.fast.speculation.disabled_reason for r in runs if r.fast.speculation.disabled_reason}),
    }
    if once[0].stock_text is not None:
        stock = suite_seconds(lambda r: r.stock_s)
        figures["target_only_vs_transformers"] = stock / plain
        figures["speedup_vs_transformers"] = stock / fast
        figures["same_text_as_transformers"] = sum(r.stock_text == r.plain.text for r in once)
    return figures
