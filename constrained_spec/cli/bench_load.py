"""constrained-spec bench load: throughput and latency by concurrency, with and without speculation, in one run."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import typer
from rich.progress import Progress

from constrained_spec.api import Engine, Options
from constrained_spec.cli.bench import about
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.suite import extraction_suite
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.compile import Regex
from constrained_spec.measure.load import Run, Work, poisson, saturated, static_batches
from constrained_spec.measure.long_run import long_run

LEVELS = (1, 2, 4, 8, 16)
LOAD = 0.8  # of the target-only throughput, at which requests arrive
LONG = 10_000  # tokens of one output, over which a round's cost beside the model must not grow
_TEXT = '{"name": "Ada Lovelace", "born": 1815, "tags": ["poet", "mathematician"]}, '
WORTH = 1.0  # ratio from which on speculation belongs into the envelope


def load(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    drafter: str = typer.Option("auto", help="Drafter of the speculative runs; how much it drafts is measured."),
    levels: str = typer.Option(",".join(map(str, LEVELS)), help="Concurrencies."),
    max_tokens: int = typer.Option(96, min=1, help="Of each request."),
    jobs: int = typer.Option(12, min=1, help="Requests per level, at least twice its concurrency."),
    repeats: int = typer.Option(3, min=1, help="Interleaved repetitions of the saturated runs."),
    quick: bool = typer.Option(False, help="One repetition, 48 tokens, 6 requests."),
    plot: Path | None = typer.Option(None, help="Write throughput and latency by concurrency as SVG or PNG."),
    quantize: str | None = typer.Option(None, help="int8 (CPU)."),
    threads: int | None = typer.Option(None, help="Pin torch's threads; default: the quickest number."),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    dtype: str = typer.Option("auto", help="auto, float32, float16, bfloat16."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Continuous batching under load: target-only against speculative, each level's runs one after another."""
    with exit_codes():
        wanted = _levels(levels)
        Engine.check(drafter=drafter)
        if quick:
            max_tokens, jobs, repeats = 48, 6, 1
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(
                model, device=device, dtype=dtype, slots=max(wanted), capacity=512, quantize=quantize,
                threads=threads, speculation="auto", progress=progress,
            )  # fmt: skip
        options: Options = {"max_tokens": max_tokens, "drafter": drafter}
        with Progress(console=stderr, disable=not sys.stderr.isatty(), transient=True) as bar:
            task = bar.add_task("load", total=len(wanted) * (2 * repeats + 3))
            found = {
                level: measure_level(engine, options, level, max(jobs, 2 * level), repeats, lambda: bar.advance(task))
                for level in wanted
            }
        report = about(model, engine.model) | {
            "drafter": drafter, "max_tokens": max_tokens, "repeats": repeats,
            "concurrency": {str(level): figures for level, figures in found.items()},
            "envelope": {str(level): "on" if f["ratio"] >= WORTH else "off" for level, f in found.items()},
            "v_ms_by_drafts": _costs(engine), "memory": _memory(engine),
            "long_run": long_run(engine.model.vocabulary, Regex(r"[ -~]*"), LONG, text=_TEXT),
        }  # fmt: skip
        sequential = found[min(found)]["target_only"]["tokens_per_s"] if min(found) == 1 else None
        for figures in found.values():
            best = max(figures["target_only"]["tokens_per_s"], figures["speculative"]["tokens_per_s"])
            figures["vs_sequential_target_only"] = None if sequential is None else best / sequential
        if plot is not None:
            _plot(found, plot)
        typer.echo(json.dumps(report) if as_json else _table(found))


def measure_level(
    engine: Engine, options: Options, level: int, jobs: int, repeats: int, tick: Callable[[], None]
) -> dict[str, Any]:
    """All runs at one concurrency."""
    suite = extraction_suite()
    chosen = [suite[i % len(suite)] for i in range(jobs)]
    plain_options: Options = {"max_tokens": options["max_tokens"], "speculation": "off"}
    work = {
        "target_only": [Work(j.messages, j.schema, plain_options) for j in chosen],
        "speculative": [Work(j.messages, j.schema, options) for j in chosen],
    }
    # Compiles the constraints, and shows the controller this batch shape.
    saturated(engine, work["speculative"][: 2 * level], level)
    runs: dict[str, list[Run]] = {"target_only": [], "speculative": []}
    for repeat in range(repeats):
        for kind in sorted(runs, reverse=bool(repeat % 2)):
            runs[kind].append(saturated(engine, work[kind], level))
            tick()
    throughput = {kind: statistics.median(run.tokens_per_s for run in found) for kind, found in runs.items()}
    rate = LOAD * jobs / statistics.median(run.seconds for run in runs["target_only"])
    latency: dict[str, Run] = {}
    for kind, items in work.items():
        latency[kind] = poisson(engine, items, level, rate)
        tick()
    static = static_batches(engine, work["target_only"], level)
    tick()
    fast = runs["speculative"]
    lengths: Counter[int] = Counter()
    for run in fast:
        lengths.update(run.lengths)
    texts = [[s.result.text for s in found[0].served] for found in runs.values()]
    return {
        **{
            kind: {"tokens_per_s": throughput[kind], **latency[kind].latencies(), "queue": latency[kind].waiting}
            for kind in work
        },
        "ratio": throughput["speculative"] / throughput["target_only"],
        "static_tokens_per_s": static.tokens_per_s,
        "gamma_mean": statistics.median(run.gamma_mean for run in fast),
        "tokens_per_round": {str(n): lengths[n] for n in sorted(lengths)},
        "scheduler_ms_per_round": 1e3 * statistics.median(run.scheduler_seconds / max(1, run.steps) for run in fast),
        "mask_ms_per_round": 1e3 * statistics.median(run.mask_seconds / max(1, run.steps) for run in fast),
        "arrivals_per_s": rate,
        "identical": sum(a == b for a, b in zip(*texts, strict=True)),
        "jobs": jobs,
    }


def _levels(text: str) -> list[int]:
    try:
        levels = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"levels must be numbers, got {text!r}", param="--levels", hint="1,2,4,8") from error
    if levels[0] < 1 or levels[-1] > 256:
        raise ConfigError("a level lies in [1, 256]", param="--levels")
    return levels


def _costs(engine: Engine) -> dict[str, list[tuple[float, float]]]:
    """V in ms by rows: (drafts in the round, ms)."""
    return {str(rows): [(n, s * 1e3) for n, s in knots] for rows, knots in engine.controller.report().step.items()}


def _memory(engine: Engine) -> dict[str, int]:
    """Bytes. Keys and values of all slots are taken from the start: the headroom is what the machine has left."""
    return engine.model.memory() | {
        "resident": psutil.Process().memory_info().rss,
        "headroom": psutil.virtual_memory().available,
    }


def _table(found: dict[int, dict[str, Any]]) -> str:
    head = (
        "concurrency  target-only tok/s  speculative tok/s  ratio  speculate  drafts/round  "
        "TTFT p50/p95 ms      ITL p50 ms    E2E p50/p95 ms      scheduler ms"
    )
    lines = [head]
    for level, f in found.items():
        plain, fast = f["target_only"], f["speculative"]
        lines.append(
            f"{level:>11}  {plain['tokens_per_s']:>17.1f}  {fast['tokens_per_s']:>17.1f}  {f['ratio']:>5.2f}  "
            f"{'on' if f['ratio'] >= WORTH else 'off':>9}  {f['gamma_mean']:>12.2f}  "
            f"{fast['ttft_ms']['p50']:>7.0f} / {fast['ttft_ms']['p95']:<9.0f}  {fast['itl_ms']['p50']:>10.1f}  "
            f"{fast['e2e_ms']['p50']:>8.0f} / {fast['e2e_ms']['p95']:<9.0f} {f['scheduler_ms_per_round']:>11.2f}"
        )
    return "\n".join(lines)


def _plot(found: dict[int, dict[str, Any]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib", param="--plot", hint="pip install matplotlib") from error
    levels = list(found)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for kind, label in (("target_only", "target-only"), ("speculative", "speculative")):
        left.plot(levels, [found[n][kind]["tokens_per_s"] for n in levels], marker="o", label=label)
        right.plot(levels, [found[n][kind]["e2e_ms"]["p50"] for n in levels], marker="o", label=label)
    left.set(xlabel="requests in flight", ylabel="tokens per second", xscale="log", xticks=levels, xticklabels=levels)
    right.set(xlabel="requests in flight", ylabel="median end to end, ms", xscale="log", xticks=levels)
    right.set_xticklabels(levels)
    left.legend()
    figure.savefig(path)
