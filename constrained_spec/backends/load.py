"""A model by name: catalogue alias, local folder, GGUF file, or hub id."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from constrained_spec.backends.catalogue import ENTRIES, Progress, ensure
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
    progress: Progress | None = None,
) -> TransformersModel:
    """Load target or draft model. ``device`` "auto" takes CUDA when there is one; ``dtype`` "auto" means float32 on a
    CPU and the checkpoint's own elsewhere. Raises ``ConfigError`` for an option, ``ModelError`` for the model."""
    where = _device(device)
    if dtype != "auto" and dtype not in _DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}", param="dtype", hint=f"one of auto, {', '.join(_DTYPES)}")
    wanted = _DTYPES.get(dtype) or (torch.float32 if where.type == "cpu" else "auto")
    folder, options = _locate(name, progress)
    if progress is not None:
        progress("load", 0, None)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=wanted, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        model = model.to(where)
        return TransformersModel(model, tokenizer, slots=slots, capacity=capacity, name=name)
    except ConstrainedSpecError:
        raise
    except Exception as error:  # transformers raises many kinds for a missing or broken model
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"cannot load {name!r}: {first}",
            param="model",
            hint=f"give a local folder, a GGUF file, a hub id, or one of {', '.join(ENTRIES)}",
        ) from error


def _locate(name: str, progress: Progress | None) -> tuple[str, dict[str, str]]:
    if name in ENTRIES:
        return str(ensure(name, progress=progress)), {}
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no file {name}", param="model")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    return name, {}


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {device!r}", param="device", hint="auto, cpu, cuda, cuda:0") from error
