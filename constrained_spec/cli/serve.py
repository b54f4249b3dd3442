"""constrained-spec serve: the HTTP server. Its flags are the fields of ``server.settings.Settings``."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from constrained_spec.cli.console import exit_codes, quiet_libraries
from constrained_spec.server.settings import PREFIX, Settings, as_toml, load_settings


def _serve(config: Path | None, print_config: bool, **flags: Any) -> None:
    """Serve the API of OpenAI's shape, constrained and speculative, for one model.

    A flag goes before its environment variable, that before the TOML file, that before the default.
    """
    with exit_codes():
        given = {name: value for name, value in flags.items() if value not in (None, [])}
        settings = load_settings(given, config=config)
        if print_config:
            typer.echo(as_toml(settings), nl=False)
            return
        settings.check_bind()
        quiet_libraries()
        # Only now: what serves takes long to import.
        from constrained_spec.server.run import serve as run

        run(settings)


def _command() -> Callable[..., None]:
    """``_serve`` with one flag for every setting; typer reads signature and annotations."""
    parameters = [_argument(), _config(), _print_config()]
    parameters += [_flag(name, field) for name, field in Settings.model_fields.items() if name != "model"]

    def serve(**given: Any) -> None:
        _serve(**given)

    serve.__doc__ = _serve.__doc__
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {p.name: p.annotation for p in parameters}
    return serve


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _argument() -> inspect.Parameter:
    field = Settings.model_fields["model"]
    text = f"{field.description} Default: {field.default}. (env: {PREFIX}MODEL)"
    return _parameter("model", str | None, typer.Argument(None, help=text, show_default=False))


def _config() -> inspect.Parameter:
    option = typer.Option(
        None, help=f"TOML file of settings. (env: {PREFIX}CONFIG)", exists=True, dir_okay=False, show_default=False
    )
    return _parameter("config", Path | None, option)


def _print_config() -> inspect.Parameter:
    return _parameter("print_config", bool, typer.Option(False, help="Print the settings as TOML, and end."))


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    """One setting as an option that is None unless given."""
    extra = field.json_schema_extra
    panel = str(extra["panel"]) if isinstance(extra, dict) else None
    default = "" if field.default in (None, (), False) else f" Default: {_shown(field.default)}."
    flag = name.replace("_", "-")
    names = [f"--{flag}/--no-{flag}"] if field.annotation is bool else [f"--{flag}"]
    option = typer.Option(
        None, *names, help=f"{field.description}{default} (env: {PREFIX}{name.upper()})", rich_help_panel=panel,
        show_default=False,
    )  # fmt: skip
    return _parameter(name, _annotation(field), option)


def _annotation(field: FieldInfo) -> object:
    """The type that the command line reads: a list for a tuple, a text for what pydantic turns into something else."""
    kinds = [kind for kind in _members(field.annotation) if kind is not type(None)]
    kind = kinds[0]
    if get_origin(kind) is tuple:
        return list[str] | None
    return (kind if kind in (bool, int, float) else str) | None


def _members(annotation: object) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


serve = _command()
