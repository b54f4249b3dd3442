"""From a target to a part in a folder: sample, train, measure, write. What the command line runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.drafters.eagle import EagleDrafter
from constrained_spec.drafters.heads import HeadDrafter
from constrained_spec.drafters.manifest import Manifest, Part, load_part, save_part
from constrained_spec.drafters.medusa import MedusaDrafter
from constrained_spec.errors import ConfigError
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.training.batches import Batches, reduced_vocabulary
from constrained_spec.training.data import collect, split
from constrained_spec.training.eagle import EagleTrainee
from constrained_spec.training.evaluate import evaluate
from constrained_spec.training.loop import Budget, Told, Trainee, agreement, train
from constrained_spec.training.loss import LOSSES
from constrained_spec.training.medusa import MedusaTrainee

DRAFTERS: dict[str, Callable[..., HeadDrafter]] = {"medusa": MedusaDrafter, "eagle": EagleDrafter}
TRAINEES: dict[str, Callable[[TransformersModel], Trainee]] = {"medusa": MedusaTrainee, "eagle": EagleTrainee}
_BATCH = {"medusa": 3072, "eagle": 1536}  # tokens
_RATE = {"medusa": 1.5e-3, "eagle": 1e-3}
_PLACES = 768  # of a batch, at which the loss is taken
_LONGEST = 320
SAMPLING_SHARE = 0.4  # of the minutes, at most

Progress = Callable[[str, float, str], None]  # stage, done in [0, 1], details


def make_part(
    kind: str,
    model: TransformersModel,
    out: Path,
    *,
    minutes: float,
    tokens: int,
    loss: str = "kl",
    reduced: int = 8192,
    steps: int | None = None,
    seed: int = 1,
    resume: bool = False,
    data: Path | None = None,
    gamma: int = 5,
    per_kind: int = 6,
    variants: dict[str, str] | None = None,
    progress: Progress = lambda stage, done, details: None,
) -> Path:
    """Train a part of ``kind`` for ``model`` within about ``minutes`` and write it into ``out``. The manifest's path.

    ``tokens`` of the target's answers are sampled first, into ``data`` (default ``out/data``), in at most two fifths of
    the time; what is there already is used. ``steps`` bounds the training as well. A kill loses seconds: ``resume``
    goes on. Raises ``ConfigError``, ``ModelError``.
    """
    require_options(kind, loss, minutes, tokens)
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    samples = collect(
        model,
        data or out / "data",
        tokens=tokens,
        seed=seed,
        seconds=minutes * 60 * SAMPLING_SHARE,
        progress=lambda done, of: progress("sampling", min(1.0, done / of), f"{done} of {of} tokens"),
    )
    sampled = time.monotonic() - begun
    train_set, held = split(samples)
    if not train_set or not held:
        raise ConfigError("too few answers to train on and to hold out", param="tokens", hint="give more minutes")
    ids = reduced_vocabulary(train_set, model.vocabulary, min(reduced, model.vocabulary.size))
    trainee = TRAINEES[kind](model)
    batches = Batches(train_set, model, ids, size=_BATCH[kind], longest=_LONGEST, places=_PLACES)
    left = minutes if data is not None else max(minutes - sampled / 60, minutes * (1 - SAMPLING_SHARE))

    def show(told: Told) -> None:
        progress("training", told.done, f"step {told.step}, loss {told.loss:.3f}")

    facts = train(
        trainee,
        batches,
        out,
        budget=Budget(left, steps),
        loss=loss,
        rate=_RATE[kind],
        seed=seed,
        identity=f"{kind} {model.weights_digest()} {loss} {seed} {len(ids)} {trainee.shape}",
        resume=resume,
        progress=show,
    )
    progress("measuring", 0.0, "")
    whole = left / (1 - SAMPLING_SHARE)  # in which answers that were there already are sampled as well
    recipe: dict[str, Any] = {
        "command": f"constrained-spec train {kind} --target {model.name} --tokens {tokens} --minutes {whole:.0f} "
        f"--loss {loss} --seed {seed}",
        "answers": len(train_set),
        "tokens": sum(s.outputs for s in train_set),
        "by_kind": {k: sum(s.outputs for s in train_set if s.kind == k) for k in sorted({s.kind for s in train_set})},
        "temperatures": [0.0, 0.8],
        "loss": loss,
        "rate": _RATE[kind],
        "batch_tokens": _BATCH[kind],
        "batch_places": _PLACES,
        **facts,
    }
    evaluation: dict[str, Any] = {
        "held_out_answers": len(held),
        "coverage": _coverage(held, ids),
        "teacher_forced": agreement(trainee, Batches(held, model, ids, size=2048, longest=_LONGEST)),
    }
    manifest = Manifest(
        kind=kind,
        target=model.name,
        target_digest=model.weights_digest(),
        vocabulary_digest=model.vocabulary.digest,
        shape=trainee.shape,
        variants=variants or {},
        recipe=recipe,
        evaluation=evaluation,
    )
    # Measured is what is stored: the tensors in 16 bits, read back.
    path = save_part(Part(manifest, {**trainee.tensors(), "reduced": ids}), out)
    drafter = DRAFTERS[kind](model, Pipeline(model.vocabulary), load_part(path), least=0.0)
    evaluation |= evaluate(model, drafter, gamma=gamma, per_kind=per_kind)
    path = save_part(Part(manifest, {**trainee.tensors(), "reduced": ids}), out)
    progress("measuring", 1.0, "")
    return path


def require_options(kind: str | None, loss: str, minutes: float, tokens: int) -> None:
    """Raise ``ConfigError`` for what ``make_part`` cannot do, before any model is loaded."""
    if kind is not None and kind not in TRAINEES:
        raise ConfigError(f"unknown kind {kind!r}", param="kind", hint=f"one of {', '.join(TRAINEES)}")
    if loss not in LOSSES:
        raise ConfigError(f"unknown loss {loss!r}", param="loss", hint=f"one of {', '.join(LOSSES)}")
    for name, value in (("minutes", minutes), ("tokens", tokens)):
        if not value > 0:
            raise ConfigError(f"{name} must be positive, got {value}", param=name)


def _coverage(held: list[Any], ids: torch.Tensor) -> float:
    """Share of the held-out output tokens that the part can draft at all."""
    tokens = torch.cat([s.tokens[s.prompt :] for s in held])
    return round(float(torch.isin(tokens, ids).double().mean()), 4)
