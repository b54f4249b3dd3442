"""The embedded default model: what the conversion kept, and slots against full forwards at its real size."""

from __future__ import annotations

import pytest
import torch

from constrained_spec.backends.base import Block
from constrained_spec.backends.catalogue import ensure, validate
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel

pytestmark = pytest.mark.model

SPECIAL = {
    "<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<repo_name>": 3, "<reponame>": 4, "<file_sep>": 5,
    "<filename>": 6, "<gh_stars>": 7, "<issue_start>": 8, "<issue_comment>": 9, "<issue_closed>": 10,
    "<jupyter_start>": 11, "<jupyter_text>": 12, "<jupyter_code>": 13, "<jupyter_output>": 14, "<jupyter_script>": 15,
    "<empty_output>": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return load_model("smollm2-135m", device="cpu", slots=2, capacity=256, specialise=False)


def test_the_cache_is_whole() -> None:
    validate(ensure("smollm2-135m"))


def test_vocabulary(model: TransformersModel) -> None:
    v = model.vocabulary
    assert v.special == SPECIAL and v.eos_ids == (0, 2) and v.size == 49152
    assert [i for i, t in enumerate(v.tokens) if t is None] == list(range(17))
    # Bytes that its training text never held have no token: some controls, and lead bytes of no or rare characters.
    lacking = set(range(256)) - {t[0] for t in v.tokens if t is not None and len(t) == 1}
    assert lacking <= {*range(0x20), 0xC0, 0xC1, *range(0xF1, 0x100)}
    assert not lacking & {0x09, 0x0A, 0x0D, 0xF0, 0xF3}


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        " leading",
        "tabs\tand\n\nlines  ",
        "caf\u00e9 \u4e16\u754c \U0001f30a",
        "a<|im_end|>b",
        "x  12  y 3.5",
        "{}",
    ],
)
def test_encode_spells_the_text(model: TransformersModel, text: str) -> None:
    ids = model.vocabulary.encode(text)
    assert model.vocabulary.bytes_of(ids) == text.encode()
    assert not set(ids) & set(SPECIAL.values())


def test_digits_stand_alone(model: TransformersModel) -> None:
    # As the model was trained: the file says so, and transformers does not read it.
    v = model.vocabulary
    assert [v.tokens[i] for i in v.encode("a  12")] == [b"a", b"  ", b"1", b"2"]


def test_chat_template(model: TransformersModel) -> None:
    ids = model.chat_prompt([{"role": "user", "content": "Hi"}])
    assert model.tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 3 and ids.count(2) == 2


def test_slots_against_a_full_forward(model: TransformersModel) -> None:
    ids = model.chat_prompt([{"role": "user", "content": "Name three animals that live in Africa."}])
    assert model.model is not None
    with torch.no_grad():
        full = model.model(torch.tensor([ids]), use_cache=False).logits[0]
    cut = len(ids) - 9
    first = model.score([Block(0, ids[:cut], want=1)])
    # Drafts that are thrown away, beside a neighbour, then the real continuation.
    model.score([Block(0, ids[5:12], want=1), Block(1, ids[:20], want=1)])
    model.set_length(0, cut)
    rest = model.score([Block(0, ids[cut:], want=9)])
    got = torch.cat([first, rest])
    want = full[cut - 1 :]
    assert torch.equal(got.argmax(-1), want.argmax(-1))
    # Measured drift between block shapes on CPUs is below 1e-4 of logits near 30.
    assert float((got - want).abs().max()) < 5e-4
    assert model.memory() == {"weights": 538_060_288, "kv": 2 * 30 * 2 * 3 * 256 * 64 * 4}


def test_a_step_in_bfloat16_is_specialised_too() -> None:
    """Its rounding is coarse: the model's own forward in bfloat16 is no nearer to float32 than ours."""
    ours = load_model("smollm2-135m", dtype="bfloat16", capacity=64)
    assert ours.path.specialised, ours.path.detail
    assert ours.path.drift > 0.01


def test_int8_blocks_equal_single_steps_at_every_number_of_keys() -> None:
    """Keys are read up to a multiple of 64; a block that goes beyond one is read in pieces."""
    ours = load_model("smollm2-135m", quantize="int8", capacity=384)
    ids = [i * 7919 % 49_000 for i in range(340)]
    ours.score([Block(0, ids[:150], want=1)])
    single = torch.cat([ours.score([Block(0, [token], want=1)]) for token in ids[150:]])
    for size in (3, 16, 40):
        ours.set_length(0, 150)
        blocks = [ids[at : at + size] for at in range(150, 340, size)]
        got = torch.cat([ours.score([Block(0, block, want=len(block))]) for block in blocks])
        assert torch.equal(got, single), size
