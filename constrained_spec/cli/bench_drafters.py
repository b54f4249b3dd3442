"""Every drafter on every suite, beside target-only on the same path: what each is worth in time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import typer
from rich.progress import Progress

from constrained_spec.api import Engine, Options, Result
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.environment import environment
from constrained_spec.cli.suite import extraction_suite
from constrained_spec.config import DEFAULT_GAMMA
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.compile import ToolCalls

SUITES = ("extraction", "tools", "chat", "edit")
DRAFTERS = ("forced", "ngram", "prediction", "suffix", "early-exit", "quantized", "medusa", "eagle", "tree", "auto")
MAX_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt of a suite; ``prediction`` is the expected text, where there is one."""

    suite: str
    id: str
    messages: list[dict[str, str]]
    output_type: object = None
    prediction: str | None = None


def tasks() -> list[Task]:
    """All suites. None of their prompts is among those that trained parts were made from."""
    out = [Task("extraction", job.id, job.messages, job.schema) for job in extraction_suite()]
    data = (files("constrained_spec.cli") / "data" / "drafting.jsonl").read_text(encoding="utf-8")
    for row in map(json.loads, data.splitlines()):
        messages = [{"role": "user", "content": row["text"]}]
        tools = ToolCalls(row["tools"], choice="required", parallel=False) if "tools" in row else None
        out.append(Task(row["suite"], row["id"], messages, tools, row.get("prediction")))
    return out


def drafters(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    draft_model: str | None = typer.Option(None, help="Adds the drafters model, or translate."),
    suite: list[str] = typer.Option([], help=f"Of {', '.join(SUITES)}; repeat it. Default all."),
    drafter: list[str] = typer.Option([], help="Only these; repeat it."),
    gamma: int = typer.Option(DEFAULT_GAMMA, help="At most so many drafts a round."),
    temperature: float = typer.Option(0.0, help="Above 0 by the invariant verifier, which keeps texts comparable."),
    limit: int | None = typer.Option(None, min=1, help="Only the first tasks of each suite."),
    repeats: int = typer.Option(1, min=1, help="Interleaved repetitions of every task."),
    quantize: str | None = typer.Option(None, help="int8: another target."),
    threads: int | None = typer.Option(None, help="Pin torch's threads."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """A table per suite and drafter: tokens per pass, acceptance by position, draft cost, speed-up.

    Each drafts up to gamma in every round, but auto as much as pays.
    """
    with exit_codes():
        unknown = [s for s in suite if s not in SUITES]
        if unknown:
            raise ConfigError(f"unknown suite {unknown[0]!r}", param="suite", hint=f"one of {', '.join(SUITES)}")
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(
                model, draft_model=draft_model, capacity=1024, quantize=quantize, threads=threads, progress=progress
            )
        names = drafter or [*DRAFTERS, *(["model"] if draft_model is not None else [])]
        options: Options = {"gamma": gamma, "max_tokens": MAX_TOKENS}
        if temperature > 0:
            options |= {"temperature": temperature, "seed": 1, "verifier": "invariant"}
        chosen = [t for t in tasks() if not suite or t.suite in suite]
        if limit is not None:
            chosen = [t for s in SUITES for t in [t for t in chosen if t.suite == s][:limit]]
        table = measure(engine, chosen, names, options, repeats)
        report = {
            "model": model, "draft_model": draft_model, "gamma": gamma, "temperature": temperature, "repeats": repeats,
            "max_tokens": MAX_TOKENS, "numerics": engine.model.numerics, "suites": table,
            "environment": environment(),
        }  # fmt: skip
        if as_json:
            typer.echo(json.dumps(report))
            return
        for name, rows in table.items():
            for kind, row in rows.items():
                told = " ".join(f"{k}={round(v, 3) if isinstance(v, float) else v}" for k, v in row.items())
                typer.echo(f"{name:11} {kind:11} {told}")


def measure(
    engine: Engine, chosen: Sequence[Task], names: Sequence[str], options: Options, repeats: int
) -> dict[str, dict[str, Any]]:
    """Per suite and drafter; every task runs target-only and with each drafter, one directly after the other."""
    seen: dict[tuple[str, str], list[tuple[Result[Any], float, Result[Any], float]]] = {}
    unavailable: dict[str, str] = {}
    _run(engine, chosen[0], "auto", options | {"max_tokens": 4})
    with Progress(console=stderr, disable=not sys.stderr.isatty(), transient=True) as bar:
        step = bar.add_task("drafters", total=repeats * len(chosen))
        for _ in range(repeats):
            for task in chosen:
                plain, plain_s = _run(engine, task, "none", options)
                for name in names:
                    if name in unavailable or (name == "prediction" and task.prediction is None):
                        continue
                    try:
                        fast, fast_s = _run(engine, task, name, options)
                    except ConfigError as error:  # a drafter that this engine does not have
                        unavailable[name] = str(error)
                        continue
                    seen.setdefault((task.suite, name), []).append((plain, plain_s, fast, fast_s))
                bar.advance(step)
    table: dict[str, dict[str, Any]] = {}
    for (suite, name), rows in seen.items():
        table.setdefault(suite, {})[name] = _row(rows)
    for name, reason in unavailable.items():
        for rows_of in table.values():
            rows_of[name] = {"unavailable": reason}
    return table


def _run(engine: Engine, task: Task, name: str, options: Options) -> tuple[Result[Any], float]:
    own: Options = {**options, "drafter": name}
    if task.prediction is not None and name in ("prediction", "mixture", "auto"):
        own["prediction"] = task.prediction
    if name == "none":
        own["gamma"] = 0
    else:
        # Each source for itself shows all that it has; the policy also decides when not to draft.
        own["speculation"] = "auto" if name == "auto" else "fixed"
    if name == "tree" and "temperature" not in options:
        own["verifier"] = "tree"
    start = time.perf_counter()
    result = engine.generate(task.messages, task.output_type, **own)
    return result, time.perf_counter() - start


def _row(rows: Sequence[tuple[Result[Any], float, Result[Any], float]]) -> dict[str, Any]:
    fast = [row[2] for row in rows]
    tokens = sum(r.usage.completion_tokens for r in fast)
    kept: list[int] = []
    judged: list[int] = []
    for r in fast:
        for place, (tried, stood) in enumerate(r.speculation.by_position):
            if place == len(judged):
                judged.append(0)
                kept.append(0)
            judged[place] += tried
            kept[place] += stood
    return {
        "tokens_per_pass": tokens / sum(r.speculation.target_passes for r in fast),
        "acceptance_by_position": [round(k / n, 3) for k, n in zip(kept, judged, strict=True) if n >= 5][:8],
        "accepted": sum(r.speculation.accepted for r in fast),
        "proposed": sum(r.speculation.proposed for r in fast),
        "draft_cost_share": sum(r.timing.propose_s for r in fast) / sum(r.timing.total_s for r in fast),
        "tokens_per_s": tokens / sum(row[3] for row in rows),
        "speedup_vs_target_only": sum(row[1] for row in rows) / sum(row[3] for row in rows),
        "worst_speedup": min(row[1] / row[3] for row in rows),
        "identical": all(row[0].tokens == row[2].tokens for row in rows),
        "disabled": sorted({r.speculation.disabled_reason for r in fast if r.speculation.disabled_reason}),
    }
