"""A model by name: catalogue alias, local folder, GGUF file, or hub id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from constrained_spec.backends.catalogue import ENTRIES, Progress, ensure
from constrained_spec.backends.gguf import quiet, restore_pre_tokenizer
from constrained_spec.backends.process import set_threads
from constrained_spec.backends.support import refuse_config
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError, ConstrainedSpecError, ModelError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_model(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    slots: int = 1,
    capacity: int | None = None,
    quantize: str | None = None,
    specialise: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> TransformersModel:
    """Load a target or draft model.

    ``quantize`` and ``specialise`` are those of ``TransformersModel``. ``threads`` pins torch's intra-op threads, for
    the whole process; None takes what is quickest here.

    ``device`` "auto" takes CUDA when there is one. ``dtype`` "auto" means float32 on a CPU and the checkpoint's own
    elsewhere. ``progress(stage, done, total)`` is told the stages download, unpack, convert (catalogue, first time) and
    load. Raises ``ConfigError`` for an option, ``ModelError`` for the model.
    """
    where = _device(device)
    if dtype != "auto" and dtype not in _DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}", param="dtype", hint=f"one of auto, {', '.join(_DTYPES)}")
    wanted = _DTYPES.get(dtype) or (torch.float32 if where.type == "cpu" else "auto")
    if where.type == "cpu":
        set_threads(threads)
    source = locate(name, progress)
    if progress is not None:
        progress("load", 0, None)
    with typed_failures(repr(name)):
        with quiet(gguf=source.gguf is not None):
            model, tokenizer = _read(source, wanted)
        model = model.to(where)
        return TransformersModel(
            model, tokenizer, slots=slots, capacity=capacity, name=name, quantize=quantize, specialise=specialise
        )


@contextmanager
def typed_failures(what: str) -> Iterator[None]:
    """Turn whatever transformers raises for something missing or broken into a ``ModelError`` about ``what``."""
    try:
        yield
    except ConstrainedSpecError:
        raise
    except Exception as error:  # it raises many kinds
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"cannot load {what}: {first}",
            param="model",
            hint=f"give a local folder, a GGUF file, a hub id, or one of {', '.join(ENTRIES)}",
        ) from error


@dataclass(frozen=True, slots=True)
class Source:
    """What transformers loads from."""

    folder: str  # or hub id
    gguf: str | None = None  # a file name in the folder

    @property
    def options(self) -> dict[str, str]:
        return {} if self.gguf is None else {"gguf_file": self.gguf}


def locate(name: str, progress: Progress | None) -> Source:
    """Where ``name`` is; a catalogue alias is fetched first. Raises ``ModelError`` for what is not there."""
    if name in ENTRIES:
        return Source(str(ensure(name, progress=progress)))
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no file {name}", param="model")
        return Source(str(path.parent), path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the folder {name} has no config.json", param="model", hint="give a model's own folder")
        return Source(str(path))
    if not name or name[0] in "./~" or name.count("/") > 1:
        raise ModelError(f"there is no folder {name or '(empty)'}", param="model")
    return Source(name)


def _read(source: Source, dtype: torch.dtype | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    # The config alone tells most refusals, before gigabytes are read.
    refuse_config(AutoConfig.from_pretrained(source.folder, **source.options))
    tokenizer = AutoTokenizer.from_pretrained(source.folder, **source.options)
    model, report = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype=dtype, output_loading_info=True, **source.options
    )
    # transformers fills what a checkpoint lacks with random numbers, and only warns.
    lacking = sorted({*report["missing_keys"], *(str(k) for k in report.get("mismatched_keys", ()))})
    if lacking:
        raise ModelError(
            f"the checkpoint lacks {len(lacking)} of the model's weights, {lacking[0]} among them", param="model"
        )
    if source.gguf is not None:
        restore_pre_tokenizer(tokenizer, Path(source.folder, source.gguf))
    return model, tokenizer


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {device!r}", param="device", hint="auto, cpu, cuda, cuda:0") from error
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"there is no device {device!r} here", param="device", hint="auto takes what there is")
    return where
