"""A tiny random Llama with a byte tokenizer, a few of its answers, and the same model as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.training.data import Sample, collect

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


def _tokenizer() -> PreTrainedTokenizerFast:
    pieces = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in pieces[:3]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.25, eos_token_id=2, pad_token_id=0,
        bos_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    _model().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny() -> TransformersModel:
    return TransformersModel(_model(), _tokenizer(), slots=4, capacity=1400, name="tiny", specialise=True)


@pytest.fixture(scope="session")
def answers(tiny: TransformersModel, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    folder = tmp_path_factory.mktemp("answers")
    return collect(tiny, folder, tokens=1500, seed=1, progress=lambda done, of: None)
