"""What the trainees learn is what the drafters do; the losses; a run that is killed goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors import safe_open

from constrained_spec.backends.base import Block
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.heads import HeadDrafter
from constrained_spec.drafters.manifest import Manifest, Part, load_part
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import ConfigError, ModelError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.output_types import to_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.training.batches import Batches, reduced_vocabulary
from constrained_spec.training.data import Sample, collect, split
from constrained_spec.training.draft import make_draft
from constrained_spec.training.loop import CHECKPOINT, Budget, Trainee, agreement, train
from constrained_spec.training.loss import LOSSES
from constrained_spec.training.prompts import tasks
from constrained_spec.training.recipe import DRAFTERS, TRAINEES, make_part

KINDS = tuple(TRAINEES)


def disturbed(kind: str, model: TransformersModel) -> Trainee:
    """A trainee with noise on every weight, so that no part of it is idle."""
    trainee = TRAINEES[kind](model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in trainee.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return trainee


def as_part(trainee: Trainee, model: TransformersModel, ids: torch.Tensor) -> Part:
    manifest = Manifest(trainee.kind, model.name, model.weights_digest(), model.vocabulary.digest, trainee.shape)
    return Part(manifest, {**trainee.tensors(), "reduced": ids})


@pytest.mark.parametrize("kind", KINDS)
def test_a_trainee_predicts_what_its_drafter_does(kind: str, tiny: TransformersModel, answers: list[Sample]) -> None:
    """At every depth of a chain, over the true tokens of an answer, behind a prompt of many tokens."""
    sample = next(s for s in answers if s.outputs > 12)
    trainee = disturbed(kind, tiny)
    ids = torch.arange(3, 200)
    batches = Batches([sample], tiny, ids, size=10_000, longest=10_000)
    [batch] = batches.once()
    drafter = DRAFTERS[kind](tiny, Pipeline(tiny.vocabulary), as_part(trainee, tiny, ids), least=0.0)
    with torch.no_grad():
        predicted = {k: (at, states) for k, (at, states) in enumerate(trainee.predictions(batch))}
    tokens = sample.tokens.tolist()
    for known in (sample.prompt + 1, sample.prompt + 5):
        tiny.set_length(0, 0)
        s = Sequence(
            prompt=tokens[:known], sampling=Sampling(max_tokens=20), coins=Coins(0), vocabulary=tiny.vocabulary,
            target=tiny, slot=0, capacity=tiny.capacity,
        )  # fmt: skip
        drafter.open(s)
        tiny.score([Block(0, tokens[: known - 1], want=1)])
        with Transaction(s) as tx, torch.inference_mode():
            proposal = Proposal(tx, 8, "coupling")
            [chain] = drafter._begin([proposal])
            assert chain is not None
            for k, (at, states) in predicted.items():
                got, _ = drafter._states([(proposal, chain)])
                # The k-th place of a chain from here: its state is that after token known - 1 + k.
                [row] = (batch.places[at] == known - 1 + k).nonzero().flatten().tolist()
                torch.testing.assert_close(got[0], states[row], rtol=2e-2, atol=2e-2)  # stored states have 16 bits
                assert tx.extend(tokens[known + k], "test")
        drafter.close(s)


def test_losses_vanish_at_the_target_only() -> None:
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(6, 9, generator=generator)
    target[:, 4] = float("-inf")
    for name, loss in LOSSES.items():
        draft = torch.randn(6, 9, generator=generator)
        draft[:, 4] = float("-inf")
        assert (loss(target, draft) > 1e-3).all(), name
        torch.testing.assert_close(loss(target, target), torch.zeros(6), rtol=0, atol=1e-5)
        leaf = draft.clone().requires_grad_()
        loss(target, leaf.masked_fill(draft == float("-inf"), float("-inf"))).sum().backward()
        assert leaf.grad is not None and leaf.grad.isfinite().all(), name
    p, q = target.softmax(-1), draft.softmax(-1)
    torch.testing.assert_close(LOSSES["tv"](target, draft), (p - q).abs().sum(-1) / 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_lowers_the_loss(loss: str, tiny: TransformersModel, answers: list[Sample], tmp_path: Path) -> None:
    ids = reduced_vocabulary(answers, tiny.vocabulary, 128)
    batches = Batches(answers, tiny, ids, size=800, longest=200)
    trainee = TRAINEES["eagle"](tiny)
    before = agreement(trainee, batches)["overlap"]
    facts = train(
        trainee, batches, tmp_path, budget=Budget(9.0, 40), loss=loss, rate=3e-3, seed=1, identity="a", resume=False,
        progress=lambda told: None,
    )  # fmt: skip
    assert facts["steps"] == 40
    after = agreement(trainee, batches)["overlap"]
    assert all(b > a + 0.02 for a, b in zip(before, after, strict=True)), (before, after)
    again = {"budget": Budget(9.0, 40), "loss": loss, "rate": 3e-3, "seed": 1, "progress": lambda told: None}
    with pytest.raises(ModelError, match="earlier run"):
        train(trainee, batches, tmp_path, identity="a", resume=False, **again)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="another training"):
        train(trainee, batches, tmp_path, identity="b", resume=True, **again)  # type: ignore[arg-type]


def test_answers_are_the_targets_own(tiny: TransformersModel, answers: list[Sample]) -> None:
    assert {"extraction", "tools", "own"} < {s.kind for s in answers} <= {"extraction", "tools", "own", "chat", "code"}
    for s in answers[:6]:
        tiny.set_length(0, 0)
        tiny.score([Block(0, s.tokens[:-1].tolist(), want=1)])
        states = tiny.features(0)
        assert states is not None
        torch.testing.assert_close(states, s.features.float(), rtol=2e-2, atol=2e-2)
        assert (s.masks is None) == (s.kind in ("chat", "code", "own"))
        if s.masks is not None:
            own = s.tokens[s.prompt :]
            legal = s.masks[torch.arange(len(own)), own // 32] >> (own % 32) & 1
            assert legal.all()
    train_set, held = split(answers, every=4)
    assert len(train_set) + len(held) == len(answers)


def test_sampling_goes_on_behind_what_is_there(tiny: TransformersModel, tmp_path: Path) -> None:
    def count(tokens: int) -> int:
        return len(collect(tiny, tmp_path, tokens=tokens, seed=4, progress=lambda done, of: None))

    first = count(300)
    assert count(300) == first
    assert count(900) > first
    with pytest.raises(ModelError, match="another model or seed"):
        collect(tiny, tmp_path, tokens=10, seed=5, progress=lambda done, of: None)


def test_no_schema_comes_twice_and_each_is_one() -> None:
    """What a part learns of forced text must not be the keys of a few schemas."""
    extraction = [t for t in tasks(1 * 7919, 500) if t.kind == "extraction"]
    assert len(extraction) > 120
    schemas = {json.dumps(t.output_type) for t in extraction}
    assert len(schemas) > 0.95 * len(extraction)
    keys = {key for t in extraction for key in t.output_type["properties"]}  # type: ignore[index]
    assert len(keys) > 150
    for task in extraction:
        schema = task.output_type
        assert isinstance(schema, dict)
        Draft202012Validator.check_schema(schema)
        assert set(schema["required"]) <= set(schema["properties"])
        assert schema["properties"]


def test_the_held_out_jobs_are_in_no_training_set() -> None:
    from constrained_spec.cli.suite import extraction_suite

    texts = {m["content"] for t in tasks(1 * 7919, 500) for m in t.messages}
    for job in extraction_suite():
        assert not any(job.text in text for text in texts)
    assert tasks(3, 20) == tasks(3, 20)
    for task in tasks(3, 20):
        assert task.output_type is None or to_constraint(task.output_type) is not None


def test_bad_options_are_named(tiny: TransformersModel, tmp_path: Path) -> None:
    for bad in ({"kind": "hydra"}, {"loss": "mse"}, {"minutes": 0.0}, {"tokens": -1}):
        options = {"kind": "eagle", "loss": "kl", "minutes": 1.0, "tokens": 10} | bad
        with pytest.raises(ConfigError) as error:
            make_part(model=tiny, out=tmp_path, **options)  # type: ignore[arg-type]
        assert error.value.param == next(iter(bad))


def test_a_distilled_draft_model_drafts(tiny: TransformersModel, tiny_folder: Path, tmp_path: Path) -> None:
    stock = load_model(str(tiny_folder), specialise=False, capacity=1400)
    target = load_model(str(tiny_folder), slots=4, capacity=1400)
    path = make_draft(target, stock, tmp_path, minutes=0.4, tokens=6000, layers=1, steps=4)
    small = load_model(str(path), capacity=1400)
    assert small.config.num_hidden_layers == 1
    assert small.config.constrained_spec_recipe["target_digest"] == target.weights_digest()
    drafter = ModelDrafter(small, Pipeline(target.vocabulary), target.vocabulary)
    texts = []
    for use in (None, drafter):
        target.set_length(0, 0)
        s = Sequence(
            prompt=target.encode("Numbers: "), sampling=Sampling(max_tokens=16), coins=Coins(0), slot=0,
            vocabulary=target.vocabulary, target=target, capacity=target.capacity,
        )  # fmt: skip
        if use is not None:
            use.open(s)
        while not s.finished:
            run_round(target, Pipeline(target.vocabulary), [Row(s, use, 3, "coupling")])
        assert not s.disabled
        texts.append(s.output)
    assert texts[0] == texts[1]
    with pytest.raises(ConfigError, match="layers"):
        make_draft(target, load_model(str(tiny_folder), specialise=False), tmp_path, minutes=1, tokens=9, layers=2)


def _command(kind: str, folder: Path, out: Path, *more: str) -> list[str]:
    code = "from constrained_spec.cli.train import train; train()"
    options = ["--target", str(folder), "--out", str(out), "--minutes", "0.2", "--tokens", "700", "--threads", "1"]
    return [sys.executable, "-c", code, kind, *options, "--measure", "1", *more]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_goes_on_and_writes_a_part(kind: str, tiny_folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(_command(kind, tiny_folder, tmp_path), stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
    path = tmp_path / CHECKPOINT
    while not path.exists() and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was killed before it had ended"
    before = torch.load(path, weights_only=True)
    assert before["step"] > 0
    assert not (tmp_path / f"{kind}.json").exists()
    refused = subprocess.run(_command(kind, tiny_folder, tmp_path), capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    done = subprocess.run(_command(kind, tiny_folder, tmp_path, "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "training" in done.stderr
    told = json.loads(done.stdout)
    part = load_part(Path(told["part"]))
    assert part.manifest.recipe["steps"] > before["step"]
    for figures in ("greedy", "temperature_0.8"):
        assert part.manifest.evaluation[figures]["tokens_per_pass"] >= 1
        assert part.manifest.evaluation[figures]["acceptance_by_position"]
    assert part.manifest.evaluation["draft_ms"] > 0
    with safe_open(Path(told["part"]).with_suffix(".safetensors"), "pt") as f:
        assert all(f.get_tensor(n).dtype in (torch.float16, torch.int32) for n in f.keys())  # noqa: SIM118
    model = load_model(str(tiny_folder), capacity=1400)
    drafter: HeadDrafter = DRAFTERS[kind](model, Pipeline(model.vocabulary), part)
    grammar = compile_constraint(to_constraint({"type": "array", "items": {"type": "integer"}, "maxItems": 4}),  # type: ignore[arg-type]
                                 model.vocabulary)  # fmt: skip
    texts = []
    for use in (None, drafter):
        model.set_length(0, 0)
        s = Sequence(
            prompt=model.encode("Numbers: "), sampling=Sampling(max_tokens=24), coins=Coins(0), slot=0,
            vocabulary=model.vocabulary, target=model, capacity=model.capacity, matcher=grammar.matcher(),
        )  # fmt: skip
        if use is not None:
            use.open(s)
        while not s.finished:
            run_round(model, Pipeline(model.vocabulary), [Row(s, use, 4, "coupling")])
        assert not s.disabled
        texts.append(s.output)
    assert texts[0] == texts[1]
