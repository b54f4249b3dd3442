"""A tiny random model behind the real application, called in-process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import torch
from fastapi import FastAPI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from constrained_spec.api import Engine
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.server.app import create_app
from constrained_spec.server.settings import Settings

# A server without a key answers to names of this machine only.
BASE = "http://localhost"
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>\n{% endfor %}<assistant>"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Three special tokens, then the 256 bytes."""
    pieces = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in pieces[:3]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _network() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.25, eos_token_id=2, pad_token_id=0,
        bos_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tiny_model(slots: int = 4, capacity: int = 2048) -> TransformersModel:
    """Two layers of random weights, float32."""
    return TransformersModel(_network(), tiny_tokenizer(), slots=slots, capacity=capacity, name="tiny", specialise=True)


class Api:
    """One app, asked one question at a time."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        async def send() -> httpx2.Response:
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app), base_url=BASE) as client:
                return await client.request(method, path, **more)

        return anyio.run(send)

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: object, **more: Any) -> httpx2.Response:
        return self.ask("POST", path, json=body, **more)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of each event of a stream, parsed; "[DONE]" as it is."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return parse_events(answer.text)


def parse_events(text: str) -> list[Any]:
    """The data of each event, parsed; "[DONE]" as it is."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def server_model() -> TransformersModel:
    return tiny_model()


@pytest.fixture(scope="session")
def make_model() -> Callable[[int], TransformersModel]:
    """``make_model(slots)``: the tiny model again, with slots of its own."""
    return tiny_model


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a folder."""
    folder = tmp_path_factory.mktemp("server")
    _network().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server_engine(server_model: TransformersModel) -> Iterator[Engine]:
    engine = Engine(server_model, queue=64, prefix_reuse=True)
    yield engine
    engine.close(drain=False)


@pytest.fixture(scope="session")
def make_api(server_engine: Engine) -> Iterator[Callable[..., Api]]:
    """``make_api(**settings)``: an app on the shared engine."""
    made: list[FastAPI] = []

    def make(engine: Engine | None = None, **settings: Any) -> Api:
        app = create_app(Settings(model="tiny", log_level="error", **settings), engine or server_engine)
        app.state.service.start()
        made.append(app)
        return Api(app)

    yield make
    for app in made:
        app.state.service.release()


@pytest.fixture(scope="session")
def api(make_api: Callable[..., Api]) -> Api:
    """With default settings."""
    return make_api()


@pytest.fixture(scope="session")
def loading_api() -> Api:
    """An app whose engine never comes."""
    return Api(create_app(Settings(model="tiny", log_level="error")))
