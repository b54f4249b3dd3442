"""The real model, once per session, and a noisy copy of it as a draft model."""

from __future__ import annotations

import copy

import pytest
import torch

from constrained_spec.api import Engine
from constrained_spec.backends.transformers import TransformersModel


def noisy_copy(target: TransformersModel, noise: float, seed: int = 0) -> TransformersModel:
    """The same network with every matrix disturbed by ``noise`` times its own standard deviation."""
    model = copy.deepcopy(target.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                scale = float(parameter.std()) * noise
                parameter += torch.randn(parameter.shape, generator=generator) * scale
    return TransformersModel(model, target.tokenizer, slots=1, capacity=target.capacity, name="noisy-copy")


@pytest.fixture(scope="session")
def smollm2() -> Engine:
    return Engine.load("smollm2-135m", capacity=1024)


@pytest.fixture(scope="session")
def smollm2_with_draft(smollm2: Engine) -> Engine:
    return Engine(smollm2.model, noisy_copy(smollm2.model, 0.05))
