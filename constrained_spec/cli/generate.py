"""constrained-spec generate: prompt in, constrained text out."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import typer
from pydantic_core import to_jsonable_python

from constrained_spec.api import Engine, Options, Result
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries
from constrained_spec.cli.constraint import output_type
from constrained_spec.config import DEFAULT_GAMMA, DRAFTERS, VERIFIERS
from constrained_spec.errors import ConfigError, RequestError

_CONSTRAINT, _SAMPLING, _SPECULATION = "Constraint", "Sampling", "Speculation"


def generate(
    prompt: str | None = typer.Argument(None, help="The prompt; read from standard input when absent."),
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    draft_model: str | None = typer.Option(
        None, help="A smaller model with the same tokenizer.", rich_help_panel=_SPECULATION
    ),
    system: str | None = typer.Option(None, help="System message."),
    raw: bool = typer.Option(False, help="Send the prompt as raw text, without the chat template."),
    schema: str | None = typer.Option(None, help="JSON Schema: a file, or the text.", rich_help_panel=_CONSTRAINT),
    regex: str | None = typer.Option(None, help="Regular expression for the whole text.", rich_help_panel=_CONSTRAINT),
    choice: list[str] | None = typer.Option(None, help="One of these texts; repeat it.", rich_help_panel=_CONSTRAINT),
    grammar: str | None = typer.Option(None, help="Lark grammar: a file, or the text.", rich_help_panel=_CONSTRAINT),
    type_: str | None = typer.Option(
        None, "--type", help="int, float, bool, … or module:Name.", rich_help_panel=_CONSTRAINT
    ),
    whitespace: str = typer.Option(
        "one-space", help="In JSON: one-space, compact, flexible.", rich_help_panel=_CONSTRAINT
    ),
    tokenization: str = typer.Option(
        "any", help="any, or canonical where text is forced.", rich_help_panel=_CONSTRAINT
    ),
    on_unsupported: str = typer.Option(
        "error", help="error, or validate: check the finished value.", rich_help_panel=_CONSTRAINT
    ),
    ensure_ascii: bool = typer.Option(
        False, help="In JSON: characters beyond ASCII as \\uXXXX.", rich_help_panel=_CONSTRAINT
    ),
    max_depth: int | None = typer.Option(
        None, help="In JSON: at most so many levels of arrays and objects.", rich_help_panel=_CONSTRAINT
    ),
    close_on_length: bool = typer.Option(
        False, help="End in a complete value within --max-tokens.", rich_help_panel=_CONSTRAINT
    ),
    max_tokens: int = typer.Option(256, help="At most so many tokens.", rich_help_panel=_SAMPLING),
    min_tokens: int = typer.Option(0, help="No end before so many tokens.", rich_help_panel=_SAMPLING),
    temperature: float = typer.Option(0.0, help="0 is greedy.", rich_help_panel=_SAMPLING),
    top_p: float = typer.Option(1.0, help="Nucleus; 1 is off.", rich_help_panel=_SAMPLING),
    top_k: int = typer.Option(0, help="0 is off.", rich_help_panel=_SAMPLING),
    min_p: float = typer.Option(0.0, help="0 is off.", rich_help_panel=_SAMPLING),
    repetition_penalty: float = typer.Option(1.0, help="1 is off.", rich_help_panel=_SAMPLING),
    presence_penalty: float = typer.Option(0.0, help="0 is off.", rich_help_panel=_SAMPLING),
    frequency_penalty: float = typer.Option(0.0, help="0 is off.", rich_help_panel=_SAMPLING),
    seed: int | None = typer.Option(None, help="Makes sampling repeatable.", rich_help_panel=_SAMPLING),
    stop: list[str] | None = typer.Option(None, help="Stop string; repeat it.", rich_help_panel=_SAMPLING),
    include_stop: bool = typer.Option(False, help="Keep the stop string in the text.", rich_help_panel=_SAMPLING),
    drafter: str = typer.Option("auto", help=f"{', '.join(DRAFTERS)}.", rich_help_panel=_SPECULATION),
    gamma: int = typer.Option(DEFAULT_GAMMA, help="At most so many drafts a round.", rich_help_panel=_SPECULATION),
    prediction: Path | None = typer.Option(
        None, help="A file with the expected text.", exists=True, dir_okay=False, rich_help_panel=_SPECULATION
    ),
    parts: str | None = typer.Option(None, help="Folder of trained heads.", rich_help_panel=_SPECULATION),
    verifier: str = typer.Option("coupling", help=f"{', '.join(VERIFIERS)}.", rich_help_panel=_SPECULATION),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    dtype: str = typer.Option("auto", help="auto, float32, float16, bfloat16."),
    quantize: str | None = typer.Option(None, help="int8: another, quicker target (CPU)."),
    quantize_draft: str | None = typer.Option(None, help="int8: for the draft model.", rich_help_panel=_SPECULATION),
    threads: int | None = typer.Option(None, help="Pin torch's threads; default: the quickest number."),
    capacity: int | None = typer.Option(None, help="Context limit in tokens."),
    stream: bool = typer.Option(False, help="Print the text as it is committed."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Generate a constrained answer. The text goes to standard output, statistics to standard error."""
    with exit_codes():
        if stream and as_json:
            raise ConfigError("--stream and --json contradict each other", param="--stream")
        constraint = output_type(
            schema=schema,
            regex=regex,
            choice=choice,
            grammar=grammar,
            type_=type_,
            whitespace=whitespace,
            on_unsupported=on_unsupported,
            ensure_ascii=ensure_ascii,
            max_depth=max_depth,
        )
        options: Options = {
            "max_tokens": max_tokens, "min_tokens": min_tokens, "temperature": temperature, "top_p": top_p,
            "top_k": top_k, "min_p": min_p, "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty, "seed": seed,
            "stop": stop or [], "include_stop": include_stop, "drafter": drafter, "gamma": gamma,
            "verifier": verifier, "whitespace": whitespace, "tokenization": tokenization,
            "on_unsupported": on_unsupported, "close_on_length": close_on_length, "ensure_ascii": ensure_ascii,
            "max_depth": max_depth,
        }  # fmt: skip
        if prediction is not None:
            options["prediction"] = _prediction(prediction)
        Engine.check(constraint, **options)
        text = _checked(prompt) if prompt is not None else _from_stdin()
        messages = [{"role": "user", "content": text}]
        if system is not None and raw:
            raise ConfigError("--raw sends no system message", param="--system")
        if system is not None:
            messages.insert(0, {"role": "system", "content": _checked(system)})
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(
                model, draft_model=draft_model, device=device, dtype=dtype, capacity=capacity, quantize=quantize,
                quantize_draft=quantize_draft, parts=parts, threads=threads, progress=progress,
            )  # fmt: skip
        result: Result[Any] | None = None
        for piece in engine.stream(text if raw else messages, constraint, **options):
            if stream:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
            result = piece.result
        assert result is not None
        if as_json:
            typer.echo(json.dumps(as_object(result), ensure_ascii=False))
            return
        sys.stdout.write("\n" if stream else result.text + "\n")
        typer.echo(summary(result), err=True)


def _prediction(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the prediction cannot be read: {error}", param="--prediction") from error


def _from_stdin() -> str:
    try:
        return _checked(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not text: {error}", param="prompt") from error


def _checked(text: str) -> str:
    """Bytes of the command line that are no text arrive as lone surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("the prompt is not valid text in this locale", param="prompt") from error
    return text


def as_object(result: Result[Any]) -> dict[str, Any]:
    """The published JSON of one answer. ``parsed`` is what JSON can say of it: numbers beyond a float are null."""
    return {
        "text": result.text,
        "parsed": to_jsonable_python(result.parsed, inf_nan_mode="null", serialize_unknown=True),
        "parse_error": result.parse_error,
        "declared": result.declared,
        "unenforced": result.unenforced,
        "holds": result.holds,
        "violation": result.violation,
        "finish_reason": result.finish_reason,
        "exactness": result.exactness,
        "seed": result.seed,
        "target": dataclasses.asdict(result.target),
        "usage": dataclasses.asdict(result.usage),
        "speculation": dataclasses.asdict(result.speculation),
        "timing": dataclasses.asdict(result.timing),
    }


def summary(result: Result[Any]) -> str:
    """One line of statistics."""
    s, n = result.speculation, result.usage.completion_tokens
    line = (
        f"{n} tokens in {s.target_passes} target passes ({n / s.target_passes:.2f} a pass), "
        f"{s.accepted}/{s.proposed} drafts accepted ({s.forced} forced), {n / result.timing.total_s:.1f} tokens/s, "
        f"finish: {result.finish_reason}, {result.exactness}, drafter {s.drafter}"
    )
    return line + (f", disabled: {s.disabled_reason}" if s.disabled_reason else "")
