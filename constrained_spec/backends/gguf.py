"""What transformers leaves out when it reads a GGUF file."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

# Values of `tokenizer.ggml.pre` that mean: every digit alone, then GPT-2's split (llama.cpp, llama-vocab.cpp).
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})


def restore_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Split text before merging as the model was trained to, where the file names a split that we know.

    transformers reads the merges but not ``tokenizer.ggml.pre``: without this, two spaces before a digit, say, come out
    as tokens that the model has not seen there.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    field = GGUFReader(str(file)).fields.get("tokenizer.ggml.pre")
    if backend is not None and field is not None and field.contents() in _SINGLE_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])  # fmt: skip


@contextlib.contextmanager
def quiet(*, gguf: bool = False) -> Iterator[None]:
    """No progress bars of other libraries: ours is the caller's callback. ``gguf`` silences stderr, its bar's place."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()) if gguf else contextlib.nullcontext():
            yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()
