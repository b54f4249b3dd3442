"""The real model, once per session, and a noisy copy of it as a draft model."""

from __future__ import annotations

import pytest
import torch

from constrained_spec.api import Engine
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel

NAME, CAPACITY = "smollm2-135m", 1024


def noisy_copy(noise: float, seed: int = 0) -> TransformersModel:
    """The same network with every matrix disturbed by ``noise`` times its own standard deviation."""
    stock = load_model(NAME, capacity=1, specialise=False)
    model = stock.model
    assert model is not None
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                scale = float(parameter.std()) * noise
                parameter += torch.randn(parameter.shape, generator=generator) * scale
    return TransformersModel(model, stock.tokenizer, slots=1, capacity=CAPACITY, name="noisy-copy", specialise=True)


@pytest.fixture(scope="session")
def smollm2() -> Engine:
    return Engine.load(NAME, capacity=CAPACITY)


@pytest.fixture(scope="session")
def draft() -> TransformersModel:
    return noisy_copy(0.05)


@pytest.fixture(scope="session")
def smollm2_with_draft(smollm2: Engine, draft: TransformersModel) -> Engine:
    return Engine(smollm2.model, draft)


@pytest.fixture(scope="session")
def int8_with_draft(draft: TransformersModel) -> Engine:
    return Engine(load_model(NAME, capacity=CAPACITY, quantize="int8"), draft)
