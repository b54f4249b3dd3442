"""Loading by folder, file, alias and option; every mistake is a typed error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from constrained_spec.backends.base import Block
from constrained_spec.backends.load import load_model
from constrained_spec.errors import ConfigError, ModelError, RequestError


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    build_tiny: Callable[..., PreTrainedModel],
    tiny_tokenizer: PreTrainedTokenizerFast,
) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    build_tiny("llama").save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path


def copy_of(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_local_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stages: list[str] = []
    model = load_model(str(folder), device="cpu", slots=2, capacity=16, progress=lambda s, d, n: stages.append(s))
    assert stages == ["load"]
    assert (model.name, model.device.type, model.slots, model.capacity) == (str(folder), "cpu", 2, 16)
    assert model.vocabulary.size == 300 and model.vocabulary.eos_ids == (2, 3)
    assert model.vocabulary.tokens[3] is None and model.vocabulary.tokens[260:] == (None,) * 40
    text = "h\u00e9llo"
    assert model.vocabulary.bytes_of(model.encode(text)) == text.encode()
    assert model.score([Block(0, model.encode(text), want=1)]).shape == (1, 300)
    captured = capfd.readouterr()
    assert captured.out == "" and "Loading weights" not in captured.err


def test_dtype(folder: Path) -> None:
    assert load_model(str(folder), device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_a_chat_needs_a_template(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        load_model(str(folder)).chat_prompt([{"role": "user", "content": "x"}])
    copy_of(folder, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}"
        "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('odd role') }}{% endif %}"
        "{{ '<bos>' + m.content }}{% endfor %}{% if tools %}{{ tools[0].name }}{% endif %}"
        "{% if add_generation_prompt %}{{ '<end>' }}{% endif %}"
    )
    model = load_model(str(tmp_path))
    ids = model.chat_prompt([{"role": "user", "content": "hi"}], tools=[{"name": "t"}])
    assert (ids[0], ids[-1]) == (1, 3) and model.vocabulary.bytes_of(ids) == b"hit"
    with pytest.raises(RequestError, match="odd role"):
        model.chat_prompt([{"role": "alien", "content": "hi"}])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"device": "abacus"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"slots": 0}, "slots"),
        ({"capacity": 1000}, "capacity"),
    ],
)
def test_options(folder: Path, options: dict[str, object], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model(str(folder), **options)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_names_that_are_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "./nowhere", "/no/such/folder", "~/no-such-folder-at-all", "missing.gguf", str(tmp_path)):
        with pytest.raises(ModelError):
            load_model(name)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"x\.gguf"):
        load_model(str(tmp_path / "x.gguf"))


def test_a_checkpoint_that_lacks_weights_is_not_filled_with_noise(folder: Path, tmp_path: Path) -> None:
    copy_of(folder, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    dropped = next(name for name in sorted(weights) if "layers.1" in name)
    del weights[dropped]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 .*layers\.1"):
        load_model(str(tmp_path))


def test_a_truncated_checkpoint(folder: Path, tmp_path: Path) -> None:
    copy_of(folder, tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="cannot load"):
        load_model(str(tmp_path))


def test_refused_by_its_config_before_any_weight_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 300}))
    with pytest.raises(ModelError, match="encoder-decoder"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-architecture"}))
    with pytest.raises(ModelError, match="no-such-architecture"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError):
        load_model(str(tmp_path))
