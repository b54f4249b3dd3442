"""The release manifest: what was audited, the evidence, the gates, the verdict, signed by its own content's hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from constrained_spec.audit.gates import Gate, Ledgers
from constrained_spec.audit.spaces import SPACES
from constrained_spec.audit.state import PENALTIES, PROBES
from constrained_spec.audit.subject import Subject
from constrained_spec.backends.catalogue import Progress
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.config import APPROXIMATE
from constrained_spec.errors import ConfigError

FORMAT = 1
PIPELINE = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "suppress_tokens", "custom processors",
    "min_tokens", "grammar mask", "temperature", "top_k", "top_p", "min_p", "softmax",
)  # fmt: skip
ACCEPTANCE = {
    "coupling": "keep x with chance min(1, p(x)/q(x)), recover from norm((p - q)+); a guess counts as q = 1 at x",
    "block": "keep the longest prefix by the block's shares of p, recover from (w p - q)+",
    "tree": "recursive rejection of siblings drawn without replacement",
    "invariant": "the target's own choice with Gumbel noise keyed by seed, choice and place",
    "typical": "keep what is likely enough, else draw from p (approximate)",
}


def schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, as this package publishes it."""
    text = (files("constrained_spec.audit") / "manifest.schema.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def build_manifest(
    subject: Subject, ledgers: Ledgers, gates: Sequence[Gate], verdict: str, reasons: Sequence[str], *,
    environment: Mapping[str, Any], created: str, plant: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The manifest as plain values, with its digest."""
    model, draft = subject.model, subject.draft_model
    performance = ledgers.get("performance", {}).get("performance") or {}
    cells = performance.get("cells", [])
    content: dict[str, Any] = {
        "format": FORMAT,
        "created": created,
        "verdict": verdict,
        "reasons": list(reasons),
        "target": target_facts(model),
        "distribution": {
            "target": model.name,
            "pipeline": list(PIPELINE),
            "grammars": sorted({type(x.constraint).__name__ for x in (*SPACES, *PROBES)} - {"NoneType"}),
            "acceptance_rule": ACCEPTANCE[subject.verifier],
            "exactness": "approximate" if subject.verifier in APPROXIMATE else "exact",
            "promise": "the locally masked law: token by token from the pipeline's p, until the commit rule stops it",
        },
        "sampling": {
            "regression": {space.name: _plain(space.options) for space in SPACES}, "state": dict(PENALTIES),
            "performance": {"temperature": 0.0, "max_tokens": subject.effort.max_tokens},
        },
        "speculation": {
            "drafter": subject.drafter, "verifier": subject.verifier, "gamma": subject.gamma,
            "draft_model": None if draft is None else draft.name,
            "draft_digest": None if draft is None else draft.weights_digest(),
            "fallback": "target-only: the same engine with speculation off",
        },
        "environment": dict(environment),
        "effort": dataclasses.asdict(subject.effort),
        "plant": plant,
        "ledgers": {name: dict(sections) for name, sections in ledgers.items()},
        "gates": [dataclasses.asdict(gate) for gate in gates],
        "envelope": [
            {key: c[key] for key in ("suite", "concurrency", "speedup", "worst", "decision")} for c in cells
        ],
    }  # fmt: skip
    content = json.loads(json.dumps(content))  # tuples and the like become what a reader will see
    content["digest"] = content_digest(content)
    jsonschema.validate(content, schema())
    return content


def target_facts(model: TransformersModel) -> dict[str, Any]:
    """What names the target, and how it runs here."""
    return {
        "name": model.name, "weights_digest": model.weights_digest(), "vocabulary_digest": model.vocabulary.digest,
        "vocabulary": model.vocabulary.size, "numerics": model.numerics, "dtype": str(model.dtype),
        "device": str(model.device), "step": "specialised" if model.path.specialised else "stock",
        "slots": model.slots, "capacity": model.capacity,
    }  # fmt: skip


def present_facts(manifest: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
    """``target_facts`` of the target as it is loaded now, in the way the manifest says. Raises ``ModelError``."""
    then = manifest["target"]
    dtype = str(then["dtype"]).removeprefix("torch.")
    model = load_model(
        then["name"], device=then["device"], dtype=dtype, slots=then["slots"], capacity=then["capacity"],
        quantize=None if then["numerics"] == dtype else then["numerics"], progress=progress,
    )  # fmt: skip
    return target_facts(model)


def content_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of everything but the digest itself."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest file whose content fits its digest and the schema. Raises ``ConfigError``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.validate(found, schema())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no manifest: {error}", param="manifest") from error
    except jsonschema.ValidationError as error:
        raise ConfigError(f"{path} is no manifest: {error.message}", param="manifest") from error
    if content_digest(found) != found["digest"]:
        raise ConfigError(
            f"{path} was changed after it was written", param="manifest", hint="make a new one: constrained-spec audit"
        )
    manifest: dict[str, Any] = found
    return manifest


def changes(manifest: Mapping[str, Any], target: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """What is different now: target, libraries, machine. Empty if the manifest still speaks of this system."""
    told = []
    for part, now in (("target", target), ("environment", environment)):
        then = manifest[part]
        told += [
            f"{part}.{key}: was {then.get(key)}, is {now.get(key)}"
            for key in sorted(then.keys() | now.keys())
            if then.get(key) != now.get(key)
        ]
    return told


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
