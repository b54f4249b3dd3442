"""constrained-spec demo: one extraction job, target-only and speculative, side by side."""

from __future__ import annotations

import typer
from rich.table import Table

from constrained_spec.api import Engine
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.suite import Job
from constrained_spec.errors import AuditFailure

# Every string is bounded, so that the answer ends within the token limit whatever a small model writes.
JOB = Job(
    id="demo",
    instruction="Extract the information from the text as JSON.",
    text="Tomas Lindqvist is 52 and restores wooden boats. He lives at 8 Ropewalk Lane in Gothenburg, Sweden.",
    schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "occupation": {"type": "string", "maxLength": 32},
            "address": {
                "type": "object",
                "properties": {
                    "street": {"type": "string", "maxLength": 32},
                    "city": {"type": "string", "maxLength": 24},
                    "country": {"type": "string", "maxLength": 24},
                },
                "required": ["street", "city", "country"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "age", "occupation", "address"],
        "additionalProperties": False,
    },
)


def demo(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    gamma: int = typer.Option(8, help="At most so many drafts a round."),
) -> None:
    """Extract JSON from a text twice: target-only and with speculation; the same text in fewer target passes."""
    with exit_codes():
        quiet_libraries()
        job = JOB
        with loading(model) as progress:
            engine = Engine.load(model, capacity=1024, progress=progress)
        # One warm-up, so that neither run pays for the first touch of the weights.
        engine.generate(job.messages, job.schema, max_tokens=4)
        plain = engine.generate(job.messages, job.schema, max_tokens=160, drafter="none")
        fast = engine.generate(job.messages, job.schema, max_tokens=160, gamma=gamma)
        typer.echo(fast.text)
        if fast.parsed is None:
            raise AuditFailure("the answer is not complete", hint="the model needs more than 160 tokens")
        table = Table(title=f"{model}, extraction, greedy")
        for column in ("", "tokens", "target passes", "tokens per pass", "accepted drafts", "seconds"):
            table.add_column(column, justify="left" if not column else "right")
        for name, r in (("target-only", plain), ("speculative", fast)):
            n, s = r.usage.completion_tokens, r.speculation
            table.add_row(
                name,
                str(n),
                str(s.target_passes),
                f"{n / s.target_passes:.2f}",
                f"{s.accepted}/{s.proposed}",
                f"{r.timing.total_s:.2f}",
            )
        stderr.print(table)
        same = plain.tokens == fast.tokens
        stderr.print(f"identical tokens: {'yes' if same else 'NO'}   finish: {fast.finish_reason}   {fast.exactness}")
        if not same:
            raise AuditFailure("the two texts differ", hint="run constrained-spec doctor")
