"""Structured logs to standard error: one line an event, without prompts unless asked for."""

from __future__ import annotations

import sys
import traceback
from typing import Any, TextIO, cast

import structlog

from constrained_spec.server.settings import Settings

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def make_logger(settings: Settings, stream: TextIO | None = None) -> structlog.typing.FilteringBoundLogger:
    """A logger of its own: structlog's global configuration stays as it is."""
    out = stream or sys.stderr
    return cast(
        structlog.typing.FilteringBoundLogger,
        structlog.wrap_logger(
            structlog.WriteLogger(out),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                _renderer(settings.log_format, out),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.log_level]),
        ),
    )


def _renderer(form: str, out: TextIO) -> structlog.typing.Processor:
    if form == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=out.isatty())


def failure(error: BaseException, prompts: bool) -> dict[str, str]:
    """Kind and place of an unexpected error. Its message, which may quote the request, only with ``prompts``."""
    frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)]
    told = {"error": type(error).__name__, "at": " < ".join(reversed(frames[-8:]))}
    if prompts:
        told["message"] = str(error)
    return told


def uvicorn_config(settings: Settings) -> dict[str, Any]:
    """Logging configuration of the server process: uvicorn's own lines in the same form; no second access log."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    _renderer(settings.log_format, sys.stderr),
                ],
                "foreign_pre_chain": [
                    structlog.stdlib.add_log_level,
                    structlog.processors.TimeStamper(fmt="iso", utc=True),
                ],
            }
        },
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "structured", "stream": "ext://sys.stderr"}
        },
        "loggers": {
            "uvicorn": {"handlers": ["stderr"], "level": settings.log_level.upper(), "propagate": False},
            "uvicorn.access": {"handlers": [], "level": "CRITICAL", "propagate": False},
        },
    }
