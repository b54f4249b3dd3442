"""What all commands share: where progress goes, and how an error ends the program."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from constrained_spec.errors import ConfigError, ConstrainedSpecError, ModelError, RequestError

# rich reads NO_COLOR itself.
stderr = Console(stderr=True, highlight=False)


@contextmanager
def exit_codes() -> Iterator[None]:
    """0 done, 2 the caller's mistake (option, constraint, model), 1 any other failure; never a traceback for ours."""
    try:
        yield
    except (ConfigError, RequestError, ModelError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except ConstrainedSpecError as error:
        typer.echo(f"error: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


def quiet_libraries() -> None:
    """Keep other libraries' progress bars and notices out of our output, in this process only."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging as hf

    hf.set_verbosity_error()
    hf.disable_progress_bar()
    for name in ("gguf", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def loading(name: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A spinner that names the stage of loading; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    with stderr.status(f"loading {name}") as status:
        yield lambda stage, done, total: status.update(f"{name}: {stage}")
