"""constrained-spec demo: one extraction job, target-only and speculative, side by side."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table

from constrained_spec.api import Engine, Result
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.config import DEFAULT_GAMMA
from constrained_spec.errors import AuditFailure

TEXT = (
    "Tomas Lindqvist is 52 and restores wooden boats in Gothenburg, Sweden. "
    "Friends call him stubborn, generous and punctual."
)
PROMPT = f"Extract the person from the text as JSON with name, age, city, country and traits.\n\n{TEXT}"

# Every part is bounded, so the answer ends by itself and is valid JSON whatever the model does.
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"type": "string", "maxLength": 40},
        "country": {"type": "string", "maxLength": 40},
        "traits": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "city", "country", "traits"],
    "additionalProperties": False,
}


def demo(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    drafter: str = typer.Option("auto", help="none, forced, ngram, mixture, auto."),
    gamma: int = typer.Option(DEFAULT_GAMMA, help="At most so many drafts a round."),
) -> None:
    """Extract JSON from a text twice: target-only and with speculation; the same text in fewer target passes."""
    with exit_codes():
        Engine.check(SCHEMA, drafter=drafter, gamma=gamma)
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(model, capacity=1024, progress=progress)
        messages = [{"role": "user", "content": PROMPT}]
        # One warm-up, so that neither run pays for the first touch of the weights.
        engine.generate(messages, SCHEMA, max_tokens=4)
        plain = engine.generate(messages, SCHEMA, speculation=False)
        fast = engine.generate(messages, SCHEMA, drafter=drafter, gamma=gamma)
        stderr.print(f"[bold]Text[/]   {TEXT}")
        typer.echo(fast.text)
        stderr.print(_table(f"{model}, greedy", {"target-only": plain, "speculative": fast}))
        same = plain.tokens == fast.tokens
        stderr.print(f"identical tokens: {'yes' if same else 'NO'}   finish: {fast.finish_reason}   {fast.exactness}")
        if fast.speculation.disabled_reason:
            stderr.print(f"disabled: {fast.speculation.disabled_reason}")
        if not same:
            raise AuditFailure("the two texts differ", hint="run constrained-spec doctor")


def _table(title: str, results: dict[str, Result[Any]]) -> Table:
    table = Table(title=title)
    for column in ("", "tokens", "passes", "tokens/pass", "accepted", "seconds"):
        table.add_column(column, justify="left" if not column else "right")
    for name, r in results.items():
        n, s = r.usage.completion_tokens, r.speculation
        row = (n, s.target_passes, f"{n / s.target_passes:.2f}", f"{s.accepted}/{s.proposed}")
        table.add_row(name, *map(str, row), f"{r.timing.total_s:.2f}")
    return table
