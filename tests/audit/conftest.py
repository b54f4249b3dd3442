"""A tiny random Llama whose tokenizer has a few merges, so that one text has several token paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from constrained_spec.audit.subject import Effort, Subject, Task
from constrained_spec.backends.transformers import TransformersModel

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
MERGES = [("y", "e"), ("n", "o"), ("ye", "s"), ("a", "b"), ("r", "e")]
EFFORT = Effort("test", 250, 300, 2, 16, 2, (2,), (1, 2), 3, 0.3)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "string", "maxLength": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TASKS = (
    Task("shapes", "object", [{"role": "user", "content": "An object, please."}], SCHEMA),
    Task("shapes", "free", "abc abc abc abc"),
)


def _tokenizer() -> PreTrainedTokenizerFast:
    specials = ["<pad>", "<bos>", "<eos>"]
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.25, eos_token_id=2, pad_token_id=0,
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
    return TransformersModel(_model(), _tokenizer(), slots=4, capacity=400, name="tiny", specialise=True)


@pytest.fixture
def subject(tiny: TransformersModel) -> Subject:
    return Subject(tiny, None, "auto", "coupling", 8, TASKS, EFFORT)
