"""Greedy identity on a corpus, and how far the target's own kernels are apart between block shapes."""

from __future__ import annotations

from typing import Any

import torch

from constrained_spec.audit.state import common_length
from constrained_spec.audit.subject import TARGET_ONLY, Subject, Task, run_task
from constrained_spec.backends.base import Block
from constrained_spec.grammars.compile import Choice, Regex

EXTRA = (
    Task("constraints", "stop string", "One, two, three, four, five,", None),
    Task("constraints", "regex", "The date of today is ", Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")),
    Task("constraints", "choice", "The sky is ", Choice(("blue", "bluish", "black", "green"))),
)
_EXTRA_OPTIONS: dict[str, dict[str, Any]] = {
    "stop string": {"stop": ("eight", "e, s", "\n\n")},
    "regex": {"presence_penalty": 0.4},
    "choice": {"min_tokens": 2},
}
DRIFT_CONTEXT, DRIFT_PLACES = 48, 16
BLOCKS = (2, 4, 8, 16)
_LEVELS = torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)


def greedy_identity(subject: Subject) -> dict[str, Any]:
    """Every chosen task and a few more constraints and stops: speculative against target-only, token for token."""
    rows: list[dict[str, Any]] = []
    with subject.engine() as engine:
        for task in (*subject.chosen_tasks(), *EXTRA):
            if subject.drafter == "prediction" and task.prediction is None:
                continue
            options = {"max_tokens": subject.effort.max_tokens, **_EXTRA_OPTIONS.get(task.id, {})}
            plain = run_task(engine, task, **options, **TARGET_ONLY)
            fast = run_task(engine, task, **options, **subject.speculation)
            same = common_length(plain.tokens, fast.tokens)
            equal = plain.tokens == fast.tokens and plain.finish_reason == fast.finish_reason
            rows.append({
                "suite": task.suite, "task": task.id, "equal": equal, "tokens": len(plain.tokens),
                "same_tokens": same, "passes": fast.speculation.rounds, "accepted": fast.speculation.accepted,
                "disabled": fast.speculation.disabled_reason,
            })  # fmt: skip
    return {
        "tasks": rows, "compared": len(rows), "different": sum(not row["equal"] for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
        "disabled": sorted({row["disabled"] for row in rows if row["disabled"]}),
    }  # fmt: skip


def kernel_drift(subject: Subject) -> dict[str, Any]:
    """Logits of the same places from blocks of several sizes against single steps, on a fixed text."""
    subject.clear()
    model = subject.model
    text = " ".join(task.prompt if isinstance(task.prompt, str) else str(task.prompt) for task in subject.tasks)
    ids = model.vocabulary.encode(text)
    need = DRIFT_CONTEXT + DRIFT_PLACES
    while len(ids) < need:
        ids = ids + ids
    context, rest = ids[:DRIFT_CONTEXT], ids[DRIFT_CONTEXT:need]
    model.score([Block(0, context, want=0)])
    single = torch.cat([model.score([Block(0, [token], want=1)]) for token in rest])
    rows: list[dict[str, Any]] = []
    for size in BLOCKS:
        model.set_length(0, DRIFT_CONTEXT)
        parts = [rest[i : i + size] for i in range(0, len(rest), size)]
        block = torch.cat([model.score([Block(0, part, want=len(part))]) for part in parts])
        away = (block - single).abs()
        quantiles = torch.quantile(away.flatten().double()[:: max(1, away.numel() // 1_000_000)].cpu(), _LEVELS)
        rows.append({
            "block": size, "max": float(away.max()),
            "quantiles": dict(zip(("50", "90", "99"), quantiles.tolist(), strict=True)),
            "argmax_flips": int((block.argmax(-1) != single.argmax(-1)).sum()), "places": len(rest),
        })  # fmt: skip
    subject.clear()
    return {
        "blocks": rows, "max": max(row["max"] for row in rows),
        "argmax_flips": sum(row["argmax_flips"] for row in rows),
        "scale": float(single.abs().max()),
    }  # fmt: skip
