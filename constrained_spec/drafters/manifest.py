"""Trained parts on disk: one safetensors file, and a manifest that says for which target it was made and how.

A part is no use to any other model: its heads read final states whose meaning the target's weights define. So loading
compares digests and refuses, instead of drafting badly without a word.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from constrained_spec.backends.base import FeatureModel
from constrained_spec.errors import ModelError, VocabularyMismatchError

FORMAT = 1
KINDS = ("medusa", "eagle")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a part is. ``shape`` holds the sizes its drafter needs, ``variants`` digests of conversions of its target
    (``{"int8": …}``) that were made from the very weights it was trained on.
    """

    kind: str
    target: str
    target_digest: str
    vocabulary_digest: str
    shape: Mapping[str, float]
    weights_digest: str = ""  # of the part's own tensors
    variants: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A manifest and the tensors it describes. ``reduced`` is among them: the ids [R] that the part can draft."""

    manifest: Manifest
    tensors: Mapping[str, Tensor]


def save_part(part: Part, folder: Path) -> Path:
    """Write ``KIND.safetensors`` and ``KIND.json`` into ``folder``; floats are stored in 16 bits. The manifest's path.

    The manifest comes last and by rename: whatever fails before leaves no part that loads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = part.manifest.kind
    tensors = {
        name: (t.to(torch.float16) if t.is_floating_point() else t.to(torch.int32)).contiguous()
        for name, t in part.tensors.items()
    }
    manifest = dataclasses.replace(part.manifest, weights_digest=_digest(tensors))
    # As bytes: safetensors' own writer makes a file that only its owner may read.
    _replace(folder / f"{kind}.safetensors", lambda path: path.write_bytes(save(tensors)))
    text = json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False) + "\n"
    path = folder / f"{kind}.json"
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def load_part(path: Path) -> Part:
    """The part of a manifest file, or of a folder that holds just one. Raises ``ModelError`` for what is no part."""
    if path.is_dir():
        found = sorted(p for p in path.glob("*.json") if p.stem in KINDS)
        if len(found) != 1:
            told = f"{len(found)} parts" if found else "no part"
            raise ModelError(f"the folder {path} holds {told}", param="drafter", hint="name the manifest file")
        path = found[0]
    manifest = _manifest(path)
    try:
        tensors = load_file(path.with_suffix(".safetensors"))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the tensors beside {path} cannot be read: {error}", param="drafter") from error
    if _digest(tensors) != manifest.weights_digest:
        raise ModelError(f"the tensors beside {path} are not those of the manifest", param="drafter")
    return Part(manifest, tensors)


def shipped_part(kind: str, model: FeatureModel, *, allow_variants: bool = False) -> Part | None:
    """The part of this package that was made for ``model``; None if there is none."""
    root = Path(str(files("constrained_spec.drafters") / "parts"))
    for path in sorted(root.glob(f"*/{kind}.json")):
        manifest = _manifest(path)
        # The cheap comparison first: hashing the weights reads them all.
        if manifest.vocabulary_digest == model.vocabulary.digest and _is_target(manifest, model, allow_variants):
            return load_part(path)
    return None


def require_target(part: Part, model: FeatureModel, *, allow_variants: bool = False) -> None:
    """Refuse a part that was made for another model.

    Raises ``VocabularyMismatchError`` or ``ModelError``, naming both digests. ``allow_variants`` also accepts a
    conversion of the target that the manifest names, such as its int8 form: another distribution, so other acceptance.
    """
    m = part.manifest
    if m.vocabulary_digest != model.vocabulary.digest:
        raise VocabularyMismatchError(
            f"the {m.kind} part was made for the vocabulary {m.vocabulary_digest} of {m.target}, and {model.name} has "
            f"{model.vocabulary.digest}",
            param="drafter",
            hint="train a part for this model: constrained-spec train",
        )
    if not _is_target(m, model, allow_variants):
        known = ", ".join(name for name, digest in m.variants.items() if digest == model.weights_digest())
        raise ModelError(
            f"the {m.kind} part was made for {m.target} with weights {m.target_digest}, and the weights of "
            f"{model.name} are {model.weights_digest()}" + (f" (its {known} variant)" if known else ""),
            param="drafter",
            hint="allow variants to use it all the same" if known else "train a part: constrained-spec train",
        )


def _is_target(manifest: Manifest, model: FeatureModel, allow_variants: bool) -> bool:
    digest = model.weights_digest()
    return digest == manifest.target_digest or (allow_variants and digest in manifest.variants.values())


def _manifest(path: Path) -> Manifest:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["format"] != FORMAT or facts["kind"] not in KINDS:
            raise ValueError(f"format {facts['format']}, kind {facts['kind']!r}")
        return Manifest(**facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is no manifest of a trained part: {error}", param="drafter") from error


def _digest(tensors: Mapping[str, Tensor]) -> str:
    h = hashlib.blake2b(digest_size=16)
    for name, t in sorted(tensors.items()):
        h.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        h.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(path.name + ".part")
    write(part)
    os.replace(part, path)
