"""A small draft model: the target's first layers, distilled on its own answers (DistillSpec, Zhou et al. 2024)."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError, ModelError
from constrained_spec.training.batches import Batch, Batches, reduced_vocabulary
from constrained_spec.training.data import collect, split
from constrained_spec.training.loop import Budget, Told, agreement, train
from constrained_spec.training.recipe import SAMPLING_SHARE, Progress, require_options

_BATCH, _RATE, _LONGEST, _REDUCED = 1024, 3e-4, 320, 8192


class DraftTrainee(nn.Module):
    """The first ``layers`` layers with the target's last norm, embedding and output rows; the rows stay as they are."""

    kind = "draft"

    def __init__(self, stock: TransformersModel, layers: int) -> None:
        super().__init__()
        model = stock.model
        if model is None or not hasattr(getattr(model, "model", None), "layers"):
            raise ModelError(f"{stock.name} keeps no list of decoder layers to cut", param="target")
        whole = len(model.model.layers)
        if not 0 < layers < whole:
            raise ConfigError(f"layers must lie in [1, {whole - 1}], got {layers}", param="layers")
        model.model.layers = model.model.layers[:layers]
        self.small = copy.deepcopy(model)
        config = self.small.config
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
        self.small.set_attn_implementation("eager")
        self._layers = layers
        for name, p in self.small.named_parameters():
            # Thirty million numbers of which a batch moves few: not worth an optimiser's memory.
            p.requires_grad_("embed" not in name and "lm_head" not in name)

    @property
    def shape(self) -> dict[str, float]:
        return {"layers": self._layers}

    def tensors(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.small.named_parameters()}

    def fit(self, batches: Iterator[Batch]) -> None:
        """Nothing has a closed form here."""

    def predictions(self, batch: Batch) -> Sequence[tuple[Tensor, Tensor]]:
        """The last hidden state at each place: a model's drafts differ from its reading in no way."""
        hidden: Tensor = self.small.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return [(torch.arange(len(batch.rows)), hidden[batch.rows, batch.places])]


def make_draft(
    target: TransformersModel,
    stock: TransformersModel,
    out: Path,
    *,
    minutes: float,
    tokens: int,
    loss: str = "kl",
    layers: int = 4,
    steps: int | None = None,
    seed: int = 1,
    resume: bool = False,
    data: Path | None = None,
    progress: Progress = lambda stage, done, details: None,
) -> Path:
    """Distil the first layers of ``stock``, the target loaded without specialisation, which is used up. The folder
    ``out/model``, to be loaded as a draft model.

    Raises ``ConfigError`` for an option, ``ModelError`` for a model without a plain list of layers.
    """
    require_options(None, loss, minutes, tokens)
    out.mkdir(parents=True, exist_ok=True)
    trainee = DraftTrainee(stock, layers)
    samples = collect(
        target,
        data or out / "data",
        tokens=tokens,
        seed=seed,
        seconds=minutes * 60 * SAMPLING_SHARE,
        progress=lambda done, of: progress("sampling", min(1.0, done / of), f"{done} of {of} tokens"),
    )
    train_set, held = split(samples)
    if not train_set or not held:
        raise ConfigError("too few answers to train on and to hold out", param="tokens", hint="give more minutes")
    ids = reduced_vocabulary(train_set, target.vocabulary, min(_REDUCED, target.vocabulary.size))

    def show(told: Told) -> None:
        progress("training", told.done, f"step {told.step}, loss {told.loss:.3f}")

    facts = train(
        trainee,
        Batches(train_set, target, ids, size=_BATCH, longest=_LONGEST),
        out,
        budget=Budget(minutes * (1 if data is not None else 1 - SAMPLING_SHARE), steps),
        loss=loss,
        rate=_RATE,
        seed=seed,
        identity=f"draft {target.weights_digest()} {loss} {seed} {layers}",
        resume=resume,
        progress=show,
    )
    progress("measuring", 0.0, "")
    found = agreement(trainee, Batches(held, target, ids, size=_BATCH, longest=_LONGEST))
    trainee.small.config.constrained_spec_recipe = {
        "target": target.name, "target_digest": target.weights_digest(), "layers": layers, "loss": loss,
        "tokens": sum(s.outputs for s in train_set), "held_out": found, **facts,
    }  # fmt: skip
    part = out / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    trainee.small.save_pretrained(part)
    stock.tokenizer.save_pretrained(part)
    folder = out / "model"
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
    progress("measuring", 1.0, str(found))
    return folder
