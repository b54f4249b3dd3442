"""The server as a process: uvicorn around the app, until it is told to stop."""

from __future__ import annotations

import asyncio

import uvicorn

from constrained_spec.errors import ModelError
from constrained_spec.server.app import create_app
from constrained_spec.server.logs import uvicorn_config
from constrained_spec.server.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM; open requests then get ``shutdown_seconds``.

    Raises ``ConfigError`` for an address that needs a key, ``ModelError`` if the model cannot be loaded.
    """
    settings.check_bind()
    app = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=uvicorn_config(settings),
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
        )
    )

    def stop() -> None:
        server.should_exit = True

    app.state.on_failure = stop
    asyncio.run(server.serve())
    reason = app.state.service.reason
    if reason is not None:
        raise ModelError(reason, param="model")
