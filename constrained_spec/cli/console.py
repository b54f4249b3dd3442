"""What all commands share: where progress goes, and how an error ends the program."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from constrained_spec.errors import ConfigError, ConstrainedSpecError, ModelError, RequestError

# rich reads NO_COLOR itself.
stderr = Console(stderr=True, highlight=False)

TRACEBACK = "CONSTRAINED_SPEC_TRACEBACK"  # set in the environment: show where an unexpected failure came from


@contextmanager
def exit_codes() -> Iterator[None]:
    """0 done, 2 the caller's mistake (option, constraint, model), 1 any other failure; no traceback unless asked for.

    An interrupt ends with 130, as shells expect it.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except (ConfigError, RequestError, ModelError) as error:
        raise _exit(2, str(error)) from error
    except ConstrainedSpecError as error:
        raise _exit(1, f"{type(error).__name__}: {error}") from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
    except BrokenPipeError as error:
        # The reader went away. Python flushes once more at exit, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from error
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        hint = f"set {TRACEBACK}=1 to see where"
        raise _exit(1, f"unexpected {type(error).__name__}: {error}; {hint}") from error


def _exit(code: int, message: str) -> typer.Exit:
    # A lone surrogate (an argument that is no text) would make the message itself fail.
    typer.echo("error: " + message.encode(errors="backslashreplace").decode(), err=True)
    return typer.Exit(code)


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

        def show(stage: str, done: int, total: int | None) -> None:
            share = f" {100 * done // total} %" if total and total > 1 else ""
            status.update(f"{name}: {stage}{share}")

        yield show
