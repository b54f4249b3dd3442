"""An engine as far as ``facts_of`` looks at it: a real tokenizer of bytes, no weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from constrained_spec.backends.vocabulary import build_vocabulary


def engine(template: str | None = None, *, special: tuple[str, ...] = (), words: tuple[str, ...] = ()) -> Any:
    """A model "tiny" with ``special`` tokens, and ``words`` that are tokens with text."""
    pieces = ["<bos>", "<eos>", *special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<bos>", "<eos>", *special)])
    backend.add_tokens([AddedToken(w, special=False, normalized=False) for w in words])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>")
    tokenizer.chat_template = template
    vocabulary = build_vocabulary(tokenizer, len(tokenizer), [1])
    model = SimpleNamespace(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        capacity=64,
        name="tiny",
        encode=lambda text: list(tokenizer(text)["input_ids"]),
    )
    return SimpleNamespace(model=model)
