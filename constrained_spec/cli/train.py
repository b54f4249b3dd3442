"""constrained-spec train: draft heads, or a small draft model, made for one target."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.drafters.manifest import load_part
from constrained_spec.errors import ConstrainedSpecError

train = typer.Typer(help="Train a drafter on the target's own answers.", no_args_is_help=True)

_SLOTS = 32  # answers sampled at a time
_CAPACITY = 768
_SHOWN_EVERY = 0.1  # of a stage, where there is no terminal for a bar

TARGET = typer.Option("smollm2-135m", "--target", help="Catalogue alias, hub id, local folder or GGUF file.")
OUT = typer.Option(..., "--out", help="Folder for the part, the checkpoint and the answers.")
MINUTES = typer.Option(45.0, "--minutes", help="Budget; two fifths of it at most go into sampling.")
TOKENS = typer.Option(80_000, "--tokens", help="Tokens of the target's answers to train on.")
LOSS = typer.Option("kl", "--loss", help="kl, reverse-kl, tv, jsd.")
RESUME = typer.Option(False, "--resume", help="Go on from the checkpoint in --out.")
SEED = typer.Option(1, "--seed", help="Of prompts, samples and batches.")
DATA = typer.Option(None, "--data", help="Folder of answers that are sampled already; default OUT/data.")
MEASURE = typer.Option(6, "--measure", help="Unseen prompts of each kind for the figures in the manifest.")
THREADS = typer.Option(None, "--threads", help="Pin torch's threads; default: the quickest number.")


@train.command()
def medusa(
    target: str = TARGET,
    out: Path = OUT,
    minutes: float = MINUTES,
    tokens: int = TOKENS,
    loss: str = LOSS,
    resume: bool = RESUME,
    seed: int = SEED,
    data: Path | None = DATA,
    measure: int = MEASURE,
    threads: int | None = THREADS,
) -> None:
    """Heads that guess the next tokens at once from the target's last final state."""
    _heads("medusa", target, out, minutes, tokens, loss, resume, seed, data, measure, threads)


@train.command()
def eagle(
    target: str = TARGET,
    out: Path = OUT,
    minutes: float = MINUTES,
    tokens: int = TOKENS,
    loss: str = LOSS,
    resume: bool = RESUME,
    seed: int = SEED,
    data: Path | None = DATA,
    measure: int = MEASURE,
    threads: int | None = THREADS,
) -> None:
    """One decoder layer that extrapolates the target's final states."""
    _heads("eagle", target, out, minutes, tokens, loss, resume, seed, data, measure, threads)


@train.command()
def draft(
    target: str = TARGET,
    out: Path = OUT,
    minutes: float = MINUTES,
    tokens: int = TOKENS,
    loss: str = LOSS,
    resume: bool = RESUME,
    seed: int = SEED,
    data: Path | None = DATA,
    threads: int | None = THREADS,
    layers: int = typer.Option(4, "--layers", help="First layers of the target that the draft model keeps."),
) -> None:
    """A small model with the target's tokenizer: its first layers, distilled. For --draft-model OUT/model."""
    from constrained_spec.training.draft import make_draft
    from constrained_spec.training.recipe import require_options

    with exit_codes():
        require_options(None, loss, minutes, tokens)
        model = _load(target, threads)
        with bars() as progress:
            path = make_draft(
                model, load_model(target, specialise=False, capacity=16, threads=threads), out, minutes=minutes,
                tokens=tokens, loss=loss, layers=layers, seed=seed, resume=resume, data=data, progress=progress,
            )  # fmt: skip
        typer.echo(str(path))


def _heads(
    kind: str,
    target: str,
    out: Path,
    minutes: float,
    tokens: int,
    loss: str,
    resume: bool,
    seed: int,
    data: Path | None,
    measure: int,
    threads: int | None,
) -> None:
    from constrained_spec.training.recipe import make_part, require_options

    with exit_codes():
        require_options(kind, loss, minutes, tokens)
        model = _load(target, threads)
        variants = _variants(target, threads) if model.path.specialised and model.device.type == "cpu" else {}
        with bars() as progress:
            path = make_part(
                kind, model, out, minutes=minutes, tokens=tokens, loss=loss, seed=seed, resume=resume, data=data,
                per_kind=measure, variants=variants, progress=progress,
            )  # fmt: skip
        # Proof that what was written can be read.
        manifest = load_part(path).manifest
        typer.echo(json.dumps({"part": str(path), "evaluation": manifest.evaluation}, ensure_ascii=False))


def _load(target: str, threads: int | None) -> TransformersModel:
    quiet_libraries()
    with loading(target) as progress:
        return load_model(target, slots=_SLOTS, capacity=_CAPACITY, threads=threads, progress=progress)


def _variants(target: str, threads: int | None) -> dict[str, str]:
    """Digests of conversions of the same weights, for which the part may be allowed too."""
    try:
        converted = load_model(target, quantize="int8", capacity=16, threads=threads)
    except ConstrainedSpecError:
        return {}
    return {"int8": converted.weights_digest()}


@contextmanager
def bars() -> Iterator[Callable[[str, float, str], None]]:
    """A bar per stage on a terminal; elsewhere a line for each tenth of a stage."""
    if not sys.stderr.isatty():
        told: dict[str, float] = {}

        def line(stage: str, done: float, details: str) -> None:
            if stage not in told or done >= told[stage] + _SHOWN_EVERY or (done >= 1 > told[stage]):
                told[stage] = done
                typer.echo(f"{stage} {done:.0%} {details}".rstrip(), err=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[details]}"),
    )  # fmt: skip
    with Progress(*columns, console=stderr) as shown:
        tasks: dict[str, TaskID] = {}

        def bar(stage: str, done: float, details: str) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage, total=1.0, details=details)
            shown.update(tasks[stage], completed=done, details=details)

        yield bar
