"""constrained-spec doctor: is this installation sound, on this model and this machine?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
import typer

from constrained_spec.api import Engine, Options
from constrained_spec.backends.base import Block
from constrained_spec.backends.load import load_model
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries
from constrained_spec.cli.environment import environment
from constrained_spec.cli.suite import extraction_suite
from constrained_spec.engine.selfcheck import check_law, check_rollback
from constrained_spec.errors import AuditFailure


def doctor(
    model: str = typer.Option("smollm2-135m", help="Catalogue alias, hub id, local folder or GGUF file."),
    draft_model: str | None = typer.Option(None, help="A draft model to check against the target."),
    quantize: str | None = typer.Option(None, help="int8: check that target, and how far it is from the model's own."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Versions, device, model and tokenizer checks, and a short self-check of the law and of rollback."""
    with exit_codes():
        quiet_libraries()
        with loading(model) as progress:
            engine = Engine.load(model, draft_model=draft_model, capacity=1024, quantize=quantize, progress=progress)
        vocabulary, path = engine.model.vocabulary, engine.model.path
        facts = environment() | {
            "model": model,
            "draft_model": draft_model,
            "device": str(engine.model.device),
            "dtype": str(engine.model.dtype),
            "numerics": engine.model.numerics,
            "step": f"{'specialised' if path.specialised else 'stock'}: {path.detail}",
            "step_drift": path.drift,
            "vocabulary": vocabulary.size,
            "eos_ids": list(vocabulary.eos_ids),
            "ids_without_text": sum(t is None for t in vocabulary.tokens),
            "weights_digest": engine.model.weights_digest(),
            "memory": engine.model.memory(),
        }
        checks: dict[str, Callable[[Engine], str]] = {
            "tokenizer round trip": _tokenizer,
            "law of the verifiers": lambda engine: check_law(),
            "rollback of the cache": lambda engine: check_rollback(engine.model),
            "block against single steps": _drift,
            "greedy identity": _identity,
            "seeded identity": _seeded,
        }
        if quantize is not None:
            checks[f"{quantize} against {str(engine.model.dtype).removeprefix('torch.')}"] = _quantization
        results: dict[str, dict[str, Any]] = {}
        for name, check in checks.items():
            start = time.perf_counter()
            try:
                results[name] = {"ok": True, "detail": check(engine)}
            except AuditFailure as failure:
                results[name] = {"ok": False, "detail": str(failure)}
            except Exception as error:  # a check that breaks is a finding, and the others still run
                results[name] = {"ok": False, "detail": f"{type(error).__name__}: {error}"}
            results[name]["seconds"] = round(time.perf_counter() - start, 2)
        if as_json:
            typer.echo(json.dumps(facts | {"checks": results}))
        else:
            for key, value in facts.items():
                typer.echo(f"{key:18} {value}")
            for name, r in results.items():
                typer.echo(f"{'ok  ' if r['ok'] else 'FAIL'} {name}: {r['detail']} ({r['seconds']} s)")
        if not all(r["ok"] for r in results.values()):
            raise AuditFailure("a self-check failed", hint="do not speculate on this installation")


def _tokenizer(engine: Engine) -> str:
    vocabulary = engine.model.vocabulary
    for text in ('{"name": "Ada", "n": [1, 2.5]}', "naïve café — 日本語 🌊", "  two\n\tlines  "):
        ids = vocabulary.encode(text)
        if vocabulary.bytes_of(ids) not in (text.encode(), b" " + text.encode()):
            raise AuditFailure(f"{text!r} comes back as {vocabulary.bytes_of(ids)!r}")
    return "token bytes spell the text"


def _drift(engine: Engine) -> str:
    model = engine.model
    ids = engine.encode(extraction_suite()[1].messages)[:32]
    model.set_length(0, 0)
    block = model.score([Block(0, ids, want=16)])
    model.set_length(0, 16)
    single = torch.cat([model.score([Block(0, [token], want=1)]) for token in ids[16:]])
    model.set_length(0, 0)
    drift = float((block - single).abs().max())
    if engine.model.quantized and drift:
        # A float's last bits would be rounded up to whole levels, layer by layer.
        raise AuditFailure(f"a quantised block differs from its single steps by {drift:.2e}")
    flips = int((block.argmax(-1) != single.argmax(-1)).sum())
    return f"largest logit difference {drift:.2e}, {flips} of 16 argmaxes differ"


def _identity(engine: Engine) -> str:
    job = extraction_suite()[0]
    plain = engine.generate(job.messages, job.schema, max_tokens=32, drafter="none")
    fast = engine.generate(job.messages, job.schema, max_tokens=32)
    if plain.tokens != fast.tokens:
        raise AuditFailure("speculation changes the greedy text")
    return f"{len(fast.tokens)} tokens, {plain.speculation.target_passes} passes and {fast.speculation.target_passes}"


def _seeded(engine: Engine) -> str:
    """The law on the loaded model: with the same noise at every place, drafts may change no sampled token."""
    job = extraction_suite()[2]
    options: Options = {"max_tokens": 24, "temperature": 1.0, "top_p": 0.95, "seed": 11, "verifier": "invariant"}
    plain_options: Options = {**options, "speculation": False}
    plain = engine.generate(job.messages, job.schema, **plain_options)
    fast = engine.generate(job.messages, job.schema, **options)
    if plain.tokens != fast.tokens:
        raise AuditFailure("speculation changes the sampled text of a fixed seed")
    return f"{len(fast.tokens)} tokens, {fast.speculation.accepted} of {fast.speculation.proposed} drafts accepted"


def _quantization(engine: Engine) -> str:
    """What the quantisation changes on a fixed text: the declared target is another model, and this says how far."""
    own = load_model(engine.model.name, capacity=1024)
    ids = engine.model.encode("\n".join(job.text for job in extraction_suite()))[:1000]
    rows = {}
    for name, model in (("own", own), ("quantised", engine.model)):
        model.set_length(0, 0)
        rows[name] = model.score([Block(0, ids, want=len(ids))])
        model.set_length(0, 0)
    following = torch.tensor(ids[1:], device=own.device)
    before, after = (float(torch.nn.functional.cross_entropy(logits[:-1], following).exp()) for logits in rows.values())
    difference = float((rows["own"] - rows["quantised"]).abs().mean())
    kept = float((rows["own"].argmax(-1) == rows["quantised"].argmax(-1)).float().mean())
    return (
        f"perplexity {before:.2f} becomes {after:.2f} on {len(ids)} tokens, {kept:.1%} of the argmaxes stay, "
        f"mean logit difference {difference:.2f}"
    )
