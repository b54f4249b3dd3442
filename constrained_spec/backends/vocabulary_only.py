"""The vocabulary of a model by name, without its weights."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from constrained_spec.backends.catalogue import ENTRIES, Progress
from constrained_spec.backends.gguf import quiet, restore_pre_tokenizer
from constrained_spec.backends.load import Source, locate, typed_failures
from constrained_spec.backends.vocabulary import build_vocabulary
from constrained_spec.errors import ModelError
from constrained_spec.types import Vocabulary


def load_vocabulary(name: str, *, progress: Progress | None = None) -> Vocabulary:
    """What the ids of the model ``name`` mean: a catalogue alias, hub id, local folder or GGUF file, as for
    ``load_model``. A folder may also hold a tokenizer alone; then there are as many ids as it has, and its own EOS.

    Raises ``ModelError`` if there is no such tokenizer or it does not tell the exact bytes of its tokens.
    """
    folder = Path(name).expanduser()
    bare = name not in ENTRIES and folder.is_dir() and not (folder / "config.json").is_file()
    source = Source(str(folder)) if bare else locate(name, progress)
    with typed_failures(f"the tokenizer of {name!r}"):
        with quiet(gguf=source.gguf is not None):
            tokenizer = AutoTokenizer.from_pretrained(source.folder, **source.options)
            sources = [tokenizer]
            if not bare:
                sources += [AutoConfig.from_pretrained(source.folder, **source.options), *_generation(source)]
        if source.gguf is not None:
            restore_pre_tokenizer(tokenizer, Path(source.folder, source.gguf))
        vocabulary = build_vocabulary(tokenizer, _width(tokenizer, sources), _eos_ids(sources))
    if not vocabulary.eos_ids:
        raise ModelError(f"{name!r} declares no end-of-sequence token", param="model")
    return vocabulary


def _generation(source: Source) -> list[GenerationConfig]:
    """The generation config, where the model has one: it often declares further EOS ids."""
    try:
        return [GenerationConfig.from_pretrained(source.folder)]
    except OSError:
        return []


def _width(tokenizer: PreTrainedTokenizerBase, sources: list[object]) -> int:
    """The number of logits: the config's, which may pad the tokenizer's ids."""
    for source in sources[1:2]:
        get = getattr(source, "get_text_config", None)
        width = getattr(get() if get is not None else source, "vocab_size", None)
        if isinstance(width, int):
            return width
    return len(tokenizer)


def _eos_ids(sources: list[object]) -> tuple[int, ...]:
    ids: set[int] = set()
    for source in sources:
        declared = getattr(source, "eos_token_id", None)
        if declared is not None:
            ids.update([declared] if isinstance(declared, int) else map(int, declared))
    return tuple(sorted(ids))
