"""What a server can be told: flags, then environment variables, then one TOML file, then defaults.

A field ``slots`` is the flag ``--slots``, the variable ``CONSTRAINED_SPEC_SLOTS`` and the TOML key ``slots``. A name
that means nothing is refused wherever it stands.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from constrained_spec.config import DEFAULT_GAMMA, DRAFTERS, MAX_GAMMA, VERIFIERS, Speculation
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.budget import Budget
from constrained_spec.server.plan import Limits
from constrained_spec.server.vllm_keys import from_vllm

PREFIX = "CONSTRAINED_SPEC_"
# Variables of this package that are no settings of the server; CONFIG is the flag --config.
OTHER_VARIABLES = frozenset({"CACHE", "CONFIG", "TRACEBACK", "URL"})
_LIMITS, _DEFAULTS = Limits(), Budget()
Names = Annotated[tuple[str, ...], NoDecode]


def _field(panel: str, default: Any, description: str, **checks: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"panel": panel}, **checks)


def _model(default: Any, description: str, **checks: Any) -> Any:
    return _field("Model", default, description, **checks)


def _serving(default: Any, description: str, **checks: Any) -> Any:
    return _field("Serving", default, description, **checks)


def _security(default: Any, description: str, **checks: Any) -> Any:
    return _field("Security", default, description, **checks)


def _speculation(default: Any, description: str, **checks: Any) -> Any:
    return _field("Speculation", default, description, **checks)


def _limit(default: Any, description: str, **checks: Any) -> Any:
    return _field("Limits", default, description, ge=1, **checks)


def _logging(default: Any, description: str, **checks: Any) -> Any:
    return _field("Logs and traces", default, description, **checks)


class Settings(BaseSettings):
    """One immutable value. Made by ``load_settings``; ``Settings(...)`` reads the environment, and no file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    model: str = _model("smollm2-135m", "Catalogue alias, hub id, local folder or GGUF file.", min_length=1)
    served_model_name: Names = _model((), "Name in the API; repeat it for aliases. Default: the model's own.")
    device: str = _model("auto", "auto, cpu, cuda.")
    dtype: str = _model("auto", "auto, float32, float16, bfloat16.")
    quantize: str | None = _model(None, "int8: another, quicker target (CPU).")
    capacity: int | None = _model(None, "Context limit in tokens.", ge=1)
    threads: int | None = _model(None, "Pin torch's threads.", ge=1)
    fim_template: str | None = _model(None, "Fill-in-the-middle prompt with {prefix} and {suffix}.")
    tool_syntax: str | None = _model(None, "Spelling of tool calls: hermes, llama3, mistral, json.")

    host: str = _serving("127.0.0.1", "Address to listen on.", min_length=1)
    port: int = _serving(8000, "Port; 0 takes a free one.", ge=0, le=65535)
    slots: int = _serving(8, "Requests that run at once.", ge=1)
    queue: int = _serving(64, "Requests that may wait; the next one is answered 429.", ge=0)
    prefill_chunk: int = _serving(256, "Prompt tokens that one round takes in at most.", ge=1)
    prefix_reuse: bool = _serving(True, "Keep the keys and values of prompts for the next one with the same beginning.")
    history_bytes: int = _serving(0, "Finished outputs to draft from, per server; 0 keeps none.", ge=0)
    request_timeout: float | None = _serving(None, "Seconds that a request may take; default: no limit.", gt=0)
    shutdown_seconds: float = _serving(30.0, "Seconds that open requests get to finish when the server stops.", ge=0)

    api_key: Annotated[tuple[SecretStr, ...], NoDecode] = _security((), "Key that clients must send; repeat it.")
    api_key_file: Path | None = _security(None, "File with one key a line.")
    insecure: bool = _security(False, "Allow an address other than loopback without a key.")
    cors_origins: Names = _security((), "Web origin that may call the API, or *; repeat it. Default: none.")
    public_metrics: bool = _security(False, "Serve /metrics without a key.")

    speculation: Literal["auto", "fixed", "off"] = _speculation(
        "auto", "auto: as far as it pays; fixed: always gamma; off: the target alone."
    )
    drafter: str = _speculation("auto", f"{', '.join(DRAFTERS)}.")
    gamma: int = _speculation(DEFAULT_GAMMA, "At most so many drafts a round.", ge=0, le=MAX_GAMMA)
    manifest: Path | None = _speculation(None, "Manifest of an audit: what it does not release decodes target-only.")
    verifier: str = _speculation(
        "auto", f"{', '.join(VERIFIERS)}; auto: invariant for requests with a seed, coupling for all others."
    )
    draft_model: str | None = _speculation(None, "A smaller model to draft with.")
    require_drafter: bool = _speculation(
        False, "End with an error where speculation is impossible, instead of decoding target-only."
    )
    quantize_draft: str | None = _speculation(None, "int8: for the draft model.")
    parts: str | None = _speculation(None, "Folder of trained heads.")
    speculative: Annotated[dict[str, Any] | None, NoDecode] = _speculation(None, "The same as JSON, in vLLM's keys.")

    max_body_bytes: int = _limit(_LIMITS.max_body_bytes, "Bytes of a request.")
    max_schema_bytes: int = _limit(_LIMITS.max_schema_bytes, "Bytes of a JSON Schema.")
    max_schema_depth: int = _limit(_LIMITS.max_schema_depth, "Levels of a JSON Schema.")
    max_regex_chars: int = _limit(_LIMITS.max_regex_chars, "Characters of a regular expression.")
    max_grammar_chars: int = _limit(_LIMITS.max_grammar_chars, "Characters of a grammar.")
    max_choices: int = _limit(_LIMITS.max_choices, "Texts of a choice.")
    max_stop: int = _limit(_LIMITS.max_stop, "Stop strings.")
    max_n: int = _limit(_LIMITS.max_n, "Answers to one prompt.")
    max_tokens: int | None = _limit(_LIMITS.max_tokens, "Tokens of one answer; default: the context.")
    max_tools: int = _limit(_LIMITS.max_tools, "Tools.")
    max_top_logprobs: int = _limit(_LIMITS.max_top_logprobs, "Alternatives reported a token.")
    max_messages: int = _limit(_LIMITS.max_messages, "Messages of a conversation.")
    max_prompts: int = _limit(_LIMITS.max_prompts, "Prompts of one completion request.")
    compile_seconds: float = _field("Limits", _DEFAULTS.compile_seconds, "Seconds to compile a constraint.", gt=0)
    compile_memory_bytes: int = _limit(_DEFAULTS.memory_bytes, "Memory to compile a constraint.")
    compile_workers: int = _limit(2, "Constraints that compile at once, each in a process of its own.")
    compile_queue: int = _limit(32, "Constraints that may wait to be compiled; the next one is answered 429.")

    log_level: Literal["debug", "info", "warning", "error"] = _logging("info", "debug, info, warning, error.")
    log_format: Literal["console", "json"] = _logging("console", "console, or json: one object a line.")
    log_prompts: bool = _logging(False, "Write prompts and messages of errors into the log.")
    otel: bool = _logging(False, "OpenTelemetry traces, exported as the OTEL_ variables say.")

    @field_validator("served_model_name", "cors_origins", "api_key", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """An environment variable holds a list with commas between."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: dict[str, Any]) -> dict[str, Any]:
        """``speculative`` becomes the settings that it means; a setting that says otherwise contradicts it."""
        given = values.get("speculative")
        if given is None:
            return values
        rest = {k: v for k, v in values.items() if k != "speculative"}
        for name, value in from_vllm(given).items():
            if name in rest and str(rest[name]) != str(value):
                raise ConfigError(
                    f"speculative says {name} = {value}, and {name} is set to {rest[name]}", param=f"speculative/{name}"
                )
            rest[name] = value
        return rest

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        Speculation(drafter=self.drafter, gamma=self.gamma, verifier=self.verifier_of(seeded=True))
        return self

    def verifier_of(self, *, seeded: bool) -> str:
        """The verifier of a request that names none. Under "invariant" a seed gives one text, whatever was drafted."""
        if self.verifier != "auto":
            return self.verifier
        return "invariant" if seeded else "coupling"

    @property
    def keys(self) -> tuple[str, ...]:
        """Every API key, those of the file too. Raises ``ConfigError`` if the file cannot be read or holds none."""
        return tuple(dict.fromkeys([*(key.get_secret_value() for key in self.api_key), *self._keys_of_file()]))

    def _keys_of_file(self) -> list[str]:
        if self.api_key_file is None:
            return []
        try:
            lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the key file cannot be read: {error}", param="api_key_file") from error
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise ConfigError(f"{self.api_key_file} holds no key", param="api_key_file")
        return keys

    @property
    def loopback(self) -> bool:
        """The address is reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in Limits.__dataclass_fields__})

    @property
    def budget(self) -> Budget:
        return Budget(compile_seconds=self.compile_seconds, memory_bytes=self.compile_memory_bytes)

    def check_bind(self) -> None:
        """Raises ``ConfigError`` for an address that others reach while no key is asked for."""
        if not (self.loopback or self.keys or self.insecure):
            raise ConfigError(
                f"{self.host} is reached from other machines, and no API key is set",
                param="host",
                hint="set --api-key, listen on 127.0.0.1, or say --insecure",
            )


def load_settings(
    flags: Mapping[str, Any] | None = None, *, config: Path | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Settings from ``flags`` (those given), the environment and the file ``config``, in this order of precedence.

    Raises ``ConfigError`` for an unknown name or a wrong value, naming it.
    """
    names = os.environ if environment is None else environment
    _refuse_unknown({k[len(PREFIX) :] for k in names if k.startswith(PREFIX)} - OTHER_VARIABLES)
    path = config or (Path(names[f"{PREFIX}CONFIG"]) if names.get(f"{PREFIX}CONFIG") else None)
    file = {} if path is None else _read(path)

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource, *others: Any, **more: Any,
        ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=file)

    try:
        return Loaded(**(flags or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(str(part) for part in first["loc"]) or None
        raise ConfigError(first["msg"].removeprefix("Value error, "), param=where) from None


def _refuse_unknown(given: set[str]) -> None:
    known = {name.upper() for name in Settings.model_fields}
    for name in sorted(given - known):
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {PREFIX}{close[0]}" if close else "constrained-spec serve --help lists them"
        raise ConfigError(f"unknown environment variable {PREFIX}{name}", param=PREFIX + name, hint=hint)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the configuration cannot be read: {error}", param=str(path)) from error
    for name in values:
        if name not in Settings.model_fields:
            close = difflib.get_close_matches(name, Settings.model_fields, 1)
            raise ConfigError(
                f"unknown setting {name!r} in {path}", param=name, hint=f"did you mean {close[0]}" if close else None
            )
    return values


def as_toml(settings: Settings) -> str:
    """A file that gives these settings, keys hidden."""
    lines = []
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        lines.append(f"# {field.description}")
        lines.append(f"# {name} =" if value is None else f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
