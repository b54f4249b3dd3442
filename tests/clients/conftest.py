"""The tiny random model behind the real application, and the real model on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from constrained_spec.api import Engine
from constrained_spec.server.app import create_app
from constrained_spec.server.settings import Settings
from tests.clients.common import Talk, on_loopback
from tests.server.conftest import tiny_model


@pytest.fixture(scope="session")
def tiny() -> Iterator[Engine]:
    engine = Engine(tiny_model(), queue=64, prefix_reuse=True)
    yield engine
    engine.close(drain=False)


@pytest.fixture(scope="session")
def make_app() -> Iterator[Callable[..., FastAPI]]:
    """``make_app(engine, **settings)``: an application that serves it."""
    made: list[FastAPI] = []

    def make(engine: Engine, **settings: Any) -> FastAPI:
        app = create_app(Settings(log_level="error", **{"model": engine.model.name, **settings}), engine)
        app.state.service.start()
        made.append(app)
        return app

    yield make
    for app in made:
        app.state.service.release()


@pytest.fixture(scope="session")
def app(make_app: Callable[..., FastAPI], tiny: Engine) -> FastAPI:
    return make_app(tiny)


@pytest.fixture(scope="session")
def talk(app: FastAPI) -> Talk:
    """openai's client of the tiny model, in this process."""
    return Talk(app)


@pytest.fixture(scope="session")
def url(app: FastAPI) -> Iterator[str]:
    """The tiny model's address, for clients that bring their own HTTP."""
    with on_loopback(app) as address:
        yield address


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Engine]:
    engine = Engine.load("smollm2-135m", slots=2, capacity=1024)
    yield engine
    engine.close(drain=False)


@pytest.fixture(scope="session")
def smollm2_url(make_app: Callable[..., FastAPI], smollm2: Engine) -> Iterator[str]:
    """The real model's address."""
    with on_loopback(make_app(smollm2)) as address:
        yield address
