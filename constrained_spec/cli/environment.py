"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

from constrained_spec import __version__

LIBRARIES = ("torch", "transformers", "tokenizers", "llguidance", "outlines", "interegular")


def environment() -> dict[str, Any]:
    """Versions, machine and threads, as plain values."""
    return {
        "constrained_spec": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }
