"""The training loop: a budget of minutes, checkpoints that a kill cannot spoil, a measure on held-out answers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor

from constrained_spec.errors import ModelError
from constrained_spec.training.batches import Batch, Batches
from constrained_spec.training.loss import LOSSES

CHECKPOINT = "checkpoint.pt"
_EVERY_SECONDS = 20.0  # between checkpoints, at most
_EVERY_SHARE = 0.05  # of the budget
_WARM = 20  # steps in which the rate rises
_DECAY = 0.8  # weight of each later place of a chain: it counts only if all before it are kept
_CLIP = 1.0


class Trainee(Protocol):
    """Draft heads as something to train."""

    @property
    def kind(self) -> str: ...

    @property
    def shape(self) -> dict[str, float]: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...

    def tensors(self) -> dict[str, Tensor]:
        """What the part will hold, without the reduced vocabulary."""
        ...

    def fit(self, batches: Iterator[Batch]) -> None:
        """Set in closed form what can be, before the first step."""
        ...

    def predictions(self, batch: Batch) -> Sequence[tuple[Tensor, Tensor]]:
        """Per place of a chain: indices [m] into the batch's M places, and the states [m, hidden] predicted there."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Training ends with the first that is used up. Time counts over all runs of the same checkpoint."""

    minutes: float
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a progress bar shows after a step: ``done`` in [0, 1]."""

    done: float
    step: int
    loss: float


def train(
    trainee: Trainee,
    batches: Batches,
    folder: Path,
    *,
    budget: Budget,
    loss: str,
    rate: float,
    seed: int,
    identity: str,
    resume: bool,
    progress: Callable[[Told], None],
) -> dict[str, Any]:
    """AdamW with a cosine over the budget. Returns facts for the recipe: steps, seconds, last loss.

    ``identity`` names target, data and loss; a checkpoint of another one is refused with ``ModelError``, and so is any
    checkpoint without ``resume``.
    """
    path = folder / CHECKPOINT
    optimizer = torch.optim.AdamW(list(trainee.parameters()), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    step, spent, recent = 0, 0.0, math.nan
    if path.exists():
        if not resume:
            raise ModelError(
                f"{path} is a checkpoint of an earlier run", param="out", hint="--resume goes on with it; or delete it"
            )
        step, spent, recent = _load(path, trainee, optimizer, identity)
    else:
        trainee.fit(batches.once(Random(seed)))
    # Where the CPU multiplies in 16 bits itself that is several times as quick; sums and norms stay in 32.
    half = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    begun = saved = time.monotonic()
    before = spent
    # The batches of a resumed run are not those that the killed one would have seen, and need not be.
    source = batches.forever(seed * 1_000_003 + step)
    while True:
        done = spent / (budget.minutes * 60)
        if budget.steps is not None:
            done = max(done, step / budget.steps)
        progress(Told(min(1.0, done), step, recent))
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _WARM) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = _loss(trainee, batches, next(source), loss)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(list(trainee.parameters()), _CLIP)
        optimizer.step()
        step += 1
        now_lost = float(value.detach())
        recent = now_lost if math.isnan(recent) else 0.95 * recent + 0.05 * now_lost
        now = time.monotonic()
        spent = before + now - begun
        if now - saved > min(_EVERY_SECONDS, budget.minutes * 60 * _EVERY_SHARE):
            _save(path, trainee, optimizer, identity, step, spent, recent)
            saved = now
    _save(path, trainee, optimizer, identity, step, spent, recent)
    return {"steps": step, "seconds": round(spent), "loss_at_end": round(recent, 4)}


def _loss(trainee: Trainee, batches: Batches, batch: Batch, name: str) -> Tensor:
    total, weight = torch.zeros(()), 0.0
    for k, (at, states) in enumerate(trainee.predictions(batch)):
        if not len(at):
            continue
        draft = (states @ batches.head.t()).float().masked_fill(batch.illegal[at], float("-inf"))
        total = total + _DECAY**k * LOSSES[name](batch.target[at], draft).mean()
        weight += _DECAY**k
    return total / max(weight, 1e-9)


@torch.no_grad()
def agreement(trainee: Trainee, batches: Batches) -> dict[str, list[float]]:
    """On all answers of ``batches``, by place in the chain and given that all before were kept: how often the largest
    q is at the target's choice (``top1``), and the chance that a draft sampled at temperature 1 is kept (``overlap``).
    """
    sums: dict[int, Tensor] = {}
    for batch in batches.once():
        for k, (at, states) in enumerate(trainee.predictions(batch)):
            if not len(at):
                continue
            draft = (states @ batches.head.t()).masked_fill(batch.illegal[at], float("-inf"))
            target = batch.target[at]
            top = (draft.argmax(-1) == target.argmax(-1)).double().sum()
            overlap = torch.minimum(draft.softmax(-1), target.softmax(-1)).sum(-1).double().sum()
            sums[k] = sums.get(k, torch.zeros(3).double()) + torch.stack((top, overlap, torch.tensor(len(at)).double()))
    return {
        "top1": [round(float(s[0] / s[2]), 3) for _, s in sorted(sums.items())],
        "overlap": [round(float(s[1] / s[2]), 3) for _, s in sorted(sums.items())],
    }


def _save(
    path: Path, trainee: Trainee, optimizer: torch.optim.Optimizer, identity: str, step: int, spent: float, loss: float
) -> None:
    """By rename: a kill leaves the checkpoint before, or this one."""
    part = path.with_name(path.name + ".part")
    state = {
        "identity": identity, "step": step, "spent": spent, "loss": loss, "trainee": trainee.state_dict(),
        "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    torch.save(state, part)
    os.replace(part, path)


def _load(path: Path, trainee: Trainee, optimizer: torch.optim.Optimizer, identity: str) -> tuple[int, float, float]:
    state = torch.load(path, weights_only=True)
    if state["identity"] != identity:
        raise ModelError(
            f"{path} belongs to another training: {state['identity']}, and this is {identity}",
            param="out",
            hint="give another folder, or delete the checkpoint",
        )
    trainee.load_state_dict(state["trainee"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["spent"], state["loss"]
